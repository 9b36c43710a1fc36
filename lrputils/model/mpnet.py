"""MPNet's attention, which does not go through transformers' interface, and its relative positions.

Each score gets a bias that depends on how far query and key are apart. To the rules it is a
constant: it comes to an attention function as part of the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

Forward = Callable[..., Any]


def calling(attention: nn.Module, answer: Forward) -> Forward:
    """A forward pass of one attention module whose attention is what `answer` returns.

    `answer(module, query, key, value, mask)` takes tensors `(batch, heads, tokens, size)` and a
    mask of summands, and returns the output `(batch, tokens, heads, size)` and the weights.
    """

    def forward(
        inner: Forward,
        hidden: Tensor,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple:
        shape = (*hidden.shape[:-1], -1, attention.attention_head_size)
        maps = (attention.q, attention.k, attention.v)
        factors = (linear(hidden).view(shape).transpose(1, 2) for linear in maps)
        summands = [part for part in (bias, mask) if part is not None]
        output, weights = answer(attention, *factors, sum(summands) if summands else None)
        output = attention.o(output.flatten(2))
        return (output, weights) if output_attentions else (output,)

    return forward


def at_positions(encoder: nn.Module, positions: Tensor) -> Forward:
    """A forward pass of the encoder whose biases are those of the given positions, (batch, tokens).

    The model's own counts columns, so that after a deletion tokens would be too close.
    """

    def forward(inner: Forward, hidden: Tensor, attention_mask: Any = None, **_: Any) -> Any:
        apart = positions[:, None, :] - positions[:, :, None]
        bucket = encoder.relative_position_bucket(apart)
        bias = encoder.relative_attention_bias(bucket).permute(0, 3, 1, 2)
        for layer in encoder.layer:
            hidden = layer(hidden, attention_mask, bias)[0]
        return BaseModelOutput(last_hidden_state=hidden)

    return forward
