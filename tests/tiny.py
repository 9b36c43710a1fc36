"""Tiny random models of every covered architecture, and inputs for them. Tests only."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

import torch

from experiments import zoo
from lrputils.model.families import FAMILIES

if TYPE_CHECKING:  # transformers comes after lrputils, which keeps torchvision importable
    from transformers import PreTrainedModel

PAD, FIRST, LAST, MASK = 1, 2, 3, 4
VOCABULARY = 40
LABELS = 3

_SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "num_labels": LABELS,
    "initializer_range": 0.4,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
    "bos_token_id": FIRST,
    "eos_token_id": LAST,
}

# A family, or a family and "-lm" for its language model.
NAMES = tuple(
    f"{name}{end}" for name, family in FAMILIES.items() for end in ("", "-lm")[: len(family.heads)]
)
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

    `changes` are of its configuration, by the names that BERT's has for them. A copy of one that is
    built once, with the random numbers where building leaves them.
    """
    model, numbers = _built(name, dtype, seed, tuple(sorted(changes.items())))
    torch.set_rng_state(numbers)
    return copy.deepcopy(model)


@cache
def _built(
    name: str, dtype: torch.dtype, seed: int, changes: tuple[tuple[str, object], ...]
) -> tuple[PreTrainedModel, torch.Tensor]:
    torch.manual_seed(seed)
    family = name.removesuffix("-lm")
    shape = _SHAPE | ({"patch_size": 4} if family == "vit" else {}) | dict(changes)
    model = zoo.configured(family, head=int(name != family), **shape)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.dim() == 1:
                center = float("norm" in path.lower() and path.endswith("weight"))
                parameter.normal_(center, 0.3)
    return model.to(dtype).eval().requires_grad_(False), torch.get_rng_state()


def made(name: str, head: str = "ForSequenceClassification", **settings: object) -> PreTrainedModel:
    """A random model of transformers' class of this name and head, in evaluation mode."""
    import transformers  # after lrputils, which keeps torchvision importable

    torch.manual_seed(0)
    kind = getattr(transformers, name + head)
    return kind(kind.config_class(**settings)).eval().requires_grad_(False)


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


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    """Whether no entry is further off than a share of the largest expected one."""
    largest = max(float(expected.abs().max()), 1e-9)
    return float((found - expected).abs().max()) <= tolerance * largest
