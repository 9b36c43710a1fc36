"""Training: from texts to attribution, killed and gone on with; what is refused."""

from __future__ import annotations

import inspect
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

import lrputils as lrp
from lrputils import training
from lrputils.__main__ import _parser, main, train
from lrputils.data.texts import Texts
from lrputils.study.attention import correct
from tests import tiny

SHORT = shlex.split("--max-length 24 --epochs 0.5 --batch 16")
QUIET = ["--device", "cpu", "--quiet"]
TEXTS = shlex.split("--labels negative positive --data reviews --validation reviews")


def call(*words: str | Path) -> int:
    return main(["train", *map(str, words), *QUIET])


def saved(model, folder: Path) -> Path:
    """A base model to start from, with the tokenizer of the package's own classifier."""
    model.save_pretrained(folder)
    lrp.load_classifier().tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A small BERT without a trained head."""
    model = tiny.build("bert", dtype=torch.float32, vocab_size=8192, max_position_embeddings=64)
    return saved(model, tmp_path_factory.mktemp("base") / "small-bert")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The package's own classifier, tuned on the book's own reviews by the command line."""
    out = tmp_path_factory.mktemp("training") / "mini"
    assert call("--out", out, *TEXTS, *SHORT) == 0
    return out


def test_the_result_can_be_loaded_and_attributed(trained):
    clf, own = lrp.load_classifier(trained), lrp.load_classifier()
    assert clf.labels == ("negative", "positive")
    assert clf.tokenizer.get_vocab() == own.tokenizer.get_vocab()
    change = clf.model.classifier.weight - own.model.classifier.weight
    assert 0 < change.abs().max() < 0.01  # an output a class was there, and is kept
    inputs = clf.encode(["Friendly room, bright cooking."])
    assert lrp.attribute(clf.model, inputs, "attnlrp").isfinite().all()
    names = {path.name for path in trained.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert not [name for name in names if "partial" in name or name.startswith("training")]
    parameters = sum(p.numel() for p in clf.model.parameters())
    assert (trained / "model.safetensors").stat().st_size < 2 * parameters + 30_000  # halves


def test_the_card_says_what_was_done_and_not_where(trained):
    card = (trained / "README.md").read_text()
    clf, texts = lrp.load_classifier(trained), lrp.load_texts("reviews")
    for identity in (texts.identity, clf.identity):
        assert identity in card
    assert torch.__version__ in card
    assert "**It was trained on texts of the same file.**" in card
    assert str(trained.parent) not in card
    assert str(Path.home()) not in card
    right = correct(clf, texts, np.array(texts.labels)).mean()
    row = re.search(r"On reviews: ([\d.]+)% \[", card)
    assert float(row[1]) == pytest.approx(100 * right, abs=0.051)
    words = card.split("```sh\n")[1].split("```")[0]
    again, asked = shlex.split(words)[1:], ["train", "--out", "DIR", *TEXTS, *SHORT]
    assert _parser().parse_args(again) == _parser().parse_args(asked)


@pytest.fixture
def one_thread(monkeypatch):
    """Here and in processes: a pool of threads that was asked for later rounds otherwise."""
    threads = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_a_killed_run_gives_the_same_weights_by_the_same_command(base, tmp_path, capsys):
    out = tmp_path / "killed"
    options = ["--data", "reviews-long", "--base", str(base), "--max-length", "64"]
    options += shlex.split("--epochs 30 --batch 8")
    words = [sys.executable, "-m", "lrputils", "train", "--out", str(out), *options, *QUIET]
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < deadline:
        if any((out / "training").glob("checkpoint-[2-9]?")):
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors.decode()
    assert not (out / "config.json").exists()
    assert call("--out", out, *options, "--batch", "4") == 1
    assert "holds an unfinished training with batch = 8, now it is 4" in capsys.readouterr().err
    assert call("--out", out, *options) == 0
    assert not (out / "training").exists()
    assert call("--out", tmp_path / "whole", *options) == 0
    for name in ("model.safetensors", "tokenizer.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("labels", [(0, "good"), ("good", 0), (0.5, 1.5), (0, None)])
def test_labels_of_several_kinds_are_refused_by_name(labels):
    texts = Texts(("a film", "another"), labels, ("0", "1"), "mixed", "sha256 0")
    with pytest.raises(ValueError, match="'mixed' has labels that are not all integers, or not"):
        training._labels_of(texts)


def test_a_folder_that_holds_something_else_is_left_alone(trained, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert call("--out", tmp_path, *TEXTS, *SHORT) == 1
    assert "already holds something else" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert call("--out", trained, *TEXTS, *SHORT) == 1
    assert "already holds a model" in capsys.readouterr().err


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_base_model_is_taken_over(base, tmp_path, capsys, family):
    if family == "gpt2":
        config = GPT2Config(vocab_size=8192, n_positions=64, n_embd=32, n_layer=2, n_head=2)
        base = saved(GPT2ForSequenceClassification(config), tmp_path / "gpt2")
    options = ["--data", "reviews", "--base", base, *shlex.split("--epochs 0.2 --max-length 64")]
    assert call("--out", tmp_path / "tuned", *options, "--learning-rate", "1e-9") == 0
    clf, old = lrp.load_classifier(tmp_path / "tuned"), lrp.load_classifier(base)
    assert clf.labels == ("0", "1")
    for name, tensor in clf.model.base_model.state_dict().items():
        kept = old.model.base_model.state_dict()[name]
        torch.testing.assert_close(tensor, kept, atol=1e-3, rtol=0)
    card = (tmp_path / "tuned" / "README.md").read_text()
    assert re.search(rf"\| base model \| {base.name} \| – \| sha256 ", card)
    assert "| validation | reviews (held out) | 24 |" in card
    assert "of the same file" not in card
    capsys.readouterr()
    assert call("--out", tmp_path / "wide", *options, "--max-length", "256") == 1
    assert "--max-length 256 is more than the 64 positions" in capsys.readouterr().err


def test_a_loss_that_is_no_number_ends_the_training(base, tmp_path, capsys):
    options = ["--data", "reviews", "--base", base, "--max-length", "64"]
    assert call("--out", tmp_path / "out", *options, "--learning-rate", "1e30") == 1
    assert "the loss is nan after step" in capsys.readouterr().err


def test_a_half_written_checkpoint_is_passed_over(tmp_path):
    for step, state in ((9, '{"global_step": 9}'), (10, '{"global_st'), (11, None)):
        (folder := tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
    assert training._last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-9")


def test_texts_are_cut_of_a_pair_the_longer_side():
    tokenizer = lrp.load_classifier().tokenizer
    long, short = "one two three four five six seven", "a film"
    pair = Texts(((long, short), (short, long)), (1, 0), ("0", "1"), "pairs", "sha256 0")
    rows = training._rows(tokenizer, pair, 7)
    assert rows["label"][:] == [1, 0]
    for row, (left, right) in zip(rows, ((2, 2), (2, 2)), strict=True):
        assert len(row["input_ids"]) == 7
        assert row["token_type_ids"] == [0] * (left + 2) + [1] * (right + 1)


def test_a_tenth_is_held_out_and_a_folders_training_split_is_taken(tmp_path):
    data, held, names = training._load("reviews", None, "", (), 0)
    assert len(held) == 24
    assert sorted((*data.ids, *held.ids)) == sorted(lrp.load_texts("reviews").ids)
    assert names == ("0", "1")
    for name in ("train", "validation"):
        (tmp_path / f"{name}.csv").write_text("said,mood\n" + 5 * f"{name},b\n{name},a\n")
    with pytest.raises(ValueError, match=r"none of the columns .*'said', 'mood'"):
        training._load(str(tmp_path), None, "", (), 0)
    data, held, names = training._load(str(tmp_path), str(tmp_path), "said,mood", (), 0)
    assert (data.texts[0], held.texts[0], names) == ("train", "validation", ("a", "b"))
    assert data.labels[:2] == (1, 0)


def test_the_verb_shows_its_help_without_torch_and_its_examples_are_recipes():
    code = "import sys\nfrom lrputils.__main__ import main\nassert 'torch' not in sys.modules\n"
    shown = subprocess.run(
        [sys.executable, "-c", code + "main(['train', '--help'])"], capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr
    assert "lrputils train --data reviews.csv" in shown.stdout
    examples = inspect.getdoc(train).replace("\\\n", "")
    for words in re.findall(r"lrputils (train .*)", examples):
        assert _parser().parse_args(shlex.split(words)).out == Path("mine")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "nowhere/texts.csv"], "there is no such file"),
        (["--data", "{plain}"], "plain.csv' has no labels"),
        (
            ["--data", "reviews", "--validation", "{named}"],
            r"has labels \['bad', 'good'\] that 'reviews' lacks",
        ),
        (["--data", "{same}"], "has no two different labels"),
        (["--data", "{few}"], "has 3 texts, too few to hold some out"),
        (["--data", "reviews", "--labels", "a", "b", "c"], "--labels a,b,c names 3 classes"),
        (["--data", "reviews", "--epochs", "0"], "--epochs 0.0 must be above 0"),
        (["--data", "reviews", "--batch", "-1"], "--batch -1: the smallest possible value is 1"),
        (["--data", "reviews", "--base", "./nowhere"], "'./nowhere': there is no such file"),
    ],
)
def test_mistakes_are_refused_before_anything_is_made(options, message, tmp_path, capsys):
    files = {"plain": "text\nfine\ndull\n", "named": "text,label\nfine,good\ndull,bad\n"}
    files |= {"same": "text,label\nfine,1\n", "few": "text,label\nfine,1\ndull,0\nso,0\n"}
    for name, content in files.items():
        (tmp_path / f"{name}.csv").write_text(content)
    options = [option.format(**{n: tmp_path / f"{n}.csv" for n in files}) for option in options]
    assert call("--out", tmp_path / "out", *options) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
