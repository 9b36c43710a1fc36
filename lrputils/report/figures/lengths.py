"""Figures of long texts: curves over chunks, agreement against length, cost against length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from lrputils import stats
from lrputils.removal.perturbation import Curves
from lrputils.report.figures.style import COLORS, WIDTH, band, new_figure, of_method, two_columns
from lrputils.study.evaluation import REFERENCE

# Texts have different numbers of chunks; their curves meet on this grid of shares.
_SHARES = np.linspace(0, 1, 33)
_BINS = 4


def at_shares(curves: Sequence[np.ndarray], shares: np.ndarray = _SHARES) -> np.ndarray:
    """Read curves, each (steps + 1,) from the whole text to the empty one, at the same shares.

    (texts, shares), linear between a curve's own points.
    """
    return np.array([np.interp(shares, np.linspace(0, 1, len(curve)), curve) for curve in curves])


def removal_curves(curves: Mapping[str, Sequence[Curves]], *, labels: Mapping[str, str]) -> Figure:
    """Draw each method's mean curve over texts with its 95% interval, LeRF above MoRF.

    `curves`: method → one `Curves` a text, as `Evaluation.curves`.
    """
    title = "What is left of the answer while chunks go"
    figure, panels = new_figure(WIDTH, 5.6, title=title, rows=2, sharex=True)
    sides = {
        "lerf": "least relevant first: higher is better",
        "morf": "most relevant first: lower is better",
    }
    for axes, (side, caption) in zip(panels, sides.items(), strict=True):
        for method, texts in curves.items():
            values = pd.DataFrame(at_shares([getattr(c, side) for c in texts]), columns=_SHARES)
            look = {"color": of_method(method), "label": labels.get(method, method)}
            # Dashes on top: where LOO's curve and another one coincide, both can be seen.
            look |= {"ls": (0, (3, 2)), "zorder": 5} if method == REFERENCE else {}
            band(axes, stats.estimates(values), alpha=0.1, lw=2, **look)
        axes.set_title(caption, fontsize=10, loc="left")
        axes.set_ylabel("logit")
    panels[1].set_xlabel("share of the text gone")
    panels[1].set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "all"])
    figure.legend_below()
    return figure


def agreement_by_length(
    recorded: pd.DataFrame,
    tokens: Sequence[int],
    cuts: pd.DataFrame,
    *,
    labels: Mapping[str, str],
) -> Figure:
    """Draw r against the number of tokens, a panel a method.

    Grey dots are the texts of a recorded run, (texts, methods), of so many `tokens`; black is the
    mean of each quarter of the lengths with its 95% interval; coloured is the mean at each length
    of `cuts`, of `at_lengths`.
    """
    methods = list(recorded.columns)
    title = "Does agreement with LOO depend on a text's length?"
    figure, panels = two_columns(len(methods), 2.0, title, sharex=True, sharey=True)
    for axes, method in zip(panels, methods, strict=True):
        _dots_and_bins(axes, recorded[method].to_numpy(float), np.asarray(tokens, float))
        means = cuts[cuts.method == method].groupby("tokens").r.mean()
        axes.plot(means.index, means, "-s", color=of_method(method), lw=2, ms=5, zorder=5)
        axes.axhline(0, color=COLORS["faint"], lw=1, zorder=0)
        axes.set_title(labels.get(method, method), fontsize=10, loc="left")
    _length_axis(panels[(len(methods) - 1) // 2 * 2 :], [*tokens, *cuts.tokens])
    panels[0].set_ylim(-1.05, 1.05)
    figure.supylabel("Pearson r with LOO", fontsize=10)
    return figure


def _dots_and_bins(axes: Axes, r: np.ndarray, tokens: np.ndarray) -> None:
    kept = ~np.isnan(r)
    r, tokens = r[kept], tokens[kept]
    axes.scatter(tokens, r, s=7, color=COLORS["muted"], alpha=0.4, lw=0)
    for part in np.array_split(np.argsort(tokens, kind="stable"), _BINS):
        if len(part) > 1:
            place, ends = tokens[part].mean(), stats.bootstrap_interval(r[part])
            axes.plot([place, place], ends, color=COLORS["ink"], lw=2, zorder=3)
            axes.plot(place, r[part].mean(), "o", color=COLORS["ink"], ms=5, zorder=4)


def _length_axis(axes: Sequence[Axes], lengths: Sequence[float]) -> None:
    """A logarithmic axis of token counts with ticks at powers of two."""
    low, high = np.floor(np.log2(min(lengths))), np.ceil(np.log2(max(lengths)))
    ticks = 2 ** np.arange(low, high + 1).astype(int)
    for each in axes:
        each.set_xscale("log", base=2)
        each.set_xticks(ticks, [str(tick) for tick in ticks])
        each.minorticks_off()
        each.set_xlabel("tokens")


def cost_by_length(
    costs: pd.DataFrame, *, labels: Mapping[str, str], title: str = "What a longer text costs"
) -> Figure:
    """Draw `at_lengths`' seconds a text against its tokens, both axes logarithmic, a dot a text."""
    figure, axes = new_figure(WIDTH, 3.4, title=title)
    for method, rows in costs.groupby("method", sort=False):
        colour = of_method(method)
        axes.scatter(rows.tokens, rows.seconds, s=12, color=colour, alpha=0.4, lw=0)
        middle = rows.groupby("tokens").seconds.median()
        axes.plot(middle.index, middle, "-", color=colour, lw=2, label=labels.get(method, method))
    _length_axis([axes], costs.tokens)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.legend(frameon=False)
    axes.set_ylabel("seconds a text")
    return figure
