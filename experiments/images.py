"""Images for the linear attention chapter: grey levels in [0, 1], resized to a few tokens.

Three sources: scikit-learn's handwritten digits (in the installed package), torchvision's MNIST
(downloaded once), or a folder with MNIST's IDX files. It only reads and resizes; the network itself
scales the grey levels further.
"""

from __future__ import annotations

import gzip
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from lrputils.data.files import digest

Array = np.ndarray
_STEMS = {"train": "train", "test": "t10k"}
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
        part = digits.images / 16, digits.target.astype(np.int64)
        return _split("scikit-learn digits", side, [part])
    folder = _downloaded_mnist() if dataset == "mnist" else Path(dataset).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"dataset={str(dataset)!r} is neither a folder nor known; {_WAY_OUT}"
        )
    parts = {half: _read_half(folder, stem) for half, stem in _STEMS.items()}
    there = {half: part for half, part in parts.items() if part is not None}
    if not there:
        raise FileNotFoundError(
            f"{folder} holds no pair like 't10k-images-idx3-ubyte[.gz]' and "
            f"'t10k-labels-idx1-ubyte[.gz]'; {_WAY_OUT}"
        )
    name = "MNIST" if len(there) == 2 else f"MNIST ({next(iter(there))} half only)"
    return _split(name, side, [*there.values()])


def _split(name: str, side: int, parts: list[tuple[Array, Array]]) -> ImageData:
    """Resize both halves; of a single one, hold out 15%, the same images in every run.

    Growing, this is bilinear interpolation in float64; shrinking, the filter widens with the step,
    so that every pixel counts (as in Pillow and torchvision with antialiasing).
    """
    identity = digest(np.ascontiguousarray(array) for part in parts for array in part)
    triangle = {"mode": "bilinear", "antialias": True}
    parts = [
        (interpolate(torch.from_numpy(x)[:, None], (side, side), **triangle).flatten(1).numpy(), y)
        for x, y in parts
    ]
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


def _read_half(folder: Path, stem: str) -> tuple[Array, Array] | None:
    """Read one of MNIST's halves, grey levels in [0, 1] and labels; None if it is not there."""
    images = _find(folder, f"{stem}-images-idx3-ubyte")
    labels = _find(folder, f"{stem}-labels-idx1-ubyte")
    if images is None or labels is None:
        return None
    pixels, classes = _read_idx(images, 3), _read_idx(labels, 1)
    if len(pixels) != len(classes):
        raise ValueError(f"{images} holds {len(pixels)} images, {labels} {len(classes)} labels")
    return pixels / 255.0, classes.astype(np.int64)


def _find(folder: Path, name: str) -> Path | None:
    """Return the file in the folder, or in the folders below it that torchvision makes."""
    places = [folder, folder / "raw", folder / "MNIST" / "raw"]
    candidates = [place / f"{name}{end}" for place in places for end in ("", ".gz")]
    return next((path for path in candidates if path.is_file()), None)


def _read_idx(path: Path, dimensions: int) -> Array:
    """Read an IDX file of unsigned bytes: magic 0, 0, 8, dimensions; sizes; values.

    torchvision has a reader too, which does not take `.gz` and does not say what is wrong.
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
    from torchvision.datasets import MNIST

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lrputils"
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(5)  # seconds that a mirror may be silent; torchvision sets no limit
    try:
        MNIST(cache, download=True)
    except (RuntimeError, OSError) as error:
        raise ConnectionError(
            "dataset='mnist' is not on this computer and could not be downloaded: connect to a "
            f"network, or {_WAY_OUT} ({error})"
        ) from error
    finally:
        socket.setdefaulttimeout(before)
    return cache
