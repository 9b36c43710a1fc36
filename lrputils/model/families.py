"""The supported transformers families: the names of their parts, and the modules they use.

Data, and which operation each module is: no other module tests for a family's name, or for the
class of a norm or activation. A new family is one entry here and, where it brings an operation that
no rule covers, a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from transformers import activations
from transformers.modeling_outputs import BaseModelOutput
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True)
class Family:
    """All that tells one transformers model family from another.

    Paths of parts start at the backbone, those of `attention`, `norm_after_attention` and
    `projections` at a block; classes are named as in the family's module,
    `transformers.models.<name>`.

    Attributes:
        name: the family's name in transformers.
        heads: classes of the whole models that are covered.
        blocks: the list of blocks.
        attention: the module that calls the attention function.
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
        operations: classes of its own → their operation (see `operation`): "norm", an RMSNorm
            x · gain / rms(x); "product", a SwiGLU block down(act(gate(x)) · up(x)); "head", one
            that calls `torch.tanh` as a function.
        gain: of its norms, how much more than their weight.
        own_attention: makes a forward pass for an attention module that does not go through
            transformers' interface.
        rules: whether its operations are known, so that there are rules for them.
        relative_positions: makes a forward pass, of the module that holds the blocks, for given
            positions, where the model's own counts columns.
    """

    name: str
    heads: tuple[str, ...] = ()
    blocks: str = ""
    attention: str = ""
    embedding_norm: str | None = None
    norm_after_attention: str | None = None
    projections: tuple[str, str, str, str] | None = None
    shared_blocks: bool = False
    causal: bool = False
    vision: bool = False
    token_types: bool = False
    positions_after_padding: bool = False
    operations: Mapping[str, str] = field(default_factory=dict)
    gain: float = 0.0
    own_attention: Callable | None = None
    rules: bool = True
    relative_positions: Callable | None = None

    def operation(self, module: nn.Module) -> str | None:
        """Which operation with rules of its own a module is: see `Composite`; None for the rest."""
        if isinstance(module, nn.LayerNorm):
            return "norm"
        if isinstance(module, ACTIVATIONS):
            return "activation"
        return self.operations.get(type(module).__name__)


def _mpnet_attention(attention: nn.Module, answer: Callable) -> Callable:
    """A forward pass of one attention module whose attention is what `answer` returns.

    MPNet's does not go through transformers' interface. Each of its scores gets a bias that depends
    on how far query and key are apart; to the rules it is a constant, a part of the mask.

    `answer(module, query, key, value, mask)` takes tensors `(batch, heads, tokens, size)` and a
    mask of summands, and returns the output `(batch, tokens, heads, size)` and the weights.
    """

    def _forward(
        inner: Callable,
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

    return _forward


def _mpnet_at_positions(encoder: nn.Module, positions: Tensor) -> Callable:
    """A forward pass of the encoder whose biases are those of the given positions, (batch, tokens).

    The model's own counts columns, so that after a deletion tokens would be too close.
    """

    def _forward(inner: Callable, hidden: Tensor, attention_mask: Any = None, **_: Any) -> Any:
        apart = positions[:, None, :] - positions[:, :, None]
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
    attention="attention.self",
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
        operations={f"{prefix}ClassificationHead": "head"},
    )


def _llama_like(name: str, prefix: str) -> Family:
    return Family(
        name,
        (f"{prefix}ForSequenceClassification", f"{prefix}ForCausalLM"),
        blocks="layers",
        attention="self_attn",
        norm_after_attention="post_attention_layernorm",
        causal=True,
        operations={f"{prefix}RMSNorm": "norm", f"{prefix}MLP": "product"},
    )


FAMILIES = {
    family.name: family
    for family in (
        _BERT,
        _roberta_like("roberta", "Roberta"),
        _roberta_like("xlm_roberta", "XLMRoberta"),
        replace(
            _roberta_like("mpnet", "MPNet"),
            attention="attention.attn",
            norm_after_attention="attention.LayerNorm",
            projections=tuple(f"attention.attn.{name}" for name in "qkvo"),
            token_types=False,
            own_attention=_mpnet_attention,
            relative_positions=_mpnet_at_positions,
        ),
        replace(_BERT, name="electra", heads=("ElectraForSequenceClassification",)),
        replace(
            _BERT,
            name="distilbert",
            heads=("DistilBertForSequenceClassification",),
            blocks="transformer.layer",
            attention="attention",
            norm_after_attention="sa_layer_norm",
            projections=tuple(f"attention.{name}_lin" for name in ("q", "k", "v", "out")),
            token_types=False,
        ),
        replace(
            _BERT,
            name="albert",
            heads=("AlbertForSequenceClassification",),
            blocks="encoder.albert_layer_groups",
            attention="attention",
            norm_after_attention=None,
            projections=None,
            shared_blocks=True,
        ),
        Family(
            "gpt2",
            ("GPT2ForSequenceClassification", "GPT2LMHeadModel"),
            blocks="h",
            attention="attn",
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
            gain=1.0,
        ),
        Family(
            "vit",
            ("ViTForImageClassification",),
            blocks="layers",
            attention="attention",
            norm_after_attention="layernorm_after",
            projections=tuple(f"attention.{name}_proj" for name in "qkvo"),
            vision=True,
        ),
    )
}

# Elementwise functions with f(0) = 0, so that f(x)/x, the identity rule's factor, stays bounded.
ACTIVATIONS = (
    nn.Tanh,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Hardswish,
    activations.GELUActivation,
    activations.NewGELUActivation,
    activations.GELUTanh,
    activations.FastGELUActivation,
    activations.QuickGELUActivation,
    activations.AccurateGELUActivation,
    activations.SiLUActivation,
    activations.MishActivation,
    activations.ReLUSquaredActivation,
    activations.LinearActivation,
)
LINEAR = (
    nn.Linear,
    Conv1D,
    nn.Conv2d,
    nn.Embedding,
    nn.Dropout,
    nn.Identity,
    nn.ModuleList,
    nn.Sequential,
)
