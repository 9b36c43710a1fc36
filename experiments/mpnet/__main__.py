"""Assemble a recorded twelve-layer classifier: `python -m experiments.mpnet sst2 DIR`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
import transformers
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from torch import Tensor, nn

from experiments.command import main

_BASE = "sentence-transformers/all-mpnet-base-v2"
_SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
_ADAPTERS = {
    "sst2": "4ab90aa25ac4111c22bdeda16bf5944a7b4d7e27d9d65e7bf3c70bbf7d11ee69",
    "imdb": "236901698c9b21785dbb10cfa1029eb19d323dd73be29a4be90c3a482848c09f",
    "sst2-6": "1800075dcafd782a95d2ec6e1c2a0c3836259538e12e41e8a26f59b0bd046b82",
}
_SCALE = 2  # α / r of the adapters: α = 16, rank r = 8
_FILES = ["config.json", "model.safetensors", "tokenizer*", "vocab.txt", "special_tokens_map.json"]


def assemble(base: Path, adapter: Path, out: Path) -> Path:
    """Write the base with the adapter and its head merged in, float32, into `out`; return it.

    Args:
        base: a folder with an MPNet encoder and its tokenizer.
        adapter: safetensors; `NAME.A` (rank, in) and `NAME.B` (out, rank) for a linear map NAME,
            whose weight becomes W + 2·B·A (Hu et al., 2021), and `classifier.h.*`, the head.
        out: the folder of the classifier.
    """
    names = ("negative", "positive")
    model = transformers.MPNetForSequenceClassification.from_pretrained(
        base,
        num_labels=2,
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
        dtype=torch.float32,
    )
    _merge(model, load_file(adapter))
    model.save_pretrained(out)
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(out)
    return out


@torch.no_grad()
def _merge(model: nn.Module, adapter: Mapping[str, Tensor]) -> None:
    """Add each low-rank product to its weight, in float64, and copy the head."""
    for name, tensor in adapter.items():
        if name.endswith(".A"):
            weight = model.get_submodule(name[:-2]).weight
            change = _SCALE * adapter[f"{name[:-1]}B"].double() @ tensor.double()
            weight.copy_((weight.double() + change).float())
        elif name.startswith("classifier.h."):
            model.get_parameter(name.replace(".h.", ".")).copy_(tensor.float())


def make(
    task: Literal["imdb", "sst2", "sst2-6"], out: Path, /, *, base: Path | None = None
) -> Path:
    """Assemble a twelve-layer classifier of the recorded runs.

    Args:
        task: imdb, sst2 or sst2-6
        out: the classifier's folder; 440 MB
        base: a folder with sentence-transformers/all-mpnet-base-v2 (default: from the hub)

    Raises:
        ValueError: a file is another than the recorded runs used.
    """
    adapter = Path(__file__).parent / f"{task}.safetensors"
    base = base or Path(snapshot_download(_BASE, allow_patterns=_FILES))
    for path, used in ((adapter, _ADAPTERS[task]), (base / "model.safetensors", _SHA256)):
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        if sha256 != used:
            raise ValueError(
                f"{path} has sha256 {sha256[:12]}…, the recorded runs used {used[:12]}…"
            )
    return assemble(base, adapter, out)


if __name__ == "__main__":
    main(make, "python -m experiments.mpnet")
