"""The supported transformers families: the names of their parts, and the modules they use.

Data only. `architectures.describe` reads it; a new family is one entry here and, where it brings an
operation that no rule covers yet, a rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import activations
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True)
class Family:
    """Names of the parts inside one transformers model family; paths start at the backbone."""

    name: str
    heads: tuple[str, ...]
    blocks: str
    attention: str
    word_embeddings: str
    embedding_norm: str | None = None
    causal: bool = False
    position_offset: int = 0


_BERT_LIKE = {
    "blocks": "encoder.layer",
    "attention": "attention.self",
    "word_embeddings": "embeddings.word_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
}
_LLAMA_LIKE = {
    "blocks": "layers",
    "attention": "self_attn",
    "word_embeddings": "embed_tokens",
    "causal": True,
}

FAMILIES = {
    family.name: family
    for family in (
        Family("bert", ("BertForSequenceClassification",), **_BERT_LIKE),
        Family("roberta", ("RobertaForSequenceClassification",), **_BERT_LIKE),
        Family("electra", ("ElectraForSequenceClassification",), **_BERT_LIKE),
        Family(
            "distilbert",
            ("DistilBertForSequenceClassification",),
            **{**_BERT_LIKE, "blocks": "transformer.layer", "attention": "attention"},
        ),
        Family(
            "albert",
            ("AlbertForSequenceClassification",),
            **{**_BERT_LIKE, "blocks": "encoder.albert_layer_groups", "attention": "attention"},
        ),
        Family(
            "gpt2",
            ("GPT2ForSequenceClassification", "GPT2LMHeadModel"),
            blocks="h",
            attention="attn",
            word_embeddings="wte",
            causal=True,
        ),
        Family("llama", ("LlamaForSequenceClassification", "LlamaForCausalLM"), **_LLAMA_LIKE),
        Family("qwen2", ("Qwen2ForSequenceClassification", "Qwen2ForCausalLM"), **_LLAMA_LIKE),
        Family(
            "vit",
            ("ViTForImageClassification",),
            blocks="layers",
            attention="attention",
            word_embeddings="embeddings",
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


def is_rms_norm(module: nn.Module) -> bool:
    """Whether a module is the RMSNorm of a supported family: x · weight / rms(x)."""
    return type(module).__name__ in ("LlamaRMSNorm", "Qwen2RMSNorm")


def is_gated_mlp(module: nn.Module) -> bool:
    """Whether a module is the SwiGLU block of a supported family: down(act(gate(x)) · up(x))."""
    return type(module).__name__ in ("LlamaMLP", "Qwen2MLP")
