"""Maps of a language model: of the label that it says behind a prompt, and of answers to chats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import Lasso
from torch import Tensor

from experiments.by_text import MAP, in_batches, in_order
from lrputils.attribution import attribute
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.propagation.composites import ATTN_LRP
from lrputils.removal.coalitions import Coalitions
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.perturbation import curve_mean, perturbation_curves
from lrputils.study.variants import Variant

TEMPLATE = "Review: {text}\nSentiment (positive or negative):"
LABELS = " negative", " positive"
# f: the difference of the two labels' logits, the predicted label's logit, and its
# log-probability among all tokens that could follow.
OUTPUTS = "difference", "logit", "log-probability"
# Names of `lrp.METHODS` with options, and two composites. With `gate` the text's own words are a
# little closed, all at once: in the middle of a removal's way.
METHODS = (
    "mask-gradient",
    "mask-gradient:groups=2",
    "mask-gradient:groups=8",
    "mask-gradient:groups=1:gate=0.85",
    "attention-x-grad",
    "attnlrp",
    "cp-lrp",
    "key-closed",
    "half-value",
    "canonised-lrp",
    "grad-x-input",
    "ig:baseline=zero",
)
_CLOSED = ("key-closed", "half-value")
_LRP = (*_CLOSED, "attnlrp", "cp-lrp", "canonised-lrp", "grad-x-input")  # have a read-out


def prompted(
    classifier: Classifier,
    texts: Texts,
    *,
    template: str = TEMPLATE,
    labels: Sequence[str] = LABELS,
    outputs: Sequence[str] = OUTPUTS,
    removals: Sequence[str] = ("attention-mask", "delete"),
    methods: Sequence[str] = METHODS,
    curves: int = 0,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text, f and map of a language model that says which label follows a prompt.

    The label that it gives the larger logit is explained.

    Args:
        classifier: a language model.
        template: the prompt around each text.
        labels: a token each, negative first.
        outputs: which f, of `OUTPUTS`.
        removals: of `leave_one_out`.
        methods: which maps, as `METHODS`.
        curves: tokens of the text that go at once along the perturbation curves of the maps;
            0: no curves.

    Returns:
        `id`, `target`, `logit` (of the target), `content`; `output`; the columns of `MAP`,
        `removal` of rows with "loo"; `scores`; with curves their means `morf` and `lerf`.
    """
    zero_shot = classifier.zero_shot(template, labels)
    options = {"language_model": replace(classifier, prompt=zero_shot.prompt), "labels": labels}
    options |= {"outputs": outputs, "removals": removals, "methods": methods}
    options |= {"curves": curves}
    sizes = {"batch_size": batch_size, "max_length": max_length}
    return _prompted(zero_shot, texts, **sizes, **options)


@in_batches("id", "target", "logit", "content")
def _prompted(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    *,
    language_model: Classifier,
    labels: Sequence[str],
    outputs: Sequence[str],
    removals: Sequence[str],
    methods: Sequence[str],
    curves: int,
) -> Iterator[dict[str, Any]]:
    said = [labels[number] for number in target.tolist()]
    answered = language_model.encode([source.text for source in inputs.sources], answer=said)
    explained: dict[str, tuple[Classifier, Inputs, Any]] = {
        "difference": (classifier, inputs, torch.stack([target, target - 2], 1)),
        "logit": (classifier, inputs, target),
        "log-probability": (language_model, answered, None),
    }
    for output in outputs:
        model, given, chosen = explained[output]
        told, maps = [], []
        for removal in removals:
            how = {"target": chosen, "removal": removal, "progress": False}
            told.append({**MAP, "method": "loo", "removal": removal})
            maps.append(leave_one_out(model, given, **how))
        for variant in map(_variant, methods):
            told.append(_which(variant))
            how = {"target": chosen, **variant.options}
            maps.append(attribute(model, given, variant.method, **how))
        means: dict[str, Any] = {}
        if curves:
            along = torch.stack(maps)
            points = perturbation_curves(model, given, along, curves, target=chosen)
            means = {"morf": curve_mean(points.morf), "lerf": curve_mean(points.lerf)}
        for number, (which, scores) in enumerate(zip(told, maps, strict=True)):
            of_map = {column: mean[number] for column, mean in means.items()}
            yield {"output": output, **which, "scores": scores, **of_map}


def _variant(name: str) -> Variant:
    """Return what `METHODS` calls so."""
    if name in _CLOSED:
        return Variant(name, ATTN_LRP.but(attention=name))
    return Variant.of(name)


