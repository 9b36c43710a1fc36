"""Speed beside others: the same work by this package, a plain loop and other libraries.

A function is a group of `experiments.bench`: rows as `Bench.contest` gives them. How the other
sides do the work is in `experiments.bench.sides`; a library that is not installed is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from experiments.bench import sides
from experiments.bench.timing import (
    OURS,
    Bench,
    Rows,
    matrix_rate,
    one_by_one,
    reader,
    scores,
    untrained,
)
from lrputils.attribution import attribute
from lrputils.data.texts import load_texts
from lrputils.model.classifier import Classifier
from lrputils.propagation.layerwise import layerwise_bypass
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.perturbation import perturbation_curves
from lrputils.study.variants import layer_sets


def loo(bench: Bench, kind: str) -> Rows:
    """Leave-one-out against a plain loop, and captum as it comes and at its fastest batch."""
    inputs = bench.texts[kind]
    given = bench.classifier, inputs
    ways = {OURS: partial(scores, *given), "plain loop": partial(sides.masked_loo, *given)}
    if sides.installed("captum"):
        batches = sorted({min(batch, int(inputs.lengths.max())) for batch in (8, 16, 32, 64)})
        passes = {rows: partial(sides.captum_loo, *given, rows) for rows in batches}
        best = min(passes, key=lambda rows: bench.seconds(passes[rows]))
        ways["captum, default"] = partial(sides.captum_loo, *given)
        ways[f"captum, {best} rows a pass"] = passes[best]
    return bench.contest(f"LOO, {bench.named(kind)}", ways, 1e-3)


# Prompts of so many tokens and sentences, with an answer of so many tokens: the units removed.
PROMPTS = {"sentence": (1000, 20, 64), "word": (150, 5, 24)}


def answers(bench: Bench, prompts: Mapping[str, Sequence[int]] = PROMPTS) -> Rows:
    """Leave-one-out of an answer against plain batches, random halves and captum.

    Of a small untrained language model; where a language model is given, of that one, by sentences
    and without the halves. The column `bound` is by counting: the weights that the side multiplies
    with over those that this package cannot avoid. What stands before a unit runs once, and the
    output embedding at the answer alone. `rate`: the machine's operations a second on matrices of
    that width.
    """
    given_one = bench.classifier.architecture.language_model
    lm = bench.classifier if given_one else reader(device=str(bench.classifier.device))
    prompts = {"sentence": prompts["sentence"]} if given_one else prompts
    vocabulary, rate, rows = _words(lm), matrix_rate(bench, lm), []
    layers = sum(p.numel() for p in lm.model.model.layers.parameters())
    head = lm.model.get_output_embeddings().weight.numel()
    for units, (tokens, sentences, size) in prompts.items():
        words = np.random.default_rng(0).choice(vocabulary, tokens + size)
        parts = [" ".join(part) for part in np.array_split(words[:tokens], sentences)]
        text = lm.encode(
            " ".join(f"{part}." for part in parts), answer=" " + " ".join(words[tokens:])
        )
        masks = sides.masked_units(text, units)
        given, whole = (lm, text, units), text.input_ids.shape[1]

        def ours(removal: str = "attention-mask", given: tuple = given) -> Tensor:
            found = leave_one_out(*given[:2], units=given[2], removal=removal, progress=False)
            return found[given[1].units(given[2]).mask]

        behind = whole - masks.argmin(1) - (1 - masks).sum(1)
        least = layers * int(whole + behind.sum()) + head * size * (len(masks) + 1)
        every = (layers + head) * whole
        told = f"LOO of an answer, {tokens} + {size} tokens, {len(masks)} {units}s"
        ways: dict[str, tuple[dict[str, Callable[[], Tensor]], float, int]] = {
            "": ({"plain batches": partial(sides.masked_answer, *given)}, 1e-3, len(masks) + 1)
        }
        if units == "sentence" and not given_one:
            half = {"64 random halves": partial(sides.halved_answer, *given)}
            ways[" beside a surrogate"] = half, np.inf, 64
        if sides.installed("captum"):
            captum = {"captum, in one pass a unit": partial(sides.captum_answer, *given)}
            ways[" by deletion"] = captum, 1e-3, len(masks) + 1
        for how, (other, tolerance, passes) in ways.items():
            first = {OURS: partial(ours, "delete" if "deletion" in how else "attention-mask")}
            found = bench.contest(told + how, first | other, tolerance)
            rows += [
                row | {"bound": b, "rate": rate}
                for row, b in zip(found, (1.0, passes * every / least), strict=True)
            ]
    return rows


def _words(lm: Classifier) -> list[str]:
    """Words that are a token each behind a blank."""
    told = {lm.tokenizer.decode([number]).strip() for number in range(len(lm.tokenizer))}
    words = sorted(word for word in told if word.isalnum() and word.isascii())
    ids = lm.tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
    return [word for word, own in zip(words, ids, strict=True) if len(own) == 1]


def lrp(bench: Bench) -> Rows:
    """AttnLRP against explicit rules, where LXT is installed."""
    rows = []
    for kind, inputs in bench.texts.items() if sides.installed("lxt") else ():
        given = bench.classifier, inputs
        ways = {
            OURS: partial(one_by_one, *given, "attnlrp"),
            "LXT, explicit rules": partial(sides.explicit_attnlrp, *given),
        }
        rows += bench.contest(f"attnlrp by rules, {bench.named(kind)}", ways, 1e-2)
    return rows


def ablations(bench: Bench) -> Rows:
    """All ablations of twelve layers in one sweep, against a pass each."""
    device = str(bench.classifier.device)
    deep = untrained(12, bench.classifier.model.config.hidden_size, device=device)
    model, inputs = deep.model, deep.encode(load_texts("reviews", limit=4, seed=0))
    sets = list(layer_sets(12).values())

    def separately() -> Tensor:
        maps = [attribute(model, inputs, "attnlrp", bypass_layers=chosen) for chosen in sets]
        return torch.stack(maps)

    ways = {OURS: partial(layerwise_bypass, model, inputs, sets), "a pass each": separately}
    return bench.contest(f"{len(sets)} layer ablations", ways, 1e-4)


def curves(bench: Bench) -> Rows:
    """Perturbation curves of sentences against one masked pass a step."""
    inputs = bench.texts["sentences"]
    ranks = torch.rand(inputs.input_ids.shape, generator=torch.Generator().manual_seed(0))
    ranks = ranks.to(bench.classifier.device)
    own = inputs.content_mask.sum(1).tolist()

    def ours() -> Tensor:
        both = perturbation_curves(bench.classifier.model, inputs, ranks)
        pairs = [pair for found in both for pair in zip(found, own, strict=True)]
        return torch.cat([curve[:count] for curve, count in pairs])

    def plain() -> Tensor:
        both = [sides.masked_curves(bench.classifier, inputs, each) for each in (ranks, -ranks)]
        return torch.cat(both)

    ways = {OURS: ours, "plain loop": plain}
    return bench.contest(f"curves, {bench.named('sentences')}", ways, 1e-3)
