"""Small models of every covered architecture: untrained ones, and those the package carries.

The text models share the embedded classifier's tokenizer and read its word embeddings E through a
matrix P of their own, W = E·P, so that each is stored in some 40 kB. They were trained by
`experiments/small_models.py` to compare architectures with one another, and say nothing about
pretrained models of these families. As in chapter 2, weights are stored in half precision and used
in float64: the same numbers on every processor.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from experiments.images import ImageData, load_images
from lrputils.model.architectures import describe
from lrputils.model.attention import AttentionCall
from lrputils.model.classifier import Classifier, load_classifier

_ASSETS = Path(__file__).parent / "assets/small_models"
# Family → its classifier in transformers, and its language model where it is a decoder's.
FAMILIES = {
    "bert": ("BertForSequenceClassification",),
    "roberta": ("RobertaForSequenceClassification",),
    "xlm_roberta": ("XLMRobertaForSequenceClassification",),
    "mpnet": ("MPNetForSequenceClassification",),
    "electra": ("ElectraForSequenceClassification",),
    "distilbert": ("DistilBertForSequenceClassification",),
    "albert": ("AlbertForSequenceClassification",),
    "gpt2": ("GPT2ForSequenceClassification", "GPT2LMHeadModel"),
    "llama": ("LlamaForSequenceClassification", "LlamaForCausalLM"),
    "mistral": ("MistralForSequenceClassification", "MistralForCausalLM"),
    "qwen2": ("Qwen2ForSequenceClassification", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3ForSequenceClassification", "Qwen3ForCausalLM"),
    "gemma3": ("Gemma3TextForSequenceClassification", "Gemma3ForCausalLM"),
    "vit": ("ViTForImageClassification",),
}
# What the package carries: name → its family, and how many training seeds.
SHIPPED = {
    "bert": ("bert", 5),
    "bert-linear": ("bert", 5),
    "vit": ("vit", 5),
    "vit-linear": ("vit", 5),
    "roberta": ("roberta", 1),
    "gpt2": ("gpt2", 1),
    "llama": ("llama", 1),
    "qwen3": ("qwen3", 1),
    "planted": ("bert", 3),
}
LINEAR = "-linear"  # ends the names of those trained without a softmax, with `linear`
VOCABULARY = 40  # of the untrained ones
RULE_VOCABULARY = 24  # [PAD], [CLS], [SEP], five tokens that decide, neutral ones
# Chapter 8's models, which say what the rule says, as options of `build`.
PLANTED = {
    "vocab_size": RULE_VOCABULARY,
    "intermediate_size": 64,
    "max_position_embeddings": 10,
    "initializer_range": 0.2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
POSITIONS = 64
_SIZE = 32
# What a family has of its own: images in ten classes, layers of two kinds.
_OWN: dict[str, dict[str, Any]] = {
    "vit": {"num_labels": 10},
    "gemma3": {"sliding_window": 512, "sliding_window_pattern": 2},
}
_SHAPE = {
    "hidden_size": _SIZE,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": _SIZE,
    "initializer_range": 0.1,  # of this width; BERT's 0.02 is for 768
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
    "num_labels": 2,
    "num_key_value_heads": 2,
    "sliding_window": None,
    "image_size": 8,
    "patch_size": 2,
    "num_channels": 1,
}


def build(family: str, seed: int = 0, **settings: float) -> PreTrainedModel:
    """A random classifier of a family in float64, two layers of width 32, in evaluation mode.

    `settings` are of its configuration, as `configured` takes them.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = configured(family, **settings)
    return model.double().eval().requires_grad_(False)