def _which(variant: Variant, units: str = "token") -> dict[str, str]:
    """Return the columns of `MAP` of a method's map."""
    method, options = variant.columns
    readout = "word" if method in _LRP else ""
    return {**MAP, "method": method, "options": options, "readout": readout, "units": units}


def answers(
    classifier: Classifier,
    texts: Texts,
    *,
    question: str = "Is this review positive or negative, and why? Answer in one short sentence.",
    most: int = 40,
    units: str = "sentence",
    removals: Sequence[str] = ("attention-mask", "delete"),
    methods: Sequence[str] = (*METHODS[:2], "attention-x-grad", "attnlrp", "cp-lrp"),
    passes: Sequence[int] = (32, 64),
    said: bool = False,
) -> pd.DataFrame:
    """Return a row a text and map of what a language model says to a question about the text.

    Text and question are one message; the greedy answer's log-probability is explained.

    Args:
        classifier: a language model with a chat template.
        texts: or pairs of a text and its own question.
        question: behind each text that has none.
        most: tokens of an answer.
        units: what is removed at once, and scored.
        removals: of `leave_one_out`.
        methods: which maps, as `METHODS`.
        passes: of the surrogates, of removal by the attention mask; see `surrogate`.
        said: keep the answer and the units' texts.

    Returns:
        `id`, `length` (tokens of the answer), `cut` (whether it had more), `output` (Σ log p);
        the columns of `MAP`, `removal` of "loo"; `passes` (of "surrogate"); `scores` of the
        units, how many `tokens` each has, and whether it is the text's `own` or the question's;
        where asked for, `said` and `sentences`.
    """
    rows = []
    for number, text in enumerate(texts):
        about, asked = (text, question) if isinstance(text, str) else text
        chat = [{"role": "user", "content": f"{about}\n\n{asked}"}]
        answer, cut = classifier.reply(chat, most)
        inputs = classifier.encode([chat], answer=answer)
        over = inputs.units(units)
        first = over.mask[0].nonzero()[:, 0].tolist()
        spans = [inputs.sources[0].spans[token] for token in first]
        own = np.array([span[0] < len(about) for span in spans])
        length = int(inputs["answer_mask"].sum())
        exact, maps = {**MAP, "method": "loo", "units": units}, []
        for removal in removals:
            how = {"units": units, "removal": removal, "progress": False}
            scores = leave_one_out(classifier, inputs, **how)[0, first]
            maps.append(({**exact, "removal": removal, "passes": 0}, scores))
        f = Coalitions(classifier.architecture, inputs, units=units)
        if passes:
            rng = np.random.default_rng(number)
            removed = (rng.random((max(passes), len(first))) < 0.5) & own
            values = f.values([map(np.flatnonzero, removed)], "surrogate", progress=False)[0]
            for count in passes:
                scores = surrogate(removed[:count], values[:count].cpu().numpy(), length)
                maps.append(({**exact, "method": "surrogate", "passes": count}, scores))
        for variant in map(_variant, methods):
            how = {"units": units, **variant.options}
            scores = attribute(classifier, inputs, variant.method, **how)
            maps.append(({**_which(variant, units), "passes": 0}, scores[0, first]))
        row = {"position": number, "id": texts.ids[number], "length": length, "cut": cut}
        row |= {
            "output": float(f.whole[0]),
            "own": own,
            "tokens": over.sum((over.numbers >= 0).int())[0, first].numpy(),
        }
        row |= {"said": answer, "sentences": over.texts[0]} if said else {}
        rows += [
            {**row, **which, "scores": np.asarray(scores, np.float32)} for which, scores in maps
        ]
    return in_order(rows)


def surrogate(removed: np.ndarray, outputs: np.ndarray, length: int) -> np.ndarray:
    """Scores of units by a sparse linear fit to f without random halves of them, (units,).

    ContextCite's procedure (Cohen-Wang et al., 2024): the log odds of the answer, a token, is
    fitted by a lasso on standardised indicators of what is left.

    Args:
        removed: boolean (passes, units).
        outputs: Σ log p of the answer, (passes,).
        length: tokens of the answer.
    """
    odds = outputs.astype(float) - np.log(-np.expm1(np.minimum(outputs.astype(float), -1e-12)))
    left = 1.0 - removed
    spread = left.std(0)
    spread[spread == 0] = 1
    fit = Lasso(alpha=0.01).fit((left - left.mean(0)) / spread, odds / length)
    return fit.coef_ / spread * length
