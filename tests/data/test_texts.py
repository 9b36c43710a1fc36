"""Loading texts from every kind of source, and what a mistake is answered with."""

import time
import tracemalloc
from collections import deque
from types import SimpleNamespace
from unittest import mock

import datasets
import pandas as pd
import pytest

from lrputils.data import files
from lrputils.data.texts import Texts, load_texts, stream_texts

TABLE = pd.DataFrame(
    {
        "id": ["a", "b", "c", "d"],
        "text": ["one", "two words", "three words here", "NA"],
        "label": [0, 1, 0, 1],
    }
)


def streamed(path, size=3, **options):
    """Put the parts of a stream together."""
    stream = stream_texts(path, **options)
    parts = [*stream.parts(size)]
    assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
    ids, texts, labels = (
        tuple(value for part in parts for value in getattr(part, name))
        for name in ("ids", "texts", "labels")
    )
    return Texts(texts, labels, ids, stream.name, stream.identity)


def test_what_save_to_disk_wrote_and_a_dict_of_data_sets_have_splits(tmp_path):
    parts = {"train": TABLE[:1], "test": TABLE[1:]}
    held = datasets.DatasetDict({k: datasets.Dataset.from_pandas(t) for k, t in parts.items()})
    held.save_to_disk(tmp_path / "all", num_shards={"train": 1, "test": 2})
    held["test"].save_to_disk(tmp_path / "one")
    for given in (held, tmp_path / "all", tmp_path / "one"):
        texts = load_texts(given)
        assert (texts.ids, texts.labels) == (("b", "c", "d"), (1, 0, 1))
    for given in (held, tmp_path / "all"):
        assert load_texts(given, split="train").texts == ("one",)
        with pytest.raises(ValueError, match=r"no split 'dev': choose from \['test', 'train'\]"):
            load_texts(given, split="dev")
    single = next((tmp_path / "one").glob("*.arrow"))
    assert load_texts(single).texts == tuple(TABLE["text"][1:])


def test_texts_at_hand_are_known_by_what_they_are():
    first, second = load_texts(TABLE), load_texts(TABLE.assign(label=1))
    assert first.identity == load_texts(TABLE.copy()).identity != second.identity
    assert load_texts(first, limit=2).ids == ("a", "b")
    parts = stream_texts(TABLE).parts(1)
    assert {part.identity for part in parts} == {first.identity}
    renamed = TABLE.rename(columns={"text": "words", "label": "stars"})
    assert load_texts(renamed, "words, stars") == first


def folder_of(tmp_path, **splits):
    for split, table in splits.items():
        table.to_parquet(tmp_path / f"{split.replace('_', '-')}.parquet")
    return tmp_path


def test_a_folder_has_a_file_a_split(tmp_path):
    folder = folder_of(tmp_path, train=TABLE[:1], test=TABLE[1:2], validation=TABLE[2:])
    texts = load_texts(folder)
    assert (texts.ids, texts.name) == (("c", "d"), f"{tmp_path.name} [validation]")
    assert load_texts(folder, split="train").ids == ("a",)
    with pytest.raises(ValueError, match=r"no split 'dev': choose from \['test', 'train', 'val"):
        load_texts(folder, split="dev")


