"""Forward passes: a model's own, with single modules exchanged.

A replacement belongs to one instance, not to its class, and to one thread: another thread that runs
the module passes it by. So two threads can use one model with different rules, and whichever block
ends last restores the instance.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lrputils.model.architectures import Architecture
from lrputils.model.functions import FunctionForSequenceClassification
from lrputils.model.inputs import check_token, padded

Forward = Callable[..., Any]
# One text by the names of the model's arguments, (tokens,) each.
ArgumentRow = Mapping[str, np.ndarray]

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


def run_rows(
    architecture: Architecture,
    rows: Sequence[ArgumentRow],
    zeroed: Sequence[Sequence[int]] = (),
    read: Sequence[int] = (),
) -> Tensor:
    """Logits (rows, classes), in float32 at least, of the model as it is.

    Args:
        architecture: of the model.
        rows: `input_ids`, `attention_mask` and, where the model takes them, `token_type_ids` and
            `position_ids`.
        zeroed: of each row the tokens whose word embedding is zero; none if not given.
        read: at how many of its last tokens each row is read: logits (rows, most, classes), of
            which a row with fewer has its own first.

    Raises:
        ValueError: the model reads its words twice, so that one zero does not remove them, has no
            embeddings of them, or has them in another layout.
    """
    device = next(architecture.model.parameters()).device
    fields = {name: [row[name] for row in rows] for name in rows[0]}
    tensors = padded(fields, getattr(architecture.config, "pad_token_id", None) or 0)
    arguments: dict[str, Any] = {name: value.to(device) for name, value in tensors.items()}
    if architecture.kind.causal:
        arguments["use_cache"] = False
    last = torch.tensor([len(row["input_ids"]) - 1 for row in rows], device=device)
    if len(read):
        back = torch.tensor(read, device=device)[:, None] - 1
        last = last[:, None] - (back - torch.arange(max(read), device=device)).clamp(min=0)

    def _without(inner: Forward, *args: Any, **kwargs: Any) -> Tensor:
        words = inner(*args, **kwargs).clone()
        if words.shape[:2] != arguments["input_ids"].shape:
            raise ValueError(
                f"{type(architecture.model).__name__} embeds words as {tuple(words.shape[:2])} and "
                "not as (batch, tokens), so that removal='zero' finds none. Use removal='delete'"
            )
        for row, tokens in enumerate(zeroed):
            words[row, list(tokens)] = 0
        return words

    if len(zeroed) and isinstance(architecture.model, FunctionForSequenceClassification):
        raise ValueError(
            "a function of texts has no word embeddings for removal='zero'. Use removal='delete'"
        )
    if len(zeroed) and architecture.config.is_encoder_decoder:
        raise ValueError(
            f"{type(architecture.model).__name__} reads its words twice: removal='zero' would "
            "leave them in one place. Use removal='delete'"
        )
    with replaced({architecture.word_embeddings: _without} if len(zeroed) else {}):
        logits = run(architecture, arguments, last)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
