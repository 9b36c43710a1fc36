"""Chapter 3's figure of methods: means with intervals over a cloud of single sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

import lrputils as lrp
from lrputils.report.figures.marks import dots
from lrputils.report.figures.style import COLORS, Drawing, looks


def draw(
    levels: pd.DataFrame,
    rows: pd.DataFrame,
    methods: Sequence[str],
    models: Sequence[str],
    *,
    title: str,
    ring: str | None = None,
) -> Drawing:
    """Draw r over the words with leave-one-out, a row a method, a dot a sentence.

    Args:
        levels: means with intervals, indexed by model and method.
        rows: a row a model, method and sentence, `r_content` among the columns.
        methods: from the top down.
        models: those with dots, each in its colour.
        title: of the figure.
        ring: a model whose means are rings, without intervals; None for none.
    """
    order = pd.MultiIndex.from_product([models, methods])
    labels = {name: lrp.METHODS[name].label for name in methods}
    means = levels.reindex(order).rename(index=labels)
    figure = dots({"": means}, title=title, xlabel="Pearson r with LOO", zero=0)
    axes, jitter = figure.axes[0], np.random.default_rng(0)
    shifts = dict(zip(models, np.linspace(-0.22, 0.22, len(models)), strict=True))
    for model, shift in shifts.items():  # in ink, to be seen before the cloud
        places, of_model = np.arange(len(methods)) + shift, means.loc[model]
        axes.hlines(places, of_model.low, of_model.high, color=COLORS["ink"], lw=1.5, zorder=3)
    for (model, method), part in rows.groupby(["model", "method"]):
        if model in models and method in methods:
            place = methods.index(method) + shifts[model]
            places = place + jitter.uniform(-0.1, 0.1, len(part))
            look = {"color": looks(models)[model].colour, "zorder": 0}
            axes.scatter(part.r_content, places, s=3, alpha=0.15, lw=0, **look)
    if ring:
        look = {"fc": "none", "ec": COLORS["muted"], "s": 36}
        axes.scatter(levels.value[ring][methods], range(len(methods)), **look)
    return figure
