"""Route every attention call of one model through a given function.

This is transformers' official extension point, used so that it can be undone: one attention
function and one mask function are registered under one name, once, and look up whose call they
serve. What a call is routed to belongs to one model and one thread; every other call gets the
model's own attention. `set_attn_implementation` gives the model the registered name while any
thread routes it, and its previous one when the last thread has finished.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

from lrputils.architectures import Architecture, describe
from lrputils.forwards import replaced

# (layer, module, query, key, value, mask, scaling) → (output, weights or None)
AttentionFunction = Callable[
    [int, nn.Module, Tensor, Tensor, Tensor, Tensor | None, float], tuple[Tensor, Tensor | None]
]

NAME = "lrputils"


class Route:
    """One model's attention in one thread: where its calls go and which layer runs now.

    `layer` is the number of the layer that is being computed, None outside the blocks.
    """

    def __init__(self, architecture: Architecture, function: AttentionFunction):
        self.architecture = architecture
        self.function = function
        self.layer: int | None = None
        self._calls: dict[nn.Module, int] = {}

    def forwards(self) -> dict[nn.Module, Callable]:
        """Forward passes that keep count of the layers: of the backbone and of each block."""
        return {self.architecture.backbone: self._whole} | {
            block: self._block(block) for block in self.architecture.blocks
        }

    def _whole(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        self._calls.clear()
        self.layer = None
        return original(*args, **kwargs)

    def _block(self, block: nn.Module) -> Callable:
        # A block that serves several layers (ALBERT) computes them in the order of its calls.
        layers = [i for i, other in enumerate(self.architecture.blocks) if other is block]

        def forward(original: Callable, *args: Any, **kwargs: Any) -> Any:
            call = self._calls.get(block, 0)
            self._calls[block] = call + 1
            self.layer = layers[call % len(layers)]
            try:
                return original(*args, **kwargs)
            finally:
                self.layer = None

        return forward


class _Routes(threading.local):
    def __init__(self) -> None:
        self.of_module: dict[nn.Module, Route] = {}
        self.of_config: Counter[int] = Counter()


_routes = _Routes()
_lock = threading.Lock()
_users: dict[int, tuple[int, str]] = {}
_original: dict[int, str] = {}


@contextmanager
def routed(
    model: nn.Module, function: AttentionFunction, architecture: Architecture | None = None
) -> Iterator[Route]:
    """Inside the block, this thread's attention calls of `model` go through `function`.

    `function(layer, module, query, key, value, mask, scaling)` gets query `(batch, heads, tokens,
    size)`, key and value with as many heads as the model has for them (see `with_all_heads`), and
    the mask: boolean, `(batch, 1, queries, keys)` or broadcastable to it, True where a query may
    look, causality included; a 4-D mask that the caller passed to the model comes as it is; None
    where every query sees every key. It returns the output `(batch, tokens, heads, size)` and the
    attention weights, or None for those. Layers count from 0.

    Raises:
        TypeError: the model is not covered (see `describe`).
        RuntimeError: this thread already routes this model.
    """
    architecture = describe(model) if architecture is None else architecture
    if any(module in _routes.of_module for module in architecture.attentions):
        raise RuntimeError(
            f"the attention of this {type(model).__name__} is already taken over in this thread: "
            "leave the first `with` block before entering a second one on the same model"
        )
    route = Route(architecture, function)
    configs = {id(module.config) for module in architecture.attentions}
    configs |= {id(part.config) for part in model.modules() if isinstance(part, PreTrainedModel)}
    with ExitStack() as undo:
        undo.enter_context(replaced(route.forwards()))
        undo.enter_context(_implementation(model, configs))
        undo.callback(_forget, route, configs)
        _routes.of_module.update(dict.fromkeys(architecture.attentions, route))
        _routes.of_config.update(configs)
        yield route


def _forget(route: Route, configs: set[int]) -> None:
    for module in route.architecture.attentions:
        _routes.of_module.pop(module, None)
    _routes.of_config -= Counter(configs)


@contextmanager
def _implementation(model: nn.Module, configs: set[int]) -> Iterator[None]:
    """Set the model to the registered name while any thread, or a model of its config, needs it."""
    shared = id(model.config)
    with _lock:
        count, original = _users.get(shared, (0, model.config._attn_implementation))
        if not count:
            model.set_attn_implementation(NAME)
            _original.update(dict.fromkeys(configs, original))
        _users[shared] = (count + 1, original)
    try:
        yield
    finally:
        with _lock:
            count, original = _users.pop(shared)
            if count > 1:
                _users[shared] = (count - 1, original)
            else:
                model.set_attn_implementation(original)
                for config in configs:
                    _original.pop(config, None)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    route = _routes.of_module.get(module)
    if route is None:
        kernel = ALL_ATTENTION_FUNCTIONS.get(_original.get(id(module.config)), None)
        kernel = sdpa_attention_forward if kernel in (None, _attention) else kernel
        return kernel(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return route.function(route.layer, module, query, key, value, attention_mask, scaling)


def _mask(*args: Any, config: Any = None, **kwargs: Any) -> Tensor | None:
    if not _routes.of_config[id(config)]:
        original = _original.get(id(config), "sdpa")
        return ALL_MASK_ATTENTION_FUNCTIONS[original](*args, config=config, **kwargs)
    # Without a mask the function could not know that a decoder is causal.
    return sdpa_mask(*args, config=config, **{**kwargs, "allow_is_causal_skip": False})


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)


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
    if mask is None:
        return 0.0
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero, torch.finfo(dtype).min)


def weights_of(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Attention weights A = softmax(s·Q·Kᵀ + mask), `(batch, heads, queries, keys)`.

    Computed in float32 at least, and returned in the query's dtype.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query @ with_all_heads(key, query).transpose(-2, -1)).to(wide) * scaling
    return torch.softmax(scores + additive(mask, wide), dim=-1).to(query.dtype)


def combine(weights: Tensor, value: Tensor) -> Tensor:
    """Attention output A·V as the model wants it: `(batch, tokens, heads, size)`."""
    value = with_all_heads(value, weights)
    return (weights @ value).transpose(1, 2).contiguous()


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
) -> Tensor:
    """`combine(weights_of(…), value)` by the fused kernel, which never holds A in memory."""
    key, value = with_all_heads(key, query), with_all_heads(value, query)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return output.transpose(1, 2).contiguous()
