import gzip
import time

import numpy as np
import pytest
from PIL import Image

from lrputils.data import images
from lrputils.data.images import load_images, resize


def write_idx(path, values):
    header = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    content = header + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_half(folder, stem, count, end="", seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 28, 28))
    write_idx(folder / f"{stem}-images-idx3-ubyte{end}", pixels)
    write_idx(folder / f"{stem}-labels-idx1-ubyte{end}", np.arange(count) % 10)
    return pixels / 255


@pytest.mark.parametrize(("size", "side"), [(28, 14), (8, 14), (7, 5), (6, 6)])
def test_resize_is_pillows_triangle_filter(size, side):
    picture = np.random.default_rng(1).random((size, size)).astype(np.float32)
    theirs = Image.fromarray(picture).resize((side, side), Image.Resampling.BILINEAR)
    ours = resize(picture[None].astype(float), side)[0]
    assert ours == pytest.approx(np.array(theirs), abs=1e-6)


def test_digits_are_split_without_overlap_and_always_alike():
    data = load_images()
    assert data.train_images.shape == (1527, 196)
    assert data.test_images.shape == (270, 196)
    assert data.classes == 10
    assert data.train_images.dtype == np.float64
    assert 0 <= data.test_images.min() <= data.test_images.max() <= 1
    again = load_images("digits")
    assert (again.test_labels == data.test_labels).all()


def test_folder_with_both_halves_keeps_the_published_split(tmp_path):
    pixels = write_half(tmp_path, "train", 30)
    write_half(tmp_path, "t10k", 20, ".gz", seed=1)
    data = load_images(tmp_path)
    assert (len(data.train_labels), len(data.test_labels)) == (30, 20)
    assert data.train_images[4] == pytest.approx(resize(pixels[4:5], 14).ravel())
    assert data.note == "the published split, 30 / 20"


def test_folder_with_one_half_is_split_and_says_so(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    write_half(raw, "t10k", 100, ".gz")
    data = load_images(str(tmp_path), side=7)
    assert (len(data.train_labels), len(data.test_labels)) == (85, 15)
    assert data.train_images.shape[1] == 49
    assert "test half only" in data.name
    assert data.note == "100 images, split 85 / 15"


def test_no_such_folder_and_empty_folder_name_the_way_out(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"dataset='mnisst' .* pass dataset='digits'"):
        load_images("mnisst")
    with pytest.raises(FileNotFoundError, match="holds no pair like 't10k-images"):
        load_images(tmp_path)
    with pytest.raises(ValueError, match="side=1"):
        load_images(side=1)


def test_broken_files_are_named(tmp_path):
    write_half(tmp_path, "t10k", 10)
    file = tmp_path / "t10k-images-idx3-ubyte"
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    with pytest.raises(ValueError, match="t10k-images-idx3-ubyte is cut short"):
        load_images(tmp_path)
    file.write_bytes(b"<html>" + whole)
    with pytest.raises(ValueError, match="is not an IDX file"):
        load_images(tmp_path)
    file.write_bytes(whole)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.arange(9))
    with pytest.raises(ValueError, match=r"holds 10 images, .* 9 labels"):
        load_images(tmp_path)
    file.unlink()
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(whole)[:-20])
    with pytest.raises(ValueError, match="cannot be unpacked"):
        load_images(tmp_path)


def test_mnist_without_network_fails_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def refused(*args, **options):
        raise OSError("no route")

    monkeypatch.setattr(images.urllib.request, "urlopen", refused)
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=r"no mirror answers; .* pass dataset='digits'"):
        load_images("mnist")
    assert time.monotonic() - start < 10
