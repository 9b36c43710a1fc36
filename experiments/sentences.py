"""Chapter 3's figure of methods: means with intervals, and where most single sentences lie."""

from __future__ import annotations

import numpy as np
import pandas as pd

import lrputils as lrp
from lrputils.report.figures.marks import dots
from lrputils.report.figures.style import Drawing, looks


def draw(levels: pd.DataFrame, rows: pd.DataFrame, *, title: str) -> Drawing:
    """Draw r over the words with leave-one-out, a row a method, the highest mean first.

    Args:
        levels: means with intervals, indexed by model and method.
        rows: a row a model, method and sentence, `r_content` among the columns; of each the middle
            80% are a thin bar.
        title: of the figure.
    """
    methods = levels.groupby("method").value.mean().sort_values(ascending=False).index
    models = levels.index.unique("model")
    means = levels.reindex(pd.MultiIndex.from_product([models, methods]))
    labels = {name: lrp.METHODS[name].label for name in methods}
    figure = dots(
        {"": means.rename(index=labels)}, title=title, xlabel="Pearson r with LOO", zero=0
    )
    spread = rows.groupby(["model", "method"]).r_content.quantile([0.1, 0.9]).unstack()
    shifts = np.linspace(-0.22, 0.22, len(models)) if len(models) > 1 else [0]
    for model, shift in zip(models, shifts, strict=True):
        ends, places = spread.loc[model].reindex(methods), np.arange(len(methods)) + shift
        look = {"color": looks(models)[model].colour, "lw": 0.8, "alpha": 0.6, "zorder": 0}
        figure.axes[0].hlines(places, ends[0.1], ends[0.9], **look)
    return figure
