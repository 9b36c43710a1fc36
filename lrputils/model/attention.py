"""Route every attention call of one model through a given function.

This is transformers' official extension point, used so that it can be undone: one attention
function and one mask function are registered under one name, once, and look up whose call they
serve. What a call is routed to belongs to one model and one thread; every other call gets the
model's own attention. `set_attn_implementation` gives the model the registered name while any
thread routes it, and its previous one when the last thread has finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lrputils.model.architectures import Architecture, Handle, describe
from lrputils.model.forwards import is_replaced, replaced, shared


@dataclass(frozen=True)
class AttentionCall:
    """What one layer's attention takes: O = A·V with A = softmax(s·Q·Kᵀ + mask).

    Attributes:
        layer: counted from 0.
        query: `(batch, heads, tokens, size)`.
        key: as many heads as the model has for keys (see `with_all_heads`).
        value: as many heads as `key`.
        mask: boolean, `(batch, 1, queries, keys)` or broadcastable to it, True where a query may
            look, causality included; None where every query sees every key. A 4-D mask that the
            caller passed to the model comes as it is, and floats are summands of the scores.
        scaling: s.
    """

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scaling: float

    @property
    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        return self.query, self.key, self.value

    def with_factors(self, query: Tensor, key: Tensor, value: Tensor) -> AttentionCall:
        """The same call of other factors."""
        return replace(self, query=query, key=key, value=value)

    def scores(self) -> Tensor:
        """s·Q·Kᵀ before the mask, `(batch, heads, queries, keys)`, in float32 at least."""
        key = with_all_heads(self.key, self.query)
        wide = torch.promote_types(self.query.dtype, torch.float32)
        return (self.query @ key.transpose(-2, -1)).to(wide) * self.scaling

    def seen(self) -> Tensor:
        """Which keys a query sees: boolean, `(batch, heads, queries, keys)`."""
        # A summand of the scores may hold position biases; what hides a key is far below them.
        seen = torch.as_tensor(additive(self.mask, torch.float32), device=self.query.device) > -1e3
        return seen.expand(*self.query.shape[:3], self.key.shape[2])

    def weights(self, softmax: Callable[..., Tensor] = torch.softmax) -> Tensor:
        """A, `(batch, heads, queries, keys)`: computed as `scores`, in the query's dtype."""
        scores = self.scores()
        return softmax(scores + additive(self.mask, scores.dtype), -1).to(self.query.dtype)

    def even_weights(self) -> Tensor:
        """Attention that is the same to all keys that a query sees; none where it sees none."""
        seen = self.seen().to(self.value.dtype)
        return seen / seen.sum(-1, keepdim=True).clamp(min=1)

    def combined(self, weights: Tensor) -> Tensor:
        """A·V in the model's layout: `(batch, tokens, heads, size)`."""
        value = with_all_heads(self.value, self.query)
        return (weights @ value).transpose(1, 2).contiguous()


# An attention function returns the output `(batch, tokens, heads, size)`, and A or None for it.
AttentionFunction = Callable[[AttentionCall], tuple[Tensor, Tensor | None]]


def fused(call: AttentionCall) -> tuple[Tensor, None]:
    """Plain attention by the fused kernel, which never holds A in memory."""
    key, value = (with_all_heads(x, call.query) for x in (call.key, call.value))
    output = F.scaled_dot_product_attention(
        call.query, key, value, attn_mask=call.mask, scale=call.scaling
    )
    return output.transpose(1, 2).contiguous(), None


