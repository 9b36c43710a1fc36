"""Evaluation on a data set: every method's map of every text, compared with exact LOO.

Texts of similar length share a batch. All stands in rows, the maps too; tables and figures are made
from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lrputils import stats
from lrputils.data.texts import Texts, load_texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.readout import Target
from lrputils.removal.perturbation import curve_mean, perturbation_curves
from lrputils.study.by_text import Run, naming, predicted
from lrputils.study.supplied import Supplied, supplied
from lrputils.study.variants import Label, LayerSweep, Variant

REFERENCE = "loo"
Asked = str | Variant | LayerSweep | Supplied
_FIRST = ("position", "id", *Label._fields, "tokens", "target", "label", "logit")  # of the columns


@dataclass(frozen=True, repr=False)
class Evaluation(Run):
    """What evaluating methods on texts gave; shown as each method's mean correlation with LOO.

    Attributes:
        rows: one row a text and map, columns `id`, `method`, `readout`, `family`, `layer` (see
            `lrputils.study.variants.Label`), `tokens` (special ones included), `target` (the class
            explained, of a contrast the first; of an answer its number in `ANSWER_OUTPUTS`),
            `label` (the text's own class, None if it has none), `logit` (of the target, or what is
            said of the answer), `content` (boolean (tokens,), false at special tokens; of words or
            sentences true at first tokens), `cut` (the text was longer), `r` (Pearson with LOO
            over all tokens), `r_content` (without special tokens), `r_normalised` (after dividing
            each map by its sum, as the paper does), `flipped` (the map's own sum was negative: the
            division flipped its signs) and `spearman` (over the tokens of `r`); with curves also
            `morf_curve`, `lerf_curve` (steps + 1,), `morf`, `lerf` (their means) and `delta`
            (`lerf − morf`), in logits; `scores`, the map, float32 (tokens,); `pieces`, the strings
            of the tokens; `passes`, the map's price in forward passes, a backward one counts as two
            (NaN of a tool that does not tell).
    """

    rows: pd.DataFrame

    @property
    def maps(self) -> pd.DataFrame:
        """The scores (tokens,) of each text and method, where it was read first."""
        return self.per_text("scores")

    def __repr__(self) -> str:
        heading, table = self._shown()
        return f"{heading}\n{table.to_string(float_format='{:.2f}'.format)}"

    def _repr_html_(self) -> str:
        heading, table = self._shown()
        return f"<p>{heading}</p>{table.to_html(float_format='{:.2f}'.format)}"

    def _shown(self) -> tuple[str, pd.DataFrame]:
        table = self.summary("r_content").drop(REFERENCE)[["value", "low", "high"]]
        pieces = self.rows.drop_duplicates("position").pieces
        copies = pieces.map(tuple).duplicated().sum()
        of = f" ({copies} of them copies, which the interval counts)" if copies else ""
        what = "mean r with LOO over own tokens, and its 95% interval"
        heading = f"{len(pieces)} text{'s' * (len(pieces) != 1)}{of}: {what}"
        return heading, table.rename(columns={"value": "r"})


def evaluate(
    classifier: Classifier,
    texts: Any,
    methods: Sequence[Asked] = ("loo", "ig", "rollout", "attnlrp", "cp-lrp"),
    *,
    scores: Any = None,
    units: str = "token",
    target: Target = None,
    reference: Sequence[np.ndarray] | None = None,
    chunk: int | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
    truncate: bool = False,
    text_column: str | None = None,
    label_column: str | None = None,
    answers: str | None = None,
    labels: Mapping[Any, Any] | None = None,
    progress: bool = True,
) -> Evaluation:
    """Run every method on every text and compare each map with exact LOO.

    The class explained is the one predicted on the whole text, unless a `target` names one; of a
    next-token model, the token that it expects next.

    Args:
        classifier: `load_classifier`'s answer.
        texts: `load_texts`' answer, or texts in any form that it takes: a string is one text, a
            table may bring labels.
        methods: names from `METHODS`, also with options ("mask-gradient:groups=2"), `Variant` or
            `LayerSweep` values; "loo" is always computed, as the reference.
        scores: maps of other tools, which are compared as the methods' are: see
            `lrputils.study.supplied`.
        units: what is removed, scored and compared: each "token", "word" or "sentence". Of words
            and sentences r is over the units, and the maps have their scores at first tokens.
        target: the class to explain, a number or a label, or a `lrputils.contrast` of two.
        reference: LOO's scores (tokens,) of each text, which are not measured again.
        chunk: perturb the texts along every map, this many tokens at once (the paper: 1 on SST,
            16 on IMDB). Costs far more than the maps; left out if not given.
        batch_size: texts a batch.
        max_length: longest text allowed, in tokens; the model's own limit if not given.
        truncate: cut longer texts instead of refusing them.
        text_column: a table's column of texts; found by its usual names if not given.
        label_column: a table's column of labels, likewise.
        answers: of a language model, a table's column of answers, or "own"; then these are
            explained, as by `leave_one_out`.
        labels: what the texts' labels are called in the model, as `{"Positive": "LABEL_1"}`.
        progress: whether to draw progress bars, with rate and time left, on a terminal.

    Raises:
        TypeError: `texts` are of no type that is taken.
        ValueError: an unknown method, no texts, a text that cannot be encoded, or a model that
            returns NaN.
    """
    texts = [texts] if isinstance(texts, str) else texts
    texts = load_texts(texts, text_column=text_column, label_column=label_column, answers=answers)
    texts = classifier.answered(texts) if answers else texts
    methods = (*methods, *supplied(scores, texts))
    variants = variants_of(methods, progress=progress)
    if tools := [variant for variant in variants if isinstance(variant, Supplied)]:
        inputs = classifier.encode(texts, max_length, truncate=True)
        for tool in tools:  # what does not fit is refused before anything is measured
            tool.lay(classifier, inputs, texts, units=units)
    if reference is not None and len(reference) != len(texts):
        raise ValueError(
            f"the reference has scores of {len(reference)} texts, but there are {len(texts)}"
        )
    rows: dict[int, list[dict[str, Any]]] = {}
    batches = predicted(
        classifier,
        texts,
        batch_size,
        max_length,
        target=target,
        truncate=truncate,
        progress=progress,
        names=labels,
    )
    for inputs, chosen, facts in batches:
        exact = None
        if reference is not None:
            exact = [reference[fact["position"]] for fact in facts]
        with naming([fact["id"] for fact in facts]):
            some = texts.take(fact["position"] for fact in facts)
            maps = _batch(classifier, inputs, chosen, variants, some, exact, chunk, units)
        for fact, of_text in zip(facts, maps, strict=True):
            rows[fact["position"]] = [fact | row for row in of_text]
    table = pd.DataFrame([row for position in range(len(texts)) for row in rows[position]])
    return Evaluation(table[[*dict.fromkeys([*_FIRST, *table])]])


def variants_of(
    methods: Sequence[Asked], *, progress: bool
) -> list[Variant | LayerSweep | Supplied]:
    """Return what to run, the reference first, each once."""
    first: dict[Any, Variant | LayerSweep | Supplied] = {}
    for asked in (Variant(REFERENCE, REFERENCE, {"progress": progress}), *methods):
        variant = Variant.of(asked) if isinstance(asked, str) else asked
        first.setdefault(variant.label if isinstance(variant, Variant) else id(variant), variant)
    return list(first.values())


def _batch(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    variants: Sequence[Variant | LayerSweep | Supplied],
    texts: Texts,
    exact: Sequence[np.ndarray] | None,
    chunk: int | None,
    units: str,
) -> list[list[dict[str, Any]]]:
    """Return of each text a row a map: its label, comparison, curves and scores."""
    model = classifier.model
    loo, maps = Label(REFERENCE), {}
    prices: dict[Label, Callable[[int], float]] = {}
    if exact is not None:
        maps[loo] = pad_sequence([torch.from_numpy(scores) for scores in exact], batch_first=True)
    for variant in variants:
        if isinstance(variant, Supplied):
            maps[variant.label] = variant.lay(classifier, inputs, texts, target, units)
        elif not (isinstance(variant, Variant) and variant.label in maps):
            maps |= {n: m.cpu() for n, m in variant.maps(model, inputs, target, units).items()}
        prices |= dict.fromkeys(maps.keys() - prices.keys(), variant.passes)
    content = inputs.units(units).mask.cpu()
    valid = content
    if units == "token":
        valid = inputs.valid_mask.cpu() & ~inputs.get("answer_mask", torch.tensor(0)).bool().cpu()
    columns = {label: compare(scores, maps[loo], valid, content) for label, scores in maps.items()}
    if chunk is not None:
        curves = _curves(classifier, inputs, target, maps, chunk, units)
        for label, of_texts in curves.items():
            columns[label] = [a | b for a, b in zip(columns[label], of_texts, strict=True)]
    texts_rows = []
    for row, length in enumerate(inputs.lengths.tolist()):
        shared = {"pieces": list(inputs.tokens[row]), "content": content[row, :length].numpy()}
        size = length if units == "token" else int(content[row].sum())
        texts_rows.append(
            [
                {
                    **label._asdict(),
                    **columns[label][row],
                    "scores": scores[row, :length].numpy(),
                    **shared,
                    "passes": prices[label](size),
                }
                for label, scores in maps.items()
            ]
        )
    return texts_rows


def _curves(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    maps: Mapping[Label, Tensor],
    chunk: int,
    units: str,
) -> dict[Label, list[dict[str, Any]]]:
    """Return the columns of curves of each map and text."""
    scores = torch.stack(list(maps.values()))
    both: Any = perturbation_curves(
        classifier.model, inputs, scores, chunk, target=target, units=units
    )
    morf, lerf = (curves.float().cpu().numpy() for curves in both)
    points = [1 + -(-len(own) // chunk) for own in inputs.units(units).texts]
    return {
        label: [_columns(morf[m, row, :n], lerf[m, row, :n]) for row, n in enumerate(points)]
        for m, label in enumerate(maps)
    }


def _columns(morf: np.ndarray, lerf: np.ndarray) -> dict[str, Any]:
    means = [float(curve_mean(torch.from_numpy(curve).double())) for curve in (morf, lerf)]
    columns = {"morf": means[0], "lerf": means[1], "delta": means[1] - means[0]}
    return columns | {"lerf_curve": lerf, "morf_curve": morf}


def compare(scores: Tensor, loo: Tensor, valid: Tensor, content: Tensor) -> list[dict[str, Any]]:
    """Return each text's `r` to `spearman`, see `Evaluation.rows`.

    Both maps are (batch, tokens) on the CPU; the boolean masks say which scores count for each.
    """
    r = stats.pearson(scores, loo, where=valid)
    ours, theirs = (stats.sum_signs(maps, valid) for maps in (scores, loo))
    columns = {
        "r": r,
        "r_content": stats.pearson(scores, loo, where=content),
        "r_normalised": r * ours * theirs,
        "flipped": ours < 0,
        "spearman": stats.spearman(scores, loo, where=valid),
    }
    return pd.DataFrame(columns).to_dict("records")
