"""Exact leave-one-out: the change of the output when one token is removed, for every token.

Nothing is approximated. Each token costs one row of a batch, and `lrputils.removal.packing` runs
the rows of all texts together, a decoder's from the removed token on. In low precision
`lrputils.removal.certified` says what it changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lrputils.model.architectures import Architecture, Handle, describe
from lrputils.model.forwards import matmul_precision
from lrputils.model.readout import (
    Target,
    explained,
    probabilities,
    resolve_target,
)
from lrputils.model.units import Spans
from lrputils.removal.certified import Certified, certified, check_options, in_full
from lrputils.removal.coalitions import removed_at_once
from lrputils.removal.packing import bar, evaluate
from lrputils.removal.rows import Row, Text, split, whole, window

REMOVALS = ("attention-mask", "mask", "pad", "unk", "zero", "delete")
OUTPUTS = ("logit", "difference", "probability")


def leave_one_out(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    units: str | Spans = "token",
    removal: str = "attention-mask",
    output: str = "logit",
    precision: str = "float32",
    tolerance: float = 0.002,
    fallback: bool = True,
    seed: int = 0,
    batch_tokens: int | None = None,
    progress: bool = True,
) -> Tensor:
    """f(x) − f(x without token i), for every token, word or sentence of every text.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `describe`).
        inputs: a batch of encoded texts (or `pixel_values`, whose tokens are [CLS] and patches).
        target: the class explained, by number or label, one for all texts or one a text, or a
            `lrputils.contrast` of two; by default the class that is predicted on the whole input.
            For a next-token model, the token that follows.
        units: what is removed at once: each "token", "word" or "sentence", or spans of characters
            of one's own (see `Inputs.units`). Special tokens are units of "token" alone.
        removal: what happens to the token, or to each token of the unit:
            "attention-mask": no query may look at it. The other tokens keep their positions. The
            token that the head reads ([CLS], or a decoder's last) keeps its own query and residual
            stream; a decoder's only token then attends to nothing.
            "mask", "pad", "unk": another token replaces it (see `Inputs.replacements`).
            "zero": its word embedding is zero; position and type stay.
            "delete": it is deleted and the tokens behind it move up by one position.
        output: f, the "logit" of the target; the "difference" from the logit of the class that
            comes next on the whole input; or the "probability" of the target (by a sigmoid
            where the model's labels do not exclude each other).
        precision: of matrix products. In "bf16", or on a GPU "tf32", it is faster where the device
            has such products, and no longer exact: see `certified_loo`.
        tolerance: how far from 1 the correlation of a text's map with float32's may be, in low
            precision; checked on rows that run in both.
        fallback: run texts above the tolerance again in float32; False refuses them.
        seed: of the choice of these rows.
        batch_tokens: most tokens in one batch; the default suits the device. Where memory does not
            suffice it is halved.
        progress: on a terminal, draw a bar with rate and time left once this takes some seconds.

    Returns:
        (batch, tokens) on the inputs' device, 0 at padding; float32, for a float64 model float64. A
        unit's score stands at its first token (`inputs.units(units).mask`), with 0 at the others.

    Raises:
        TypeError: the model is not covered.
        ValueError: an unknown option or unit, a target that is no class of the model, or a removal
            that the model or the inputs do not have.
    """
    return certified_loo(
        model,
        inputs,
        target=target,
        units=units,
        removal=removal,
        output=output,
        precision=precision,
        tolerance=tolerance,
        fallback=fallback,
        seed=seed,
        batch_tokens=batch_tokens,
        progress=progress,
    ).scores


def certified_loo(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    units: str | Spans = "token",
    removal: str = "attention-mask",
    output: str = "logit",
    precision: str = "bf16",
    tolerance: float = 0.002,
    fallback: bool = True,
    seed: int = 0,
    batch_tokens: int | None = None,
    progress: bool = True,
) -> Certified:
    """`leave_one_out` in low precision, and how far that is from float32.

    Arguments are the same. In float32 everything is exact, and there is nothing to certify.

    Raises:
        TypeError: the model is not covered.
        ValueError: what `leave_one_out` refuses; a precision that the device or the model's dtype
            does not have; or a text above the tolerance where `fallback` is False.
    """
    architecture = describe(model, rules=precision != "float32")
    if removal not in REMOVALS:
        raise ValueError(f"removal={removal!r} is not one of {REMOVALS}")
    if architecture.vision and removal != "attention-mask":
        raise ValueError(
            f"removal={removal!r} is about words; for image patches use 'attention-mask'"
        )
    low = precision != "float32"
    if low and units != "token":
        raise ValueError(f"precision={precision!r} is for units='token': leave precision out")
    if low:
        check_options(architecture, precision, tolerance, seed)
    device = next(architecture.model.parameters()).device
    with matmul_precision("float32", device) if low else nullcontext():
        texts, full, read = start(architecture, inputs, target, output, batch_tokens)
        sets, where = removed_at_once(architecture, inputs, texts, units, special=True)
        rows = list(removed_rows(architecture, texts, sets, removal, inputs))
        options = {"total": len(rows), "desc": "LOO", "unit": "row", "delay": 3, "leave": False}
        with bar(progress, **options) as shown:

            def run(numbers: Sequence[int], digits: str) -> Tensor:
                done = shown.update if digits == precision else lambda rows: None
                chosen = [rows[number] for number in numbers]
                how = {"batch_tokens": batch_tokens, "done": done, "precision": digits}
                return evaluate(architecture, texts, chosen, read, **how)

            if low:
                found = certified(texts, run, precision, tolerance, fallback=fallback, seed=seed)
            else:
                found = in_full(run(range(len(rows)), precision), len(texts))
    losses = full.repeat_interleave(torch.tensor(list(map(len, sets)), device=full.device))
    scores = full.new_zeros(where.shape).to(where.device)
    scores[where] = (losses - found.scores.to(full)).to(scores.device)
    exact = torch.zeros_like(where)
    exact[where] = found.exact.to(scores.device)
    return found._replace(scores=scores, exact=exact)


def start(
    architecture: Architecture,
    inputs: Mapping[str, Any],
    target: Target,
    output: str,
    batch_tokens: int | None,
) -> tuple[list[Text], Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """Run the whole texts: the texts, f of each (batch,), and how f is read off other logits.

    The last is a function of logits (n, classes) and the numbers of the n rows' texts, as
    `lrputils.removal.packing.evaluate` takes it. Other arguments are those of `leave_one_out`.
    """
    if output not in OUTPUTS:
        raise ValueError(f"output={output!r} is not one of {OUTPUTS}")
    texts = split(architecture, inputs)
    logits = evaluate(architecture, texts, whole(texts), lambda x, _: x, batch_tokens=batch_tokens)
    model = architecture.model
    chosen = resolve_target(target, logits, model)
    if output == "difference":
        if logits.shape[1] < 2:
            raise ValueError("output='difference' needs two classes or more; the model has one")
        if chosen.dim() == 2:
            raise ValueError("a contrast is a difference already: leave output='difference' out")
        runner_up = logits.scatter(1, chosen[:, None], -torch.inf).argmax(dim=1)
        chosen = torch.stack([chosen, runner_up], dim=1)

    def read(logits: Tensor, texts: Tensor) -> Tensor:
        if output == "probability":
            logits = probabilities(model, logits)
        return explained(logits, chosen[texts])

    return texts, read(logits, torch.arange(len(texts), device=logits.device)), read


def removed_rows(
    architecture: Architecture,
    texts: Sequence[Text],
    sets: Sequence[Sequence[np.ndarray]],
    removal: str,
    inputs: Mapping[str, Any],
) -> Iterator[Row]:
    """One row for each set of tokens that is removed from its text, in order.

    Raises:
        ValueError: nothing would be left of a text; a tokenizer without the replacement; or several
            tokens of a text longer than the model's attention window, where deleting them would
            pull others into it.
    """
    swap_id = _replacement(removal, inputs) if removal in ("mask", "pad", "unk") else None
    limit = window(architecture)
    for number, (text, own) in enumerate(zip(texts, sets, strict=True)):
        tokens = len(text)
        head = int(architecture.head_tokens(torch.ones(1, tokens)))
        every = np.arange(tokens)
        for gone in own:
            left, first = tokens - len(gone), int(gone[0])
            if removal == "attention-mask" and tokens > limit:
                if len(gone) > 1:
                    raise ValueError(
                        f"text {number} has {tokens} tokens, and each token of this model sees "
                        f"{limit}: several can be removed at once from shorter texts only"
                    )
                yield Row(number, tokens, hidden=first, start=first)
            elif removal == "attention-mask" and head in gone:
                kept = np.delete(every, gone[gone != head])
                hidden, start = int(np.searchsorted(kept, head)), min(first, left)
                yield Row(number, left + 1, partial(np.copy, kept), hidden=hidden, start=start)
            elif removal not in ("attention-mask", "delete"):
                yield Row(number, tokens, swapped=tuple(gone), swap_id=swap_id, start=first)
            elif left:
                kept, start = partial(np.delete, every, gone), min(first, left - 1)
                yield Row(number, left, kept, shifted=removal == "delete", start=start)
            else:
                raise ValueError(
                    f"Text {number} is a single token or unit; removal='delete' would leave "
                    "nothing of it. Use removal='attention-mask'"
                )


def _replacement(removal: str, inputs: Mapping[str, Any]) -> int:
    known = getattr(inputs, "replacements", {})
    if removal not in known:
        raise ValueError(
            f"removal={removal!r} needs the tokenizer's [{removal.upper()}] token, and these "
            f"inputs know {sorted(known) or 'none'}: encode texts by `clf.encode(texts)`, with a "
            f"tokenizer that has the token"
        )
    return known[removal]
