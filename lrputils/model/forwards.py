"""Forward passes: a model's own, with single modules exchanged.

A replacement belongs to one instance, not to its class. The instance holds one dispatcher while
any thread needs it; a thread that replaces nothing gets the original. So two threads can use one
model with different rules, and the last one to finish restores the instance.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
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

# What stands in place of modules' own forward passes in this thread, the innermost block's last.
_replaced: ContextVar[tuple[Mapping[nn.Module, Forward], ...]] = ContextVar("replaced", default=())
_lock = threading.Lock()
# Of each module with a dispatcher: how many blocks need it, and the forward pass that it had of its
# own, if any.
_users: Counter[nn.Module] = Counter()
_own: dict[nn.Module, Forward | None] = {}


@contextmanager
def _dispatching(module: nn.Module) -> Iterator[None]:
    """Have a dispatcher in a module while any thread is in such a block."""
    with _lock:
        if not _users[module]:
            _own[module] = module.__dict__.get("forward")
            module.forward = _dispatcher(module)
        _users[module] += 1
    try:
        yield
    finally:
        with _lock:
            _users[module] -= 1
            if not _users[module]:
                del _users[module], module.forward
                own = _own.pop(module)
                if own is not None:
                    module.forward = own


def _dispatcher(module: nn.Module) -> Forward:
    """A module's forward pass with each thread's replacements around it."""
    original = module.forward

    def _forward(*args: Any, **kwargs: Any) -> Any:
        forward = original
        for forwards in _replaced.get():
            if module in forwards:
                forward = partial(forwards[module], forward)
        return forward(*args, **kwargs)

    return _forward


@contextmanager
def replaced(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Inside the block, `module(*args, **kwargs)` runs `forwards[module](inner, *args, **kwargs)`.

    `inner` is the forward pass that the instance had before: its own, or the replacement of an
    enclosing block. Only this thread sees the replacements; they are removed when the block ends,
    also by an exception.
    """
    own = dict(forwards)
    with ExitStack() as stack:
        for module in own:
            stack.enter_context(_dispatching(module))
        _replaced.set((*_replaced.get(), own))
        try:
            yield
        finally:  # blocks of two models may end in any order
            _replaced.set(tuple(other for other in _replaced.get() if other is not own))


def is_replaced(module: nn.Module) -> bool:
    """Whether this thread is in a block that replaces the module's forward pass."""
    return any(module in forwards for forwards in _replaced.get())


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
