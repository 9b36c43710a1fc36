"""Whatever is typed or handed over: an answer or one sentence, no traceback, and nothing is run."""

import gzip
import json
import os
import shutil
import tracemalloc
import unicodedata
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import lrputils as lrp
from lrputils.book.layout import BookError, find_book
from lrputils.book.notebooks import read_text
from lrputils.book.parameters import check_given, declared, from_command_line, load_parameters
from lrputils.data import files
from lrputils.model.classifier import EMBEDDED, load_classifier
from tests import tiny
from tests.net.surface import said

CHAPTERS = list(find_book().chapters().values())
few = settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def shell(classifier, monkeypatch, tmp_path, no_hub):
    """Run a command in an empty folder, with a small model for the book's own."""
    monkeypatch.setattr(
        "lrputils.model.classifier.load_classifier",
        lambda name=None, **_: load_classifier(name) if name else classifier,
    )
    monkeypatch.chdir(tmp_path)
    return lambda *words: said(list(words))


def check(status: int, out: str, err: str) -> None:
    """Hold an ended command to the rule above."""
    assert status in (0, 1, 2)
    if status == 1:
        assert not out
        assert err.startswith("lrputils: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
    hidden = [c for c in out if unicodedata.category(c)[0] == "C" and c != "\n"]
    assert not hidden


@few
@given(
    text=st.text(st.characters(), max_size=60),
    methods=st.sampled_from(["loo", "attnlrp,rollout", "", "loo,", "ig;ls"]) | st.text(max_size=5),
    target=st.sampled_from(["0", "1", "2", "positive", "-1", "²", "٣"]) | st.text(max_size=3),
    longest=st.sampled_from(["512", "513", "3", "2", "1", "0", "-5", "9" * 30, "x"]),
)
@example("\ud800", "loo", "0", "512")
@example("\x1b[2J\u202e\u200b\x00<b>$x$", "loo", "0", "512")
@example("-", "loo", "0", "512")
def test_explain_takes_any_words(shell, text, methods, target, longest):
    options = [f"--methods={methods}", f"--target={target}", f"--max-length={longest}"]
    check(*shell("explain", *options, "--", "" if text == "-" else text))


def test_a_huge_text_is_refused_or_cut(shell):
    text = f"{'a' * 2**17} \u202e\u200b{' never dull' * 2**13}"
    check(*shell("explain", "--methods=rollout", text))
    status, out, _ = shell("explain", "--methods=rollout", "--max-length=8", text)
    assert status == 0
    assert len(out) < 2**12


def test_a_page_is_written_where_it_is_told(shell, tmp_path):
    assert shell("explain", "a film", "--methods=ig", "--html", "x.html")[1] == "x.html\n"
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


@few
@given(
    verb=st.sampled_from(["evaluate --dry-run"]),
    option=st.sampled_from(["--dataset", "--model", "--split", "--limit", "--methods", "--out"]),
    value=st.sampled_from(["", ".", "/", "~", "none.csv", "a/b/c", "a/b@", "x\x00", "nan", "-1"])
    | st.text(max_size=12).filter(lambda text: not set(text) & set("/~")),
)
def test_no_option_s_value_ends_in_a_traceback(shell, verb, option, value):
    check(*shell(*verb.split(), "--limit=1", "--dataset=none.csv", f"{option}={value}"))


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
chapters = st.sampled_from(["_all", *(chapter.stem for chapter in CHAPTERS)])
names = st.sampled_from(["model", "limit", "dataset", "text", "methods", "values", "device"])
values = plain | st.lists(plain, max_size=3) | st.dictionaries(plain, plain, max_size=2)


@few
@given(st.dictionaries(chapters, st.dictionaries(names, values, max_size=3) | plain, max_size=3))
def test_a_profile_is_taken_or_refused(shell, tmp_path, content):
    path = tmp_path / "mine.yml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    with suppress(BookError):
        load_parameters(find_book(), str(path))


@few
@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
@example(b"\xff")
@example(b"&a [*a]")
@example(b"? {a: b}\n: c")
@example(b"2001-99-99")
@example(b"[" * 9999)
def test_any_file_is_a_profile_or_refused(tmp_path, content):
    path = tmp_path / "mine.yml"
    path.write_bytes(content)
    with suppress(BookError):
        load_parameters(find_book(), str(path))


@few
@given(st.sampled_from(CHAPTERS), names | st.text(max_size=5), st.text(max_size=20))
def test_a_parameter_is_taken_or_refused(chapter, name, value):
    notebook = read_text(chapter)
    with suppress(BookError):
        parameters = declared(notebook)
        check_given(parameters, chapter.stem, from_command_line([f"{name}={value}"], parameters))


class Harm:
    """What a pickle runs when it is read."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def _rewrite(path, **changes):
    known = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(known | changes))


def _pickled(folder, marker):
    (folder / "model.safetensors").unlink()
    torch.save({"x": Harm(marker)}, folder / "pytorch_model.bin")
    torch.save(Harm(marker), folder / "training_args.bin")


def _own_code(folder, marker):
    for module in ("configuration_x", "modeling_x", "tokenization_x"):
        (folder / f"{module}.py").write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    parts = {
        "AutoConfig": "configuration_x.X",
        "AutoModelForSequenceClassification": "modeling_x.X",
    }
    _rewrite(folder / "config.json", auto_map=parts)
    kind = {"tokenizer_class": "X", "auto_map": {"AutoTokenizer": ["tokenization_x.X", None]}}
    _rewrite(folder / "tokenizer_config.json", **kind)


def _code_from_the_hub(folder, _):
    _rewrite(folder / "config.json", _attn_implementation="owner/kernel")


def _markup(folder, _):
    labels = {"0": "<img src=x onerror=alert(1)>", "1": "\x1b]0;own\x07\u202e"}
    _rewrite(folder / "config.json", id2label=labels)


@pytest.mark.parametrize(
    "spoil",
    [_pickled, _own_code, _code_from_the_hub, _markup],
    ids=["pickle", "code", "hub", "markup"],
)
def test_a_model_folder_runs_nothing(shell, tmp_path, spoil):
    folder, marker = tmp_path / "model", tmp_path / "harm"
    tiny.save(tiny.classifier(layers=1), folder)
    spoil(folder, marker)
    status, out, err = shell("explain", "--model", str(folder), "--methods=rollout", "a film")
    check(status, out, err)
    assert not marker.exists()
    if status == 0:
        page = lrp.explain(load_classifier(folder), "a film")._repr_mimebundle_()["text/html"]
        assert "<img" not in page
    shutil.rmtree(folder)


def test_an_index_of_weights_stays_in_its_folder(tmp_path):
    folder, outside = (
        shutil.copytree(EMBEDDED, tmp_path / "model"),
        tmp_path / "outside.safetensors",
    )
    shutil.move(folder / "model.safetensors", outside)
    with safe_open(outside, "pt") as weights:
        names = [*weights.keys()]
    for place in ("../outside.safetensors", str(outside), "a/../../outside.safetensors"):
        told = {"metadata": {}, "weight_map": dict.fromkeys(names, place)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(told))
        with pytest.raises(ValueError, match=r"outside\.safetensors, which lies outside of it"):
            load_classifier(folder, device="cpu")


def write_packed(path, text):
    """Write one text as the file's name says."""
    table = pa.table({"text": [text]})
    kind = path.name.split(".")[1]
    if kind == "parquet":
        pq.write_table(table, path, compression="zstd")
    elif kind == "arrow":
        write = pa.ipc.new_stream if path.stem == "stream" else pa.ipc.new_file
        with write(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as sink:
            sink.write_table(table)
    else:
        whole = {"csv": f'text\n"{text}"\n', "txt": f"{text}\n"}.get(kind, f'{{"text": "{text}"}}')
        path.write_bytes(gzip.compress(whole.encode()))


@pytest.mark.parametrize(
    "name",
    ["a.csv.gz", "a.txt.gz", "a.json.gz", "a.jsonl.gz", "a.parquet", "a.arrow", "stream.arrow"],
)
def test_a_small_file_that_unpacks_to_a_large_one(name, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MOST", 2**20)
    path = tmp_path / name
    for size, kept in ((2**18, True), (2**23, False)):
        write_packed(path, "a" * size)
        if kept:
            assert max(map(len, lrp.load_texts(path))) == size
        else:
            before = pa.total_allocated_bytes()
            tracemalloc.start()
            with pytest.raises(ValueError, match=r"unpack to more than 1 MB: unpack it yourself"):
                lrp.load_texts(path)
            assert tracemalloc.get_traced_memory()[1] < 2**23
            assert pa.total_allocated_bytes() - before < 2**20
            tracemalloc.stop()
