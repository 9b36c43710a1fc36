import gzip
import urllib.request
from urllib.error import URLError

import numpy as np
import pytest
from PIL import Image

from experiments.images import load_images


def write_idx(path, values):
    header = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    content = header + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_half(folder, stem, count, end="", size=28):
    pixels = np.random.default_rng(0).integers(0, 256, (count, size, size))
    write_idx(folder / f"{stem}-images-idx3-ubyte{end}", pixels)
    write_idx(folder / f"{stem}-labels-idx1-ubyte{end}", np.arange(count) % 10)
    return (pixels / 255).astype(np.float32)


def test_digits_are_split_without_overlap_and_always_alike():
    data = load_images()
    assert data.train_images.shape == (1527, 196)
    assert data.test_images.shape == (270, 196)
    assert data.classes == 10
    assert 0 <= data.test_images.min() <= data.test_images.max() <= 1
    assert (load_images("digits").test_labels == data.test_labels).all()


@pytest.mark.parametrize(("size", "side"), [(28, 14), (8, 14), (7, 5), (6, 6)])
def test_both_halves_keep_the_published_split_and_are_resized_as_by_pillow(tmp_path, size, side):
    pixels = write_half(tmp_path, "train", 30, size=size)
    write_half(tmp_path, "t10k", 20, ".gz")
    data = load_images(tmp_path, side=side)
    assert data.note == "the published split, 30 / 20"
    assert len(data.test_labels) == 20
    theirs = Image.fromarray(pixels[4]).resize((side, side), Image.Resampling.BILINEAR)
    assert data.train_images[4] == pytest.approx(np.array(theirs).ravel(), abs=1e-6)


def test_folder_with_one_half_is_split_and_says_so(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    write_half(raw, "t10k", 100, ".gz")
    data = load_images(str(tmp_path), side=7)
    assert (len(data.train_labels), len(data.test_labels)) == (85, 15)
    assert "test half only" in data.name
    assert data.note == "100 images, split 85 / 15"


def test_no_such_folder_and_empty_folder_name_the_way_out(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"dataset='mnisst' .* pass dataset='digits'"):
        load_images("mnisst")
    with pytest.raises(FileNotFoundError, match="holds no pair like 't10k-images"):
        load_images(tmp_path)
    with pytest.raises(ValueError, match="side=1"):
        load_images(side=1)


@pytest.mark.parametrize(
    ("of", "broken", "sentence"),
    [
        ("images-idx3", lambda whole: whole[:-5], "t10k-images-idx3-ubyte is cut short"),
        ("images-idx3", lambda whole: b"<html>" + whole, "is not an IDX file"),
        ("images-idx3", lambda whole: gzip.compress(whole)[:-20], "cannot be unpacked"),
        ("labels-idx1", lambda whole: whole[:7] + b"\x09" + whole[8:-1], "10 images, .* 9 labels"),
    ],
)
def test_broken_files_are_named(tmp_path, of, broken, sentence):
    write_half(tmp_path, "t10k", 10)
    path = tmp_path / f"t10k-{of}-ubyte"
    content = broken(path.read_bytes())
    path.unlink()
    path.with_suffix(".gz" if "unpacked" in sentence else "").write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        load_images(tmp_path)


def test_mnist_without_network_says_what_to_do(tmp_path, monkeypatch):
    def refused(*args, **options):
        raise URLError("no route")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", refused)
    with pytest.raises(ConnectionError, match=r"not be downloaded: .* pass dataset='digits'"):
        load_images("mnist")
