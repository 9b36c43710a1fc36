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

from experiments.by_text import in_batches, in_order
from lrputils.attribution import attribute
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.propagation.composites import ATTN_LRP, Composite
from lrputils.removal.coalitions import Coalitions
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.perturbation import curve_mean, perturbation_curves

TEMPLATE = "Review: {text}\nSentiment (positive or negative):"
LABELS = " negative", " positive"
# f: the difference of the two labels' logits, the predicted label's logit, and its
# log-probability among all tokens that could follow.
OUTPUTS = "difference", "logit", "log-probability"
# A map's name → method and its options; a name has the number of its groups where it has some.
MAPS: dict[str, tuple[str | Composite, dict[str, Any]]] = {
    "mask-gradient": ("mask-gradient", {}),
    "halves": ("mask-gradient", {"groups": 2}),
    "eighths": ("mask-gradient", {"groups": 8}),
    # The text's own words a little closed, all at once: in the middle of a removal's way.
    "lowered": ("mask-gradient", {"groups": 1, "gate": 0.85}),
    "attention-x-grad": ("attention-x-grad", {}),
    "attnlrp": ("attnlrp", {}),
    "cp-lrp": ("cp-lrp", {}),
    "key-closed": (ATTN_LRP.but(attention="key-closed"), {}),
    "half-value": (ATTN_LRP.but(attention="half-value"), {}),
    "canonised-lrp": ("canonised-lrp", {}),
    "grad-x-input": ("grad-x-input", {}),
    "ig": ("ig", {"baseline": "zero"}),
}


def prompted(
    classifier: Classifier,
    texts: Texts,
    *,
    template: str = TEMPLATE,
    labels: Sequence[str] = LABELS,
    outputs: Sequence[str] = OUTPUTS,
    removals: Sequence[str] = ("attention-mask", "delete"),
    methods: Sequence[str] = tuple(MAPS),
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
        methods: which maps, of `MAPS`.
        curves: tokens of the text that go at once along the perturbation curves of the maps;
            0: no curves.

    Returns:
        `id`, `target`, `logit` (of the target), `content`; `output`, `method`, `removal`
        (of rows with "loo"), `scores`; with curves their means `morf` and `lerf`.
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
        maps = {}
        for removal in removals:
            how = {"target": chosen, "removal": removal, "progress": False}
            maps["loo", removal] = leave_one_out(model, given, **how)
        for name in methods:
            method, options = MAPS[name]
            maps[name, ""] = attribute(model, given, method, target=chosen, **options)
        means: dict[str, Any] = {}
        if curves:
            along = torch.stack([*maps.values()])
            points = perturbation_curves(model, given, along, curves, target=chosen)
            means = {"morf": curve_mean(points.morf), "lerf": curve_mean(points.lerf)}
        for number, ((name, removal), scores) in enumerate(maps.items()):
            of_map = {column: mean[number] for column, mean in means.items()}
            row = {"output": output, "method": name, "removal": removal, "scores": scores}
            yield row | of_map


def answers(
    classifier: Classifier,
    texts: Texts,
    *,
    question: str = "Is this review positive or negative, and why? Answer in one short sentence.",
    most: int = 40,
    units: str = "sentence",
    removals: Sequence[str] = ("attention-mask", "delete"),
    methods: Sequence[str] = ("mask-gradient", "halves", "attention-x-grad", "attnlrp", "cp-lrp"),
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
        methods: which maps, of `MAPS`.
        passes: of the surrogates, of removal by the attention mask; see `surrogate`.
        said: keep the answer and the units' texts.

    Returns:
        `id`, `length` (tokens of the answer), `cut` (whether it had more), `output` (Σ log p);
        `method`, `removal` (of "loo"), `passes` (of "surrogate"); `scores` of the
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
        maps: dict[tuple[str, str, int], Any] = {}
        for removal in removals:
            how = {"units": units, "removal": removal, "progress": False}
            maps["loo", removal, 0] = leave_one_out(classifier, inputs, **how)[0, first]
        f = Coalitions(classifier.architecture, inputs, units=units)
        if passes:
            rng = np.random.default_rng(number)
            removed = (rng.random((max(passes), len(first))) < 0.5) & own
            values = f.values([map(np.flatnonzero, removed)], "surrogate", progress=False)[0]
            for count in passes:
                found = surrogate(removed[:count], values[:count].cpu().numpy(), length)
                maps["surrogate", "", count] = found
        for name in methods:
            method, options = MAPS[name]
            scores = attribute(classifier, inputs, method, units=units, **options)
            maps[name, "", 0] = scores[0, first]
        row = {"position": number, "id": texts.ids[number], "length": length, "cut": cut}
        row |= {
            "output": float(f.whole[0]),
            "own": own,
            "tokens": over.sum((over.numbers >= 0).int())[0, first].numpy(),
        }
        row |= {"said": answer, "sentences": over.texts[0]} if said else {}
        rows += [
            {**row, "method": method, "removal": removal, "passes": count}
            | {"scores": np.asarray(scores, np.float32)}
            for (method, removal, count), scores in maps.items()
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
