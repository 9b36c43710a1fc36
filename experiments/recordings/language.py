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
from lrputils.model.attention import AttentionCall, Recorder, stepwise
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.operations import routed
from lrputils.propagation.composites import ATTN_LRP, Composite
from lrputils.propagation.layerwise import bypass_at
from lrputils.removal.coalitions import Coalitions
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.perturbation import curve_mean, perturbation_curves
from lrputils.study.variants import layer_sets

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
    layers: int = 0,
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
        layers: also AttnLRP with CP-LRP's rule in the first k, the last, and single layers, every
            so many layers; 0: not.
        curves: tokens of the text that go at once along the perturbation curves of the maps;
            0: no curves.

    Returns:
        `id`, `target`, `logit` (of the target), `content`; `output`, `method`, `removal`
        (of rows with "loo"), `family` and `layer` (of layer ablations), `scores`; with curves
        their means `morf` and `lerf`.
    """
    zero_shot = classifier.zero_shot(template, labels)
    options = {"language_model": replace(classifier, prompt=zero_shot.prompt), "labels": labels}
    options |= {"outputs": outputs, "removals": removals, "methods": methods}
    options |= {"layers": layers, "curves": curves}
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
    layers: int,
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
        row = {"output": output, "family": "", "layer": 0, "removal": ""}
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
            yield {**row, "method": name, "removal": removal, "scores": scores, **of_map}
        if layers:
            sets = {
                (family, k): own
                for (family, k), own in layer_sets(model.architecture.layers).items()
                if k % layers == 0 or k == 1
            }
            found = bypass_at(["word"], model.model, given, list(sets.values()), chosen)["word"]
            for (family, k), scores in zip(sets, found, strict=True):
                yield {
                    **row,
                    "method": "attnlrp",
                    "family": family,
                    "layer": k,
                    "scores": scores,
                }


def pinned(
    classifier: Classifier,
    texts: Texts,
    *,
    template: str = TEMPLATE,
    labels: Sequence[str] = LABELS,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text: leave-one-out while what each query gives the first token stays.

    A language model's first token takes the attention that no other one needs. Where a token is
    removed, its weight goes to all others in proportion, much of it to the first. Here the weights
    of the first key are held at those of the whole text, and the others share the rest.

    Returns:
        `id`, `target`, `logit`, `content`; `scores` of the difference of the two labels'
        logits, NaN at the first token, which stays.
    """
    zero_shot = classifier.zero_shot(template, labels)
    return _pinned(zero_shot, texts, batch_size=batch_size, max_length=max_length)


@in_batches("id", "target", "logit", "content")
def _pinned(classifier: Classifier, inputs: Inputs, target: Tensor) -> Iterator[dict[str, Any]]:
    scores = torch.full(inputs["input_ids"].shape, torch.nan)
    for number, length in enumerate(inputs.lengths.tolist()):
        lost = loo_with_first_held(classifier, inputs.rows(number), int(target[number]))
        scores[number, 1:length] = lost[1:]
    yield {"scores": scores}


@torch.inference_mode()
def loo_with_first_held(
    classifier: Classifier, inputs: Inputs, target: int, *, held: bool = True
) -> Tensor:
    """Leave-one-out of one text, (tokens,), with the first key's weights held; else as it is.

    Every token is hidden from all queries, its own too: nothing reads them but the last token's,
    whose query stays.
    """
    model = classifier.model
    ids = inputs["input_ids"]
    tokens = ids.shape[1]
    with routed(model, whole := Recorder(stepwise)):
        before = model(**inputs.model_kwargs()).logits[0]

    def with_held(call: AttentionCall) -> tuple[Tensor, None]:
        weights = call.weights()
        first, rest = whole.weights[call.layer][..., :1], weights[..., 1:]
        rest = rest / rest.sum(-1, keepdim=True).clamp(min=torch.finfo(rest.dtype).tiny)
        kept = torch.cat([first.expand_as(weights[..., :1]), (1 - first) * rest], -1)
        return call.combined(kept if held else weights), None

    with routed(model, with_held):
        after = model(
            input_ids=ids.expand(tokens, -1),
            attention_mask=1 - torch.eye(tokens, dtype=torch.long),
            position_ids=torch.arange(tokens).expand(tokens, -1),
        ).logits
    lost = before - after
    return lost[:, target] - lost[:, 1 - target]


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
