"""One attention call, and functions that answer it: fused, step by step, recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
        return AttentionCall(self.layer, query, key, value, self.mask, self.scaling)

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
        if self.mask is not None:
            scores = scores + additive(self.mask, scores.dtype)
        return softmax(scores, -1).to(self.query.dtype)

    def combined(self, weights: Tensor) -> Tensor:
        """A·V in the model's layout: `(batch, tokens, heads, size)`."""
        value = with_all_heads(self.value, self.query)
        return (weights @ value).transpose(1, 2).contiguous()


# An attention function returns the output `(batch, tokens, heads, size)`, and A or None for it; or
# None alone, which leaves the call to the model.
AttentionFunction = Callable[[AttentionCall], tuple[Tensor, Tensor | None] | None]


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
        calls: each layer's call, its factors in the graph.
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
        self.calls.append(call)
        self.outputs.append(output)
        self.weights.append(weights)
        return output, weights


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


def in_steps(
    module: nn.MultiheadAttention,
    inner: Callable[..., tuple[Tensor, Tensor | None]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Answer torch's attention module by linear maps and the fused kernel instead of in one call.

    `inner` is its forward pass, which answers what is asked for weights, or of no batch, or of a
    module with keys of another width or a bias among them.
    """
    apart = module.bias_k is not None or module.add_zero_attn or not module._qkv_same_embed_dim
    if apart or need_weights or query.dim() != 3:
        masks = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
        return inner(query, key, value, need_weights=need_weights, **masks, **kwargs)
    given = [query, key, value]
    if not module.batch_first:
        given = [states.transpose(0, 1) for states in given]
    biases = [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    maps = zip(given, module.in_proj_weight.chunk(3), biases, strict=True)
    heads = [F.linear(*each).unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for each in maps]
    if attn_mask is not None and attn_mask.dim() == 3:
        attn_mask = attn_mask.unflatten(0, (-1, module.num_heads))
    if key_padding_mask is not None:
        key_padding_mask = key_padding_mask[:, None, None]
    hidden = [mask for mask in (attn_mask, key_padding_mask) if mask is not None]
    # torch's own mask says what is hidden, the kernel's what is seen.
    summands = [
        additive(~mask if mask.dtype == torch.bool else mask, query.dtype) for mask in hidden
    ]
    dropout = module.dropout if module.training else 0.0
    mask = sum(summands) if summands else None
    mixed = F.scaled_dot_product_attention(*heads, attn_mask=mask, dropout_p=dropout)
    output = module.out_proj(mixed.transpose(1, 2).flatten(2))
    return (output if module.batch_first else output.transpose(0, 1)), None
