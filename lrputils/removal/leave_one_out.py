"""Exact leave-one-out: the change of the output when one token is removed, for every token.

Nothing is approximated. Each token costs one row of a batch, and `lrputils.removal.packing` runs
the rows of all texts together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lrputils.model.architectures import Architecture, describe
from lrputils.model.handles import Handle
from lrputils.model.readout import Target, resolve_target
from lrputils.removal.packing import bar, evaluate
from lrputils.removal.rows import Row, Text, every, split, whole

REMOVALS = ("attention-mask", "mask", "pad", "unk", "zero", "delete")
OUTPUTS = ("logit", "difference", "probability")


def leave_one_out(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    removal: str = "attention-mask",
    output: str = "logit",
    batch_tokens: int | None = None,
    progress: bool = True,
) -> Tensor:
    """f(x) − f(x without token i), for every token of every text.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `model_of`).
        inputs: a batch of encoded texts (or `pixel_values`, whose tokens are [CLS] and patches).
        target: the class explained, one for all texts or one a text; by default the class that
            is predicted on the whole input. For a next-token model, the token that follows.
        removal: what happens to the token:
            "attention-mask": no query may look at it. The other tokens keep their positions. The
            token that the head reads ([CLS], or a decoder's last) keeps its own query and residual
            stream; a decoder's only token then attends to nothing.
            "mask", "pad", "unk": another token replaces it (see `Inputs.replacements`).
            "zero": its word embedding is zero; position and type stay.
            "delete": it is deleted and the tokens behind it move up by one position.
        output: f, the "logit" of the target; the "difference" from the logit of the class that
            comes next on the whole input; or the "probability" of the target.
        batch_tokens: most tokens in one batch; the default suits the device. Where memory does not
            suffice it is halved.
        progress: on a terminal, draw a bar with rate and time left once this takes some seconds.

    Returns:
        (batch, tokens) on the inputs' device, 0 at padding; float32, for a float64 model float64.

    Raises:
        TypeError: the model is not covered.
        ValueError: an unknown option, a target that is no class of the model, or a removal that
            the model or the inputs do not have.
    """
    architecture = describe(model)
    _check(removal, output, architecture)
    texts = split(architecture, inputs)
    logits = evaluate(architecture, texts, whole(texts), lambda x, _: x, batch_tokens=batch_tokens)
    read = reader(output, resolve_target(target, logits), logits)
    rows = list(_rows(architecture, texts, removal, inputs))
    with bar(progress, total=len(rows), desc="LOO", unit="row", delay=3, leave=False) as shown:
        without = evaluate(
            architecture, texts, rows, read, batch_tokens=batch_tokens, done=shown.update
        )
    full = read(logits, torch.arange(len(texts), device=logits.device))
    losses = full.repeat_interleave(torch.tensor([len(t) for t in texts], device=full.device))
    return _padded(losses - without, inputs, texts)


def reader(output: str, target: Tensor, logits: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function that takes f from the logits of rows.

    Args:
        output: one of `OUTPUTS`.
        target: (batch,), the class explained of each text.
        logits: (batch, classes) of the whole texts; "difference" takes the runner-up from them.
    """
    if output == "difference" and logits.shape[1] < 2:
        raise ValueError("output='difference' needs two classes or more; the model has one")
    others = logits.scatter(1, target[:, None], -torch.inf)
    runner_up = others.argmax(dim=1)

    def read(logits: Tensor, texts: Tensor) -> Tensor:
        if output == "probability":
            logits = logits.softmax(dim=1)
        chosen = logits.gather(1, target[texts, None])[:, 0]
        if output != "difference":
            return chosen
        return chosen - logits.gather(1, runner_up[texts, None])[:, 0]

    return read


def _check(removal: str, output: str, architecture: Architecture) -> None:
    if removal not in REMOVALS:
        raise ValueError(f"removal={removal!r} is not one of {REMOVALS}")
    if output not in OUTPUTS:
        raise ValueError(f"output={output!r} is not one of {OUTPUTS}")
    if architecture.vision and removal != "attention-mask":
        raise ValueError(
            f"removal={removal!r} is about words; for image patches use 'attention-mask'"
        )


def _rows(
    architecture: Architecture, texts: Sequence[Text], removal: str, inputs: Mapping[str, Any]
) -> Iterator[Row]:
    """One row for each token of each text, in order."""
    swap_id = _replacement(removal, inputs) if removal in ("mask", "pad", "unk") else None
    window = _window(architecture)
    for number, text in enumerate(texts):
        head = int(architecture.head_tokens(torch.ones(1, len(text))))
        for token in range(len(text)):
            if removal == "attention-mask" and (len(text) > window or token == head):
                yield Row(number, len(text), every(len(text)), hidden=token)
            elif removal == "attention-mask":
                yield _shorter(number, len(text), token)
            elif removal == "delete":
                yield _shorter(number, len(text), token, shifted=True)
            else:
                yield Row(number, len(text), every(len(text)), swapped=token, swap_id=swap_id)


def _window(architecture: Architecture) -> float:
    """How many tokens back a query sees: in a longer text, a deletion would pull others in."""
    config = architecture.backbone.config
    kinds = getattr(config, "layer_types", None) or ("sliding_attention",)
    window = getattr(config, "sliding_window", None)
    full = window is None or all(kind == "full_attention" for kind in kinds)
    return float("inf") if full else window


def _shorter(number: int, length: int, token: int, *, shifted: bool = False) -> Row:
    if length == 1:
        raise ValueError(
            f"Text {number} has a single token; removal='delete' would leave nothing of it. Use "
            f"removal='attention-mask'"
        )
    return Row(number, length - 1, lambda: np.delete(np.arange(length), token), shifted=shifted)


def _replacement(removal: str, inputs: Mapping[str, Any]) -> int:
    known = getattr(inputs, "replacements", {})
    if removal not in known:
        raise ValueError(
            f"removal={removal!r} needs the tokenizer's [{removal.upper()}] token, and these "
            f"inputs know {sorted(known) or 'none'}: encode texts by `clf.encode(texts)`, with a "
            f"tokenizer that has the token"
        )
    return known[removal]


def _padded(values: Tensor, inputs: Mapping[str, Any], texts: Sequence[Text]) -> Tensor:
    """Put the values of all tokens, text after text, into (batch, tokens)."""
    mask = inputs.get("attention_mask")
    if inputs.get("pixel_values") is not None:
        shape, device = (len(texts), len(texts[0])), inputs["pixel_values"].device
    else:
        shape, device = inputs["input_ids"].shape, inputs["input_ids"].device
    where = torch.ones(shape, dtype=torch.bool) if mask is None else mask.bool()
    scores = values.new_zeros(shape).to(device)
    scores[where.to(device)] = values.to(device)
    return scores