def test_a_folder_may_name_a_split_and_a_file_no_split_at_all(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    folder_of(tmp_path / "train", part_0=TABLE[:2], part_1=TABLE[2:])
    folder_of(tmp_path / "test", part_0=TABLE[:1])
    assert load_texts(tmp_path).ids == ("a",)
    assert load_texts(tmp_path, split="train").ids == ("a", "b", "c", "d")
    (tmp_path / "plain").mkdir()
    folder_of(tmp_path / "plain", first=TABLE[:1], second=TABLE[1:])
    assert load_texts(tmp_path / "plain").ids == ("a", "b", "c", "d")


README = """---
configs:
- {config_name: set-one, data_files: [{split: test, path: one.parquet}]}
- {config_name: set-two, data_files: [{split: test, path: two.parquet}]}
---
"""


def test_a_readme_tells_subsets_and_splits(tmp_path):
    folder_of(tmp_path, one=TABLE[:1], two=TABLE[1:])
    (tmp_path / "README.md").write_text(README)
    assert load_texts(tmp_path, subset="set-two").ids == ("b", "c", "d")
    several = r"several subsets: choose from \['set-one', 'set-two'\]"
    for subset, words in ((None, several), ("x", "no subset 'x'")):
        with pytest.raises(ValueError, match=words):
            load_texts(tmp_path, subset=subset)


def test_limit_and_shuffling(tmp_path):
    folder = folder_of(tmp_path, test_00000_of_00002=TABLE[:1], test_00001_of_00002=TABLE[1:])
    for options in ({}, {"limit": 2}, {"limit": 99}, {"limit": 3, "seed": 1}):
        assert streamed(folder, **options) == load_texts(folder, **options), options
    shuffled = load_texts(folder, seed=0)
    assert sorted(shuffled.ids) == ["a", "b", "c", "d"] != list(shuffled.ids)
    assert load_texts(folder, seed=0, limit=2).ids == shuffled.ids[:2]
    with pytest.raises(ValueError, match="limit=0"):
        load_texts(folder, limit=0)


def test_what_a_limit_leaves_out_of_a_reader_s_draw_is_said(tmp_path, capsys):
    folder = folder_of(tmp_path, test=TABLE)
    for options in ({"limit": 4}, {"limit": 2}, {}):
        load_texts(folder, **{"seed": 0, **options})
    load_texts("reviews", seed=0, limit=2)
    assert capsys.readouterr().err == "2 of 4 texts (limit=2)\n"


def test_a_stream_reads_what_is_asked_for_and_no_more(tmp_path):
    path = tmp_path / "many.csv"
    path.write_text("text,label\n" + "a film,1\n" * 50_000 + "2012,0\n")
    parts = stream_texts(path).parts(64)
    tracemalloc.start()
    (last,) = deque(parts, maxlen=1)
    assert tracemalloc.get_traced_memory()[1] < 3e6
    tracemalloc.stop()
    # Not a number, though nothing else stands in the last part.
    assert (last.texts[-1], last.ids[-1]) == ("2012", "50000")


@pytest.mark.parametrize("empty", ["", "  \n", None, float("nan"), 3])
def test_an_empty_text_is_named(tmp_path, empty):
    table = TABLE.assign(text=pd.Series(["fine", "fine", empty, "fine"], dtype=object))
    path = tmp_path / "x.json"
    table.to_json(path, orient="records")
    assert len(load_texts(path, limit=2)) == 2
    with pytest.raises(ValueError, match="has no text in row 2 of column 'text'"):
        load_texts(path)


def test_a_folder_without_data_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no"):
        load_texts(tmp_path)


@pytest.fixture
def api(monkeypatch):
    """A hub that knows one data set."""
    known = ["README.md", "data/test-00000-of-00001.parquet", ".gitattributes", ".x/a.csv"]
    siblings = [SimpleNamespace(rfilename=name) for name in known]
    api = mock.Mock()
    api.return_value.repo_info.return_value = SimpleNamespace(sha="c0ffee", siblings=siblings)
    monkeypatch.setattr(files, "HfApi", api)
    return api.return_value


def test_a_data_set_of_the_hub_and_its_commit(api, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    TABLE.to_parquet(tmp_path / "data" / "test-00000-of-00001.parquet")
    download = mock.Mock(return_value=str(tmp_path))
    monkeypatch.setattr(files, "snapshot_download", download)
    texts = load_texts("somebody/things@v2")
    assert (texts.name, texts.identity) == ("somebody/things [test]", "commit c0ffee")
    wanted = ["README.md", "data/test-00000-of-00001.parquet"]
    options = {"repo_type": "dataset", "revision": "c0ffee", "allow_patterns": wanted}
    download.assert_called_once_with("somebody/things", **options)
    assert api.repo_info.call_args.kwargs["revision"] == "v2"
    with pytest.raises(ValueError, match="name two revisions"):
        load_texts("somebody/things@v2", revision="v1")


def test_a_name_server_that_never_answers_is_not_waited_for(api, monkeypatch):
    api.repo_info.side_effect = lambda *args, **options: time.sleep(5)
    monkeypatch.setattr(files, "_PATIENCE", 0.05)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/nonexistent")
    start = time.monotonic()
    with pytest.raises(ConnectionError, match="no answer within"):
        load_texts("somebody/things")
    assert time.monotonic() - start < 2


PLACES = ("./x", "../x", "/x/y", "~/x", "a/b/c", "x/", "models/x", "models", "a b", ".", "x.zip")


@pytest.mark.parametrize("name", [*PLACES, "bert-base-uncased", "stanfordnlp/sst2", "a_b/c.d-1"])
def test_what_is_a_path_and_what_a_name_on_the_hub(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    assert files.is_path(name) == (name in PLACES)
