"""What is explained: the logit of a class, or how far one class is ahead of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Contrast(NamedTuple):
    """One class against another: their logits' difference is explained; made by `contrast`."""

    first: int | str
    second: int | str


Target = int | str | Contrast | Sequence[int | str] | Tensor | None


def contrast(first: int | str, second: int | str) -> Contrast:
    """Return a target that every method takes: the logit of `first` minus that of `second`.

    Each is a class number or a label of the model. For the runner-up of each text there is
    `output="difference"` of `leave_one_out`.

    Raises:
        ValueError: the same class twice.
    """
    if first == second:
        raise ValueError(f"contrast({first!r}, {second!r}) compares a class with itself")
    return Contrast(first, second)


def class_labels(model: nn.Module) -> dict[str, int]:
    """The labels of a classifier's classes with their numbers; none of a next-token model."""
    names = getattr(model.config, "id2label", None) or {}
    return {str(name): int(number) for number, name in names.items()}


def resolve_target(
    target: Target, logits: Tensor, labels: Mapping[str, int] | None = None
) -> Tensor:
    """The explained class of each row, `(batch,)`; of a contrast both, `(batch, 2)`.

    `target` is None (the predicted class), a class, one a row, or a contrast; `labels`: name →
    number of the classes. What this returns is a target too.

    Raises:
        ValueError: no such class, or of the wrong number.
    """
    batch, classes = logits.shape
    if target is None:
        return logits.detach().argmax(1)
    pair = isinstance(target, Contrast) or getattr(target, "shape", ()) == (batch, 2)
    if isinstance(target, str):
        target = _number(target, labels or {})
    elif isinstance(target, Sequence):
        target = [_number(name, labels or {}) for name in target]
    try:
        chosen = torch.as_tensor(target, device=logits.device)
    except (TypeError, ValueError):
        chosen = logits
    if chosen.dtype.is_floating_point or chosen.dtype == torch.bool:
        raise ValueError(f"target is a class number, or one for each row; got {target!r}")
    chosen = chosen.to(torch.long)
    shape = (batch, 2) if pair else (batch,)
    chosen = chosen.expand(shape) if chosen.dim() < len(shape) else chosen
    if chosen.shape != shape:
        raise ValueError(
            f"target has shape {tuple(chosen.shape)}: pass one class, or one for each of the "
            f"{batch} rows"
        )
    outside = sorted({int(c) for c in chosen.flatten() if not 0 <= c < classes})
    if outside:
        raise ValueError(f"target {outside} out of range: the classes are 0 to {classes - 1}")
    return chosen


def take_rows(target: Target, which: Tensor) -> Target:
    """The target of some rows of a batch, which `which` marks, `(batch,)`."""
    if target is None or isinstance(target, int | str | Contrast):
        return target
    if isinstance(target, Sequence):
        return [one for one, kept in zip(target, which.tolist(), strict=True) if kept]
    target = torch.as_tensor(target)
    return target[which.to(target.device)] if target.dim() else target


def _number(name: Any, labels: Mapping[str, int]) -> Any:
    if not isinstance(name, str):
        return name
    if name not in labels:
        known = ", ".join(labels) or "the tokens: give its number"
        raise ValueError(f"target={name!r} is none of {known}")
    return labels[name]


def explained(logits: Tensor, chosen: Tensor) -> Tensor:
    """The explained number of each row, `(batch,)`, from its logits and what is chosen of them."""
    if chosen.dim() == 1:
        return logits.gather(1, chosen[:, None]).squeeze(1)
    first, second = logits.gather(1, chosen).unbind(1)
    return first - second


def probabilities(model: nn.Module, logits: Tensor) -> Tensor:
    """Probabilities of the classes, `(batch, classes)`: by a sigmoid each where the model says so.

    Raises:
        ValueError: a lone logit that is a score, not a class.
    """
    if getattr(model.config, "problem_type", None) == "multi_label_classification":
        return logits.sigmoid()
    if logits.shape[1] == 1:
        raise ValueError(
            "this model has one logit, a score without a probability: explain it with "
            "output='logit'"
        )
    return logits.softmax(dim=1)
