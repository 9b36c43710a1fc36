"""Families of transformers whose exact leave-one-out has shortcuts: what no look at a model tells.

Data: no other module tests for a family's name. What a rule is placed at is an operation, whatever
the family (`lrputils.model.operations`); what can be seen of a model is seen there
(`lrputils.model.architectures`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput


@dataclass(frozen=True)
class Family:
    """What a model shares with those of its family.

    Paths of parts start at a block; classes are named as in the family's module,
    `transformers.models.<name>`.

    Attributes:
        name: the family's name in transformers.
        heads: classes of the whole models that are covered.
        norm_after_attention: the first norm behind attention whose input is the residual stream;
            None where blocks are shared, so that the last layer's cannot be told from the others'.
        projections: the linear layers that give queries, keys and values, one head's beside the
            other's, and the one behind attention; None where they are not such layers of an
            encoder, or of one layer only.
        vision: whether the tokens are image patches behind one [CLS] token.
        relative_positions: makes a forward pass, of the module that holds the blocks, for tokens
            of given columns, where the model's own counts those of the batch.
        parts: whether its parts are known, so that there are shortcuts for them.
        causal: whether a token sees only itself and the tokens before it; the head then reads the
            last token's final state, else the first one's. This and the next are seen in a model.
        token_types: whether the model takes `token_type_ids`.
        positions_after_padding: whether positions count from `pad_token_id + 1`, not from 0.
    """

    name: str
    heads: tuple[str, ...] = ()
    norm_after_attention: str | None = None
    projections: tuple[str, str, str, str] | None = None
    vision: bool = False
    relative_positions: Callable | None = None
    parts: bool = True
    causal: bool = False
    token_types: bool = False
    positions_after_padding: bool = False


def _mpnet_at_columns(encoder: nn.Module, columns: Tensor) -> Callable:
    """A forward pass of the encoder whose biases are those of the given columns, (batch, tokens).

    The model's own are of the batch's columns, so that after a deletion tokens would be too close.
    """

    def _forward(inner: Callable, hidden: Tensor, attention_mask: Any = None, **_: Any) -> Any:
        apart = columns[:, None, :] - columns[:, :, None]
        bucket = encoder.relative_position_bucket(apart)
        bias = encoder.relative_attention_bias(bucket).permute(0, 3, 1, 2)
        for layer in encoder.layer:
            hidden = layer(hidden, attention_mask, bias)[0]
        return BaseModelOutput(last_hidden_state=hidden)

    return _forward


_BERT = Family(
    "bert",
    ("BertForSequenceClassification",),
    norm_after_attention="attention.output.LayerNorm",
    projections=(
        *(f"attention.self.{name}" for name in ("query", "key", "value")),
        "attention.output.dense",
    ),
)


def _decoder(name: str, prefix: str, norm: str = "post_attention_layernorm") -> Family:
    heads = f"{prefix}ForSequenceClassification", f"{prefix}ForCausalLM"
    return Family(name, heads, norm_after_attention=norm)


FAMILIES = {
    family.name: family
    for family in (
        _BERT,
        replace(_BERT, name="roberta", heads=("RobertaForSequenceClassification",)),
        replace(_BERT, name="xlm_roberta", heads=("XLMRobertaForSequenceClassification",)),
        Family(
            "mpnet",
            ("MPNetForSequenceClassification",),
            norm_after_attention="attention.LayerNorm",
            projections=tuple(f"attention.attn.{name}" for name in "qkvo"),
            relative_positions=_mpnet_at_columns,
        ),
        replace(_BERT, name="electra", heads=("ElectraForSequenceClassification",)),
        Family(
            "distilbert",
            ("DistilBertForSequenceClassification",),
            norm_after_attention="sa_layer_norm",
            projections=tuple(f"attention.{name}_lin" for name in ("q", "k", "v", "out")),
        ),
        Family("albert", ("AlbertForSequenceClassification",)),
        Family(
            "gpt2",
            ("GPT2ForSequenceClassification", "GPT2LMHeadModel"),
            norm_after_attention="ln_2",
        ),
        _decoder("llama", "Llama"),
        _decoder("mistral", "Mistral"),
        _decoder("qwen2", "Qwen2"),
        _decoder("qwen3", "Qwen3"),
        replace(
            _decoder("gemma3", "Gemma3", "pre_feedforward_layernorm"),
            heads=("Gemma3TextForSequenceClassification", "Gemma3ForCausalLM"),
        ),
        Family(
            "vit",
            ("ViTForImageClassification",),
            norm_after_attention="layernorm_after",
            projections=tuple(f"attention.{name}_proj" for name in "qkvo"),
            vision=True,
        ),
    )
}
