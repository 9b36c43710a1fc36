"""Loading classifiers: what is ready, what is the same on every machine, what is refused."""

import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import lrputils as lrp
from experiments.attention import correct
from lrputils.data import files
from lrputils.data.texts import load_texts
from lrputils.model.classifier import EMBEDDED, NAME, load_classifier
from tests import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small BERT as `save_pretrained` writes it, in half precision."""
    clf = tiny.classifier(layers=1, positions=40)
    clf.model.half()
    return tiny.save(clf, tmp_path_factory.mktemp("small-bert"))


def test_a_folder_is_ready_to_be_attributed(folder):
    clf = load_classifier(folder)
    assert (clf.name, clf.revision) == (folder.name, None)
    assert not clf.model.training
    assert {p.dtype for p in clf.model.parameters()} == {torch.float32}
    assert not any(p.requires_grad for p in clf.model.parameters())
    assert load_classifier(str(folder), dtype="float64").model.dtype == torch.float64
    with pytest.raises(ValueError, match="has 40 positions"):
        clf.encode("word " * 50)
    with pytest.warns(UserWarning, match="computes in bfloat16"):
        assert load_classifier(folder, dtype=torch.bfloat16).model.dtype == torch.bfloat16


def test_the_identity_follows_the_weights(folder):
    clf = load_classifier(folder)
    assert clf.identity == load_classifier(folder).identity
    assert clf.identity.startswith("sha256 ")
    with torch.no_grad():
        clf.model.classifier.bias[0] += 1
    clf.model.register_buffer("scale", torch.tensor(1.5))  # as quantised models have
    assert lrp.Classifier(clf.model, clf.tokenizer, "x").identity != clf.identity


def test_the_package_s_own_model_is_what_its_card_says():
    embedded = load_classifier()
    card = (EMBEDDED / "README.md").read_text()
    assert embedded.name == NAME
    assert embedded.architecture.layers == 12
    assert sum(path.stat().st_size for path in EMBEDDED.iterdir()) < 16e6
    for name in ("reviews", "reviews-long"):
        texts = lrp.load_texts(name)
        unknown = embedded.encode(texts)["input_ids"] == embedded.tokenizer.unk_token_id
        assert not unknown.any()
        right = correct(embedded, texts).mean()
        (row,) = re.findall(rf"^\| {name} \| {len(texts)} \| ([\d.]+)% ", card, re.M)
        # Two texts may stand on the edge on another processor.
        assert abs(100 * right - float(row)) <= 100 * 2.1 / len(texts)


def test_only_what_is_needed_is_downloaded():
    parts = ["model-1-of-2.safetensors", "model-2-of-2.safetensors", "model.safetensors.index.json"]
    assert files._needed([*parts, "pytorch_model.bin", "pytorch_model.bin.index.json"]) == parts
    others = ["config.json", "pytorch_model.bin", "tf_model.h5", "onnx/model.safetensors", "README"]
    assert files._needed(others) == ["config.json", "pytorch_model.bin"]


def cache_with(tmp_path, kind, files):
    """A hub cache on disk that holds one repository, as a download leaves it."""
    repository = tmp_path / f"{kind}s--somebody--things"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    for name, content in files.items():
        (snapshot / name).write_text(content)


def test_a_cached_model_and_cached_texts_load_without_a_network(folder, tmp_path, monkeypatch):
    cache_with(tmp_path, "model", {})
    snapshot = tmp_path / "models--somebody--things" / "snapshots" / ("0" * 40)
    for file in folder.iterdir():
        (snapshot / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    clf = load_classifier("somebody/things")
    assert clf.name == "somebody/things"
    assert clf.revision == "0" * 40
    assert clf.identity == f"commit {'0' * 40}"
    cache_with(tmp_path, "dataset", {"test.json": '[{"text": "a film"}]'})
    assert load_texts("somebody/things").identity == clf.identity


@pytest.mark.parametrize(
    ("load", "parameter"), [(load_classifier, "model"), (lrp.load_texts, "dataset")]
)
def test_without_network_and_cache_one_clear_error_in_seconds(
    load, parameter, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://localhost:9")
    monkeypatch.setattr(files, "_PATIENCE", 2.0)
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=f"`{parameter}` also takes a local folder"):
        load("somebody/things")
    assert time.monotonic() - start < 10
    assert capfd.readouterr() == ("", "")


def test_labels_are_classes_in_every_spelling(classifier):
    given = ["Positive", 1, "1", 1.0, None, float("nan"), 2.5, "great", [0, 1], np.array([1])]
    numbers = classifier.number_labels(given)
    assert numbers == [1, 1, 1, 1] + [None] * 6
    with pytest.warns(UserWarning, match=r"4 of 10 labels name no class: 2\.5, great, \[0, 1\]"):
        classifier.warn_of_labels(given, numbers)
    given = ["ok"] * 9 + ["fair"]
    said = r"10 of 10 labels name no class: ok, fair; .* --labels ok=CLASS.* labels=\{'ok': 'CLASS'"
    with pytest.warns(UserWarning, match=said):
        classifier.warn_of_labels(given, [None] * 10)
    classifier.warn_of_labels(["negative", None], [0, None])
    renamed = classifier.number_labels(["gut", 0, "x"], {"gut": "Positive"})
    assert renamed == [1, 0, None]
    with pytest.raises(ValueError, match=r"\['great'\] are none of the classes negative, positive"):
        classifier.number_labels(["gut"], {"gut": "great"})


def test_a_pipeline_and_a_model_at_hand_are_taken_as_they_are(classifier):
    pipe = SimpleNamespace(model=classifier.model, tokenizer=classifier.tokenizer)
    for given in ((pipe,), (classifier.model, classifier.tokenizer)):
        found = load_classifier(*given)
        assert (found.model, found.tokenizer) == (classifier.model, classifier.tokenizer)
