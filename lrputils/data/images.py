"""Images for the linear attention chapter: grey levels in [0, 1], resized to a few tokens.

Three sources: scikit-learn's handwritten digits (in the installed package), torchvision's MNIST
(downloaded once), or a folder with MNIST's IDX files. It only reads and resizes; the network itself
scales the grey levels further.
"""

from __future__ import annotations

import gzip
import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from lrputils.data.files import digest

Array = np.ndarray
_HALVES = {"train": "train", "test": "t10k"}
_HELD_OUT = 0.15
_WAY_OUT = "pass dataset='digits' (no files needed), 'mnist', or a folder with MNIST's IDX files"


@dataclass(frozen=True)
class ImageData:
    """Images as rows of grey levels, split into a training and a test part.

    Images are float64 (images, side²), 0 black to 1 white, row by row; labels int64 (images,),
    classes counted from 0. `note` says how the split was made; `identity` is "sha256 …" of the
    pixels and labels as read.
    """

    name: str
    note: str
    side: int
    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array
    identity: str = ""

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1


def load_images(dataset: str | os.PathLike = "digits", *, side: int = 14) -> ImageData:
    """Return the images of `dataset`, resized to `side` × `side`; 14 in the paper, so 196 tokens.

    "digits" are scikit-learn's 1,797 handwritten digits of 8 × 8; "mnist" is torchvision's copy,
    downloaded on first use; else a folder with IDX files (plain or `.gz`), both halves or one. A
    single half, like the digits, is split 85% / 15% by a fixed permutation.

    Raises:
        ConnectionError: "mnist" is not there yet and no mirror answers.
        FileNotFoundError: `dataset` is neither a known name nor a folder, or holds no IDX pair.
        ValueError: a file is not in IDX format, or images and labels do not match.
    """
    if side < 2:
        raise ValueError(f"side={side}: an image needs 2 × 2 pixels or more")
    if dataset == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        return _split("scikit-learn digits", side, [(digits.images / 16, digits.target)])
    if dataset == "mnist":
        return _from_folder(_downloaded_mnist(), side)
    folder = Path(dataset).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"dataset={str(dataset)!r} is neither a folder nor known; {_WAY_OUT}"
        )
    return _from_folder(folder, side)


def resize(images: Array, side: int) -> Array:
    """Resize (images, height, width) to (images, side, side) by the triangle filter, in float64.

    Growing, this is bilinear interpolation; shrinking, the filter widens with the step, so that
    every pixel counts (as in Pillow and torchvision with antialiasing).
    """
    pixels = torch.from_numpy(images)[:, None]
    return interpolate(pixels, (side, side), mode="bilinear", antialias=True)[:, 0].numpy()


def _split(name: str, side: int, parts: list[tuple[Array, Array]]) -> ImageData:
    """Resize both halves; of a single one, hold out 15%, the same images in every run."""
    identity = digest(np.ascontiguousarray(array) for part in parts for array in part)
    parts = [(resize(x, side).reshape(len(x), -1), y.astype(np.int64)) for x, y in parts]
    how = "the published split,"
    if len(parts) == 1:
        ((images, labels),) = parts
        cut = len(images) - round(_HELD_OUT * len(images))
        halves = np.split(np.random.default_rng(0).permutation(len(images)), [cut])
        parts = [(images[rows], labels[rows]) for rows in halves]
        how = f"{len(images):,} images, split"
    train, test = parts
    note = f"{how} {len(train[1]):,} / {len(test[1]):,}"
    return ImageData(name, note, side, *train, *test, identity)


def _from_folder(folder: Path, side: int) -> ImageData:
    """Read the halves of MNIST that the folder holds, grey levels in [0, 1]."""
    parts = {}
    for half, stem in _HALVES.items():
        images, labels = (
            _find(folder, f"{stem}-{of}-ubyte") for of in ("images-idx3", "labels-idx1")
        )
        if images is None or labels is None:
            continue
        pixels, classes = _read_idx(images, 3), _read_idx(labels, 1)
        if len(pixels) != len(classes):
            raise ValueError(f"{images} holds {len(pixels)} images, {labels} {len(classes)} labels")
        parts[half] = pixels / 255.0, classes.astype(np.int64)
    if not parts:
        raise FileNotFoundError(
            f"{folder} holds no pair like 't10k-images-idx3-ubyte[.gz]' and "
            f"'t10k-labels-idx1-ubyte[.gz]'; {_WAY_OUT}"
        )
    name = "MNIST" if len(parts) == 2 else f"MNIST ({next(iter(parts))} half only)"
    return _split(name, side, [*parts.values()])


def _find(folder: Path, name: str) -> Path | None:
    """Return the file in the folder, or in the folders below it that torchvision makes."""
    places = [folder, folder / "raw", folder / "MNIST" / "raw"]
    candidates = [place / f"{name}{end}" for place in places for end in ("", ".gz")]
    return next((path for path in candidates if path.is_file()), None)


def _read_idx(path: Path, dimensions: int) -> Array:
    """Read an IDX file of unsigned bytes: magic 0, 0, 8, dimensions; sizes; values.

    torchvision has a reader too, but is an optional dependency and does not take `.gz`.
    """
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        try:
            content = file.read()
        except (OSError, EOFError) as error:
            raise ValueError(f"{path} cannot be unpacked: {error}") from error
    if content[:4] != bytes([0, 0, 8, dimensions]):
        raise ValueError(f"{path} is not an IDX file of bytes with {dimensions} dimension(s)")
    start = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(content[4:start], ">u4").astype(int))
    values = np.frombuffer(content[start:], np.uint8)
    if len(shape) != dimensions or values.size != np.prod(shape):
        raise ValueError(f"{path} is cut short: {values.size} values for shape {shape}")
    return values.reshape(shape)


def _downloaded_mnist() -> Path:
    """Return the folder of torchvision's MNIST, after downloading it on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lrputils"
    if all(_find(cache, f"{s}-images-idx3-ubyte") for s in _HALVES.values()):
        return cache
    from torchvision.datasets import MNIST

    _require_network(MNIST.mirrors)
    try:
        MNIST(cache, train=True, download=True)
    except (RuntimeError, OSError) as error:
        raise ConnectionError(f"MNIST could not be downloaded ({error}); {_WAY_OUT}") from error
    return cache


def _require_network(mirrors: list[str], seconds: float = 4.0) -> None:
    """Fail early: torchvision itself takes long to fail and names no alternative."""
    for mirror in mirrors:
        request = urllib.request.Request(
            f"{mirror}t10k-labels-idx1-ubyte.gz", method="HEAD", headers={"User-Agent": "lrputils"}
        )
        try:
            urllib.request.urlopen(request, timeout=seconds).close()
        except OSError:
            continue
        return
    raise ConnectionError(
        "dataset='mnist' is not on this computer and no mirror answers; connect to a network, or "
        "pass dataset='digits' or a folder with MNIST's IDX files"
    )