def stepwise(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Plain attention step by step, with its weights."""
    weights = call.weights()
    return call.combined(weights), weights


@dataclass
class Recorder:
    """An attention function that does what `inner` does and keeps what it took and gave.

    Attributes:
        calls: each layer's call, its factors out of the graph.
        outputs: each layer's output, in the graph.
        weights: each layer's weights, in the graph; None where `inner` gives none.
    """

    inner: AttentionFunction = fused
    calls: list[AttentionCall] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    weights: list[Tensor | None] = field(default_factory=list)

    def __call__(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """Answer a call as `inner` does, and keep it."""
        output, weights = self.inner(call)
        self.calls.append(call.with_factors(*(factor.detach() for factor in call.factors)))
        self.outputs.append(output)
        self.weights.append(weights)
        return output, weights


class Route:
    """One model's attention in one thread; `layer` is the running one, None outside blocks."""

    def __init__(self, architecture: Architecture, function: AttentionFunction):
        self.architecture = architecture
        self.function = function
        self.layer: int | None = None
        self._layers = count()  # of this pass: a block that serves several comes again
        self._forwards: dict[nn.Module, Callable] = {architecture.backbone: self._whole}
        self._forwards |= dict.fromkeys(architecture.blocks, self._block)
        if own := architecture.kind.own_attention:
            self._forwards |= {part: own(part, _attention) for part in architecture.attentions}

    def _whole(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        self._layers = count()
        before = _running.set(self)
        try:
            return original(*args, **kwargs)
        finally:
            _running.reset(before)

    def _block(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        self.layer = next(self._layers)
        try:
            return original(*args, **kwargs)
        finally:
            self.layer = None


_NAME = "lrputils"
# Of this thread: whose forward pass is running.
_running: ContextVar[Route | None] = ContextVar("running", default=None)
_original: dict[int, str] = {}  # a model's config → what its attention was set to


@contextmanager
def routed(model: Handle, function: AttentionFunction) -> Iterator[Route]:
    """Inside the block, this thread's attention calls of `model` go through `function`.

    Raises:
        TypeError: the model is not covered (see `describe`).
        RuntimeError: this thread already routes this model.
    """
    architecture = describe(model)
    if is_replaced(architecture.backbone):
        raise RuntimeError(
            f"the attention of this {type(architecture.model).__name__} is already taken over in "
            "this thread: leave the first `with` block before entering a second one on the same "
            "model"
        )
    route = Route(architecture, function)
    # All parts of a covered model share one config, and so may several models.
    model = architecture.model
    named = shared(("config", id(model.config)), _named(model))
    settable = model._can_set_attn_implementation()  # MPNet, which cannot, would warn
    with replaced(route._forwards), named if settable else nullcontext():
        yield route


@contextmanager
def _named(model: nn.Module) -> Iterator[None]:
    """Set the model to the registered name, and back."""
    key = id(model.config)
    _original[key] = model.config._attn_implementation
    model.set_attn_implementation(_NAME)
    yield
    model.set_attn_implementation(_original.pop(key))


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    route = _running.get()
    if route is None or module not in route.architecture.attentions:
        kernel = ALL_ATTENTION_FUNCTIONS.get(_original.get(id(module.config)), None)
        kernel = sdpa_attention_forward if kernel in (None, _attention) else kernel
        return kernel(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return route.function(AttentionCall(route.layer, query, key, value, attention_mask, scaling))


def _mask(*args: Any, config: Any = None, **kwargs: Any) -> Tensor | None:
    if _running.get() is None:
        original = _original.get(id(config), "sdpa")
        return ALL_MASK_ATTENTION_FUNCTIONS[original](*args, config=config, **kwargs)
    # Without a mask the function could not know that a decoder is causal.
    return sdpa_mask(*args, config=config, **{**kwargs, "allow_is_causal_skip": False})


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, _mask)


def with_all_heads(key_or_value: Tensor, query: Tensor) -> Tensor:
    """Repeat keys or values `(batch, groups, tokens, size)` to one per query head.

    Grouped-query attention shares each key and value among `heads / groups` query heads.
    """
    groups, heads = key_or_value.shape[1], query.shape[1]
    if groups == heads:
        return key_or_value
    return key_or_value.repeat_interleave(heads // groups, dim=1)


def additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | float:
    """The mask as a summand of the scores: 0 where a query may look, the dtype's minimum elsewhere.

    The minimum rather than −∞ keeps a query that may look nowhere, as padding on the left of a
    decoder's text, finite.
    """
    if mask is None or mask.dtype != torch.bool:
        return 0.0 if mask is None else mask.to(dtype)
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero, torch.finfo(dtype).min)
