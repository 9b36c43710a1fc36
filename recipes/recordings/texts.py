"""r with LOO and perturbation curves of the methods and layer ablations: kinds `sst` and `imdb`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lrputils.attribution import METHODS
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.readout import readouts
from lrputils.study.evaluation import Evaluation, evaluate, of_label
from lrputils.study.variants import Label, LayerSweep, Variant

# Methods whose price is an option, or thirty times that of leave-one-out.
_BOUGHT = ("shapley", "budgeted-loo")


def measure(
    classifier: Classifier,
    texts: Texts,
    *,
    methods: Sequence[str] = tuple(name for name in METHODS if name not in _BOUGHT),
    curves: Sequence[str] | None = None,
    chunk: int = 1,
    ablation_curves: bool = True,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text, method and layer ablation at each read-out; longer texts are cut.

    Args:
        classifier: `load_classifier`'s answer.
        texts: what is measured.
        methods: names from `lrputils.attribution.METHODS`.
        curves: perturb the texts along these methods' maps, beside leave-one-out's; None: all.
        chunk: tokens that go at once along the perturbation curves.
        ablation_curves: perturb along the layer ablations, read at the words, too.
        batch_size: texts a batch.
        max_length: in tokens.

    Returns:
        the columns of `lrputils.Evaluation.rows` but `position`, and `lerf_curve`, `morf_curve`,
        lists of logits.

    Raises:
        ValueError: an unknown method, or curves of one that is not measured.
    """
    if stray := [name for name in curves or () if name not in methods]:
        raise ValueError(f"curves of {stray}, which are not among the methods {methods}")
    how = {"batch_size": batch_size, "max_length": max_length}
    how |= {"truncate": True, "progress": False}
    places = readouts(classifier.architecture)
    away = [
        Variant(method, method, {"readout": place})
        for method in ("attnlrp", "cp-lrp")
        for place in places[1:]
    ]
    along = methods if curves is None else curves
    first = [*along, *[LayerSweep()] * ablation_curves]
    others = [name for name in methods if name not in along]
    main = evaluate(classifier, texts, first, chunk=chunk, **how)
    rest = [*others, *away, LayerSweep(places[ablation_curves:])]
    more = evaluate(classifier, texts, rest, reference=main, **how)
    rows = pd.concat([_rows(main), _rows(more)[lambda rows: rows.method != "loo"]])
    return rows.sort_values("position", kind="stable").drop(columns="position")


def _rows(evaluation: Evaluation) -> pd.DataFrame:
    """The rows of an evaluation, the points of its curves behind them."""
    rows, curves = evaluation.rows, evaluation.curves
    labels = map(Label, rows.method, rows.readout, rows.family, rows.layer)
    texts = [of_label(curves, label) for label in labels]
    found = [part and part[text] for part, text in zip(texts, rows.position, strict=True)]
    for part in ("lerf", "morf"):
        points = [None if c is None else np.round(getattr(c, part), 3) for c in found]
        rows[f"{part}_curve"] = pd.Series(points, index=rows.index, dtype=object)
    return rows
