"""Tiny random models of every covered architecture, and inputs for them. Tests only."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cache

import torch

import lrputils  # noqa: F401  (before transformers: it keeps torchvision importable)

from transformers import (  # isort: skip
    AlbertConfig,
    AlbertForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MistralConfig,
    MistralForCausalLM,
    MistralForSequenceClassification,
    MPNetConfig,
    MPNetForSequenceClassification,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

PAD, FIRST, LAST, MASK = 1, 2, 3, 4
VOCABULARY = 40
LABELS = 3

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
    "num_labels": LABELS,
    "initializer_range": 0.4,
}
_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 16,
    "n_layer": 3,
    "n_head": 4,
    "n_inner": 24,
    "n_positions": 32,
    "pad_token_id": PAD,
    "bos_token_id": FIRST,
    "eos_token_id": LAST,
    "num_labels": LABELS,
    "initializer_range": 0.4,
}
_GROUPED = {**_COMMON, "num_key_value_heads": 2, "bos_token_id": FIRST, "eos_token_id": LAST}
_WINDOWLESS = {**_GROUPED, "sliding_window": None}
_DISTIL = {
    "vocab_size": VOCABULARY,
    "dim": 16,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 24,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
    "num_labels": LABELS,
    "initializer_range": 0.4,
}
_VIT = {
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 1,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "num_labels": LABELS,
    "initializer_range": 0.4,
}

_MODELS = {
    "bert": (BertForSequenceClassification, BertConfig, _COMMON),
    "roberta": (RobertaForSequenceClassification, RobertaConfig, _COMMON),
    "xlm_roberta": (XLMRobertaForSequenceClassification, XLMRobertaConfig, _COMMON),
    "mpnet": (MPNetForSequenceClassification, MPNetConfig, _COMMON),
    "distilbert": (DistilBertForSequenceClassification, DistilBertConfig, _DISTIL),
    "electra": (
        ElectraForSequenceClassification,
        ElectraConfig,
        {**_COMMON, "embedding_size": 8},
    ),
    "albert": (
        AlbertForSequenceClassification,
        AlbertConfig,
        {**_COMMON, "embedding_size": 8, "hidden_act": "gelu_new"},
    ),
    "gpt2": (GPT2ForSequenceClassification, GPT2Config, _GPT2),
    "gpt2-lm": (GPT2LMHeadModel, GPT2Config, _GPT2),
    "llama": (LlamaForSequenceClassification, LlamaConfig, _GROUPED),
    "llama-lm": (LlamaForCausalLM, LlamaConfig, _GROUPED),
    "mistral": (MistralForSequenceClassification, MistralConfig, _WINDOWLESS),
    "mistral-lm": (MistralForCausalLM, MistralConfig, _WINDOWLESS),
    "qwen2": (Qwen2ForSequenceClassification, Qwen2Config, _GROUPED),
    "qwen2-lm": (Qwen2ForCausalLM, Qwen2Config, _GROUPED),
    "qwen3": (Qwen3ForSequenceClassification, Qwen3Config, {**_GROUPED, "head_dim": 4}),
    "qwen3-lm": (Qwen3ForCausalLM, Qwen3Config, {**_GROUPED, "head_dim": 4}),
    "vit": (ViTForImageClassification, ViTConfig, _VIT),
}

NAMES = tuple(_MODELS)
TEXT_NAMES = tuple(name for name in NAMES if name != "vit")
WHOLLY = ("bert", "mpnet", "gpt2", "llama")


def cases(every: Iterable, few: Iterable, names: Iterable[str] = NAMES) -> list[tuple]:
    """The cases of a test: `every` one for four families, `few` for the others."""
    every, few = list(every), list(few)
    return [(name, case) for name in names for case in (every if name in WHOLLY else few)]


def build(
    name: str, *, dtype: torch.dtype = torch.float64, seed: int = 0, **changes: object
) -> PreTrainedModel:
    """A random model in evaluation mode; biases and norm weights are random, not 0 and 1.

    A copy of one that is built once, with the random numbers where building leaves them.
    """
    model, numbers = _built(name, dtype, seed, tuple(sorted(changes.items())))
    torch.set_rng_state(numbers)
    return copy.deepcopy(model)


@cache
def _built(
    name: str, dtype: torch.dtype, seed: int, changes: tuple[tuple[str, object], ...]
) -> tuple[PreTrainedModel, torch.Tensor]:
    model_class, config_class, settings = _MODELS[name]
    torch.manual_seed(seed)
    model = model_class(config_class(**{**settings, **dict(changes)}))
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.dim() == 1:
                center = float("norm" in path.lower() and path.endswith("weight"))
                parameter.normal_(center, 0.3)
    return model.to(dtype).eval().requires_grad_(False), torch.get_rng_state()


def without_biases(model: PreTrainedModel) -> PreTrainedModel:
    """The same model with every bias set to zero, in place."""
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("bias"):
                parameter.zero_()
    return model


def texts(lengths: tuple[int, ...] = (7, 4, 5), seed: int = 1) -> dict[str, torch.Tensor]:
    """Random texts `[first] … [last]`, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.full((len(lengths), width), PAD)
    mask = torch.zeros(len(lengths), width, dtype=torch.long)
    special = torch.ones(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(MASK + 1, VOCABULARY, (length,), generator=generator)
        mask[row, :length] = 1
        special[row, :length] = 0
        if length > 2:
            ids[row, 0], ids[row, length - 1] = FIRST, LAST
            special[row, 0] = special[row, length - 1] = 1
    return {"input_ids": ids, "attention_mask": mask, "special_tokens_mask": special}


def images(batch: int = 3, *, dtype: torch.dtype = torch.float64, seed: int = 1) -> dict:
    """Random images for the tiny ViT: 4 patches and [CLS]."""
    generator = torch.Generator().manual_seed(seed)
    return {"pixel_values": torch.randn(batch, 1, 8, 8, generator=generator, dtype=dtype)}


def inputs_for(name: str, **options: object) -> dict[str, torch.Tensor]:
    """Inputs that the model of this name takes."""
    return images(**options) if name == "vit" else texts(**options)


def row(inputs: dict[str, torch.Tensor], index: int) -> dict[str, torch.Tensor]:
    """One row alone, without its padding."""
    if "pixel_values" in inputs:
        return {"pixel_values": inputs["pixel_values"][index : index + 1]}
    kept = inputs["attention_mask"][index].bool()
    return {key: value[index : index + 1, kept] for key, value in inputs.items()}
