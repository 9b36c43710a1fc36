"""What is recorded by evaluating texts: kinds `texts` (as `sst` and `imdb`), `curves`, `baselines`
and `deltas`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from experiments.by_text import in_batches
from experiments.frame import recorded_loo
from lrputils.attribution import METHODS, attribute
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.readout import readouts
from lrputils.removal.perturbation import curve_mean, perturbation_curves
from lrputils.study.evaluation import Evaluation, evaluate
from lrputils.study.variants import ABLATIONS, LayerSweep, Variant

# Methods whose price is an option, or thirty times that of leave-one-out.
_BOUGHT = ("shapley", "budgeted-loo")
_POINTS = ["lerf_curve", "morf_curve"]  # columns of `lrputils.evaluate`, which few kinds keep
_MAPS = ["spearman", "scores", "pieces", "content", "cut", "passes"]  # likewise


def texts(
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
        the columns of `lrputils.Evaluation.rows` but `position`, the maps, their tokens and
        `spearman`.

    Raises:
        ValueError: an unknown method, or curves of one that is not measured.
    """
    if stray := [name for name in curves or () if name not in methods]:
        raise ValueError(f"curves of {stray}, which are not among the methods {methods}")
    places = readouts(classifier.architecture)
    away = [
        Variant(method, method, {"readout": place})
        for method in ("attnlrp", "cp-lrp")
        for place in places[1:]
    ]
    along = methods if curves is None else curves
    first = [*along, *[LayerSweep()] * ablation_curves]
    others = [name for name in methods if name not in along]
    main = _evaluated(classifier, texts, first, batch_size, max_length, chunk=chunk)
    rest = [*others, *away, LayerSweep(places[ablation_curves:])]
    more = _evaluated(classifier, texts, rest, batch_size, max_length, reference=main.maps["loo"])
    rows = pd.concat([_rows(main), _rows(more)[lambda rows: rows.method != "loo"]])
    return rows.sort_values("position", kind="stable").drop(columns=["position", *_MAPS])


def _evaluated(
    classifier: Classifier,
    texts: Texts,
    asked: Sequence[str | Variant | LayerSweep],
    batch_size: int,
    max_length: int | None,
    **how: Any,
) -> Evaluation:
    """Evaluate texts, the longer ones cut, in silence."""
    return evaluate(
        classifier,
        texts,
        asked,
        batch_size=batch_size,
        max_length=max_length,
        truncate=True,
        progress=False,
        **how,
    )


def _rows(evaluation: Evaluation) -> pd.DataFrame:
    """The rows of an evaluation, the points of its curves rounded."""
    rows = evaluation.rows
    rounded = partial(np.round, decimals=3)
    return rows.assign(**{name: rows[name].map(rounded) for name in _POINTS if name in rows})