def configured(family: str, *, head: int = 0, **settings: Any) -> PreTrainedModel:
    """A new model of a family, as torch's random numbers come, with this one of its heads.

    `settings` are of its configuration, by BERT's names where the family has others. What they
    leave open is as small as `build` says; images have 8 × 8 pixels in ten classes.
    """
    own = _OWN.get(family, {}) | settings
    shape = _SHAPE | own
    shape |= {
        "n_inner": shape["intermediate_size"],  # GPT-2's name
        "hidden_dim": shape["intermediate_size"],  # DistilBERT's
        "embedding_size": shape["hidden_size"] // 2,
        "head_dim": shape["hidden_size"] // shape["num_attention_heads"],
    }
    model = getattr(transformers, FAMILIES[family][head])
    fields = model.config_class()
    known = {name: value for name, value in shape.items() if hasattr(fields, name)}
    return model(model.config_class(**known | own))


def load(name: str, seed: int = 0, folder: str | Path = _ASSETS) -> Classifier | PreTrainedModel:
    """A trained small model of `SHIPPED` in float64: a classifier of texts, or a bare model.

    Those of images and of the planted rule have no tokenizer; ValueError for a name or seed not
    there.
    """
    family, seeds = SHIPPED.get(name, ("", 0))
    if not 0 <= seed < seeds:
        known = ", ".join(f"{name} ({seeds} seeds)" for name, (_, seeds) in SHIPPED.items())
        raise ValueError(f"no small model {name!r} of seed {seed}; there are {known}")
    stored = load_file(Path(folder) / f"{name}.safetensors")
    start = f"{seed}."
    state = {n.removeprefix(start): t.double() for n, t in stored.items() if n.startswith(start)}
    if "projection" not in state:
        model = build(family, **(PLANTED if name == "planted" else {}))
        model.load_state_dict(state)
        return model
    words = _vectors().double() @ state.pop("projection").T
    model = build(family, vocab_size=len(words))
    state[f"{_word_embeddings(model)}.weight"] = words
    model.load_state_dict(state)
    model.config.id2label = {0: "negative", 1: "positive"}
    return Classifier(model, _reviewer().tokenizer, f"{name}, seed {seed}")


def linear(call: AttentionCall) -> tuple[Tensor, None]:
    """Attention without a softmax, O = s·Q·Kᵀ·V / 8 over the keys that a query sees."""
    weights = call.scores() * call.seen() / 8
    return call.combined(weights.to(call.value.dtype)), None


def save(models: dict[int, PreTrainedModel], name: str, folder: str | Path = _ASSETS) -> Path:
    """Write one model's training seeds in half precision; return the file.

    Of a text model's word embeddings, which are `projected`, P is stored.
    """
    tensors: dict[str, Tensor] = {}
    for seed, model in models.items():
        words = _word_embeddings(model)
        for path, tensor in model.state_dict().items():
            path = path.replace(f"{words}.1.weight", "projection")
            if path != f"{words}.0.weight":
                tensors[f"{seed}.{path}"] = tensor.half().contiguous()
    path = Path(folder) / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return path


def projected() -> nn.Sequential:
    """Word embeddings E·P of which P is learned, for training."""
    table = _vectors()
    learned = nn.Linear(table.shape[1], _SIZE, bias=False)
    return nn.Sequential(nn.Embedding.from_pretrained(table), learned)


def _vectors() -> Tensor:
    """E, the embedded classifier's word embeddings over their standard deviation, float32."""
    words = describe(_reviewer().model).word_embeddings.weight.detach()
    return words / words.std()


def images(count: int | None = None) -> tuple[dict[str, Tensor], ImageData]:
    """The first test digits as the small ViT takes them, in float64, and the data."""
    data = load_images("digits", side=8)
    return {"pixel_values": pixels(data.test_images[:count]).double()}, data


def pixels(grey: object) -> Tensor:
    """Grey levels `(images, 64)` from 0 to 1 as pixel values `(images, 1, 8, 8)`, −1 to 1."""
    return torch.as_tensor(grey).reshape(-1, 1, 8, 8) * 2 - 1


@cache
def _reviewer() -> Classifier:
    return load_classifier(device="cpu")


def _word_embeddings(model: PreTrainedModel) -> str:
    """The path of the word embeddings from the whole model."""
    words = describe(model).word_embeddings
    return next(path for path, module in model.named_modules() if module is words)
