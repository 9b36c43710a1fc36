"""Families of transformers whose exact leave-one-out has shortcuts: the names of their parts.

Data: no other module tests for a family's name. What a rule is placed at is an operation, whatever
the family (`lrputils.model.operations`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput


@dataclass(frozen=True)
class Family:
    """All that tells one transformers model family from another.

    Paths of parts start at the backbone, those of `norm_after_attention` and `projections` at a
    block; classes are named as in the family's module,
    `transformers.models.<name>`.

    Attributes:
        name: the family's name in transformers.
        heads: classes of the whole models that are covered.
        blocks: the list of blocks.
        embedding_norm: the LayerNorm right after the embeddings' sum, if there is one.
        norm_after_attention: the first norm behind attention whose input is the residual stream;
            None where blocks are shared, so that the last layer's cannot be told from the others'.
        projections: the linear layers that give queries, keys and values, one head's beside the
            other's, and the one behind attention; None where they are not such layers of an
            encoder, or of one layer only.
        shared_blocks: whether blocks come in groups that compute several layers each.
        causal: whether a token sees only itself and the tokens before it; the head then reads the
            last token's final state, else the first one's.
        vision: whether the tokens are image patches behind one [CLS] token.
        token_types: whether the model takes `token_type_ids`.
        positions_after_padding: whether positions count from `pad_token_id + 1`, not from 0.
        parts: whether its parts are known, so that there are shortcuts for them.
        relative_positions: makes a forward pass, of the module that holds the blocks, for tokens
            of given columns, where the model's own counts those of the batch.
    """

    name: str
    heads: tuple[str, ...] = ()
    blocks: str = ""
    embedding_norm: str | None = None
    norm_after_attention: str | None = None
    projections: tuple[str, str, str, str] | None = None
    shared_blocks: bool = False
    causal: bool = False
    vision: bool = False
    token_types: bool = False
    positions_after_padding: bool = False
    parts: bool = True
    relative_positions: Callable | None = None


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
    blocks="encoder.layer",
    embedding_norm="embeddings.LayerNorm",
    norm_after_attention="attention.output.LayerNorm",
    projections=(
        *(f"attention.self.{name}" for name in ("query", "key", "value")),
        "attention.output.dense",
    ),
    token_types=True,
)


def _roberta_like(name: str, prefix: str) -> Family:
    return replace(
        _BERT,
        name=name,
        heads=(f"{prefix}ForSequenceClassification",),
        positions_after_padding=True,
    )


def _llama_like(name: str, prefix: str) -> Family:
    return Family(
        name,
        (f"{prefix}ForSequenceClassification", f"{prefix}ForCausalLM"),
        blocks="layers",
        norm_after_attention="post_attention_layernorm",
        causal=True,
    )


FAMILIES = {
    family.name: family
    for family in (
        _BERT,
        _roberta_like("roberta", "Roberta"),
        _roberta_like("xlm_roberta", "XLMRoberta"),
        replace(
            _roberta_like("mpnet", "MPNet"),
            norm_after_attention="attention.LayerNorm",
            projections=tuple(f"attention.attn.{name}" for name in "qkvo"),
            token_types=False,
            relative_positions=_mpnet_at_columns,
        ),
        replace(_BERT, name="electra", heads=("ElectraForSequenceClassification",)),
        replace(
            _BERT,
            name="distilbert",
            heads=("DistilBertForSequenceClassification",),
            blocks="transformer.layer",
            norm_after_attention="sa_layer_norm",
            projections=tuple(f"attention.{name}_lin" for name in ("q", "k", "v", "out")),
            token_types=False,
        ),
        replace(
            _BERT,
            name="albert",
            heads=("AlbertForSequenceClassification",),
            blocks="encoder.albert_layer_groups",
            norm_after_attention=None,
            projections=None,
            shared_blocks=True,
        ),
        Family(
            "gpt2",
            ("GPT2ForSequenceClassification", "GPT2LMHeadModel"),
            blocks="h",
            norm_after_attention="ln_2",
            causal=True,
        ),
        _llama_like("llama", "Llama"),
        _llama_like("mistral", "Mistral"),
        _llama_like("qwen2", "Qwen2"),
        _llama_like("qwen3", "Qwen3"),
        replace(
            _llama_like("gemma3", "Gemma3"),
            heads=("Gemma3TextForSequenceClassification", "Gemma3ForCausalLM"),
            norm_after_attention="pre_feedforward_layernorm",
        ),
        Family(
            "vit",
            ("ViTForImageClassification",),
            blocks="layers",
            norm_after_attention="layernorm_after",
            projections=tuple(f"attention.{name}_proj" for name in "qkvo"),
            vision=True,
        ),
    )
}