def curves(
    classifier: Classifier,
    texts: Texts,
    *,
    chunk: int = 1,
    removals: Sequence[str] = ("attention-mask",),
    places: Sequence[str] | None = None,
    families: Sequence[str] = ABLATIONS,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text, map and removal, the predicted class explained; longer texts are cut.

    Figure 2 and Table A3 in both of the paper's measures. Along the curves tokens are hidden by the
    attention mask or, for the methods themselves, replaced by [MASK].

    Args:
        chunk: tokens that go at once along the curves.
        removals: "attention-mask", and "mask" (one token at a time, methods alone).
        places: read-outs; all that the model has if not given.
        families: of layer ablations, see `LayerSweep`.

    Returns:
        `id`, `target`, `label`, `logit`, `tokens`; `method`, `readout`, `family`, `layer`;
        `removal`, `r`, `r_content`, `r_normalised`, `flipped`, `lerf`, `morf`, `delta`.
    """
    if strays := [name for name in removals if name not in ("attention-mask", "mask")]:
        raise ValueError(f"removals={strays} are neither 'attention-mask' nor 'mask'")
    places = list(places or readouts(classifier.architecture))
    methods = ("attnlrp", "cp-lrp")
    asked = [Variant(name, name, {"readout": place}) for name in methods for place in places]
    asked += [LayerSweep(places, families)] if families else []
    chunk = chunk if "attention-mask" in removals else None
    found = _evaluated(classifier, texts, asked, batch_size, max_length, chunk=chunk)
    parts = [found.rows.assign(removal=name) for name in removals if name != "mask"]
    if "mask" in removals:
        parts.append(_masked(classifier, texts, found, max_length))
    rows = pd.concat(parts).sort_values("position", kind="stable")
    return rows.drop(columns=["position", *_POINTS, *_MAPS], errors="ignore")


def _masked(
    classifier: Classifier, texts: Texts, found: Evaluation, max_length: int | None
) -> pd.DataFrame:
    """The rows of the methods themselves, with the curves' means under [MASK]."""
    rows = found.rows[found.rows.family == ""].assign(removal="mask")
    parts = []
    for position, of_text in rows.groupby("position"):
        inputs = classifier.encode([texts[position]], max_length, truncate=True)
        maps = [torch.from_numpy(scores) for scores in of_text.scores]
        how = {"target": torch.tensor([of_text.target.iloc[0]]), "removal": "mask"}
        curves = perturbation_curves(classifier, inputs, torch.stack(maps)[:, None], **how)
        morf, lerf = (curve_mean(each)[:, 0].cpu().numpy() for each in curves)
        parts.append(of_text.assign(morf=morf, lerf=lerf, delta=lerf - morf))
    return pd.concat(parts)


_HALVES = ("mask-gradient:groups=2", "mask-gradient:groups=2:with_open=True")
_OTHERWISE = (
    *("ig:baseline=pad", "ig:baseline=zero", "ig:baseline=mask"),
    *("rollout:variant=paper", "rollout:variant=abnar"),
    *("attention-x-grad", "mask-gradient", *_HALVES),
)


def baselines(
    classifier: Classifier,
    texts: Texts,
    *,
    chunk: int = 1,
    methods: Sequence[str] = _OTHERWISE,
    run: str | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text and method, the predicted class explained; longer texts are cut.

    Args:
        chunk: tokens that go at once along the curves.
        methods: names of `lrp.METHODS` with options.
        run: of `results/maps`, whose leave-one-out is taken; None: it is measured.
        batch_size: texts a batch.
        max_length: in tokens.

    Returns:
        `id`, `tokens`, `method`, `options`; `r`, `r_content`, `r_normalised`, `flipped`, `lerf`,
        `morf` and `delta`.
    """
    reference = None if run is None else [*recorded_loo(run)[[*texts.ids]].map(np.copy)]
    how = {"chunk": chunk, "reference": reference}
    rows = _evaluated(classifier, texts, methods, batch_size, max_length, **how).rows
    named = rows.method.str.partition(" ")
    return rows.assign(method=named[0], options=named[2]).drop(
        columns=[
            *("position", "readout", "family", "layer", "target", "label", "logit"),
            *(*_POINTS, *_MAPS),
        ]
    )


@in_batches("id", "tokens")
def deltas(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    *,
    chunk: int = 1,
    methods: Sequence[str] = _HALVES,
) -> Iterator[dict[str, Any]]:
    """Yield the columns of a batch's `baselines` from the curves alone: leave-one-out, which long
    texts make dear, is not measured.

    Args:
        chunk: tokens that go at once along the curves.
        methods: names of `lrp.METHODS` with options.

    Returns:
        `method`, `options`; `lerf`, `morf` and `delta`.
    """
    variants = [*map(Variant.of, methods)]
    maps = [
        attribute(classifier.model, inputs, variant.method, target=target, **variant.options)
        for variant in variants
    ]
    how: dict[str, Any] = {"target": target, "chunk": chunk}
    curves = perturbation_curves(classifier, inputs, torch.stack(maps), **how)
    means = (curve_mean(each).double().cpu() for each in curves)
    for variant, most, least in zip(variants, *means, strict=True):
        method, options = variant.columns
        columns = {"lerf": least, "morf": most, "delta": least - most}
        yield {"method": method, "options": options, **columns}
