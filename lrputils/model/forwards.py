"""Forward passes: a model's own, with single modules exchanged.

A replacement belongs to one instance, not to its class, and to one thread: another thread that runs
the module passes it by. So two threads can use one model with different rules, and whichever block
ends last restores the instance.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lrputils.model.architectures import Architecture
from lrputils.model.inputs import check_token

Forward = Callable[..., Any]

_lock = threading.Lock()


class _Replacement:
    """A module's forward pass in one thread, around the one that the instance had before."""

    def __init__(self, module: nn.Module, forward: Forward):
        self.inner, self.own = module.forward, vars(module).get("forward")
        self.forward, self.thread = forward, threading.get_ident()
        self.__wrapped__ = module.forward  # whose arguments a module is asked for

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.thread == threading.get_ident():
            return self.forward(self.inner, *args, **kwargs)
        return self.inner(*args, **kwargs)


def _replacements(module: nn.Module) -> Iterator[_Replacement]:
    """Yield what stands before a module's own forward pass, the innermost block's first."""
    forward = vars(module).get("forward")
    while isinstance(forward, _Replacement):
        yield forward
        forward = forward.own


@contextmanager
def _replacing(module: nn.Module, forward: Forward) -> Iterator[None]:
    with _lock:
        module.forward = mine = _Replacement(module, forward)
    try:
        yield
    finally:
        with _lock:  # blocks of two threads, or of two models, may end in any order
            mine.thread = 0
            for ended in itertools.takewhile(lambda each: not each.thread, _replacements(module)):
                del module.forward
                if ended.own is not None:
                    module.forward = ended.own


@contextmanager
def replaced(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Inside the block, `module(*args, **kwargs)` runs `forwards[module](inner, *args, **kwargs)`.

    `inner` is the forward pass that the instance had before: its own, or the replacement of an
    enclosing block. Only this thread sees the replacements; they are removed when the block ends,
    also by an exception.
    """
    with ExitStack() as stack:
        for module, forward in forwards.items():
            stack.enter_context(_replacing(module, forward))
        yield


def own_forward(module: nn.Module) -> Forward | None:
    """The forward pass that an instance has instead of its class's, beside replacements."""
    *_, forward = vars(module).get("forward"), *(each.own for each in _replacements(module))
    return forward


def is_replaced(module: nn.Module) -> bool:
    """Whether this thread is in a block that replaces the module's forward pass."""
    return any(each.thread == threading.get_ident() for each in _replacements(module))


def run(
    architecture: Architecture, arguments: Mapping[str, Any], last: Tensor | None = None
) -> Tensor:
    """Logits `(batch, classes)` of one forward pass, of the next token for a language model.

    `last`: the column of each row's last token, where the attention mask does not tell; or several
    columns a row, `(batch, n)`, for logits `(batch, n, classes)`.

    Raises:
        ValueError: a logit is NaN or infinite; the message names the rows.
    """
    if architecture.language_model:
        last = architecture.head_tokens(arguments["attention_mask"]) if last is None else last
        kept, index = torch.unique(last, return_inverse=True)
        logits = architecture.model(**arguments, logits_to_keep=kept).logits
        index = index if logits.shape[1] == len(kept) else last  # some models keep all
        rows = torch.arange(len(logits), device=logits.device)
        logits = logits[rows.view(-1, *[1] * (index.dim() - 1)), index]
    else:
        logits = architecture.model(**arguments).logits
    broken = (~torch.isfinite(logits)).flatten(1).any(1).nonzero().flatten().tolist()
    if broken:
        if "input_ids" in arguments and not bool(arguments["attention_mask"].all()):
            padding = int(arguments["input_ids"][~arguments["attention_mask"].bool()][0])
            check_token(architecture.model.get_input_embeddings(), padding, "a padded batch")
        raise ValueError(
            f"{type(architecture.model).__name__} returns NaN or infinite logits in rows {broken}: "
            "there is nothing to explain. Check its weights, and its dtype (float16 overflows)"
        )
    return logits
