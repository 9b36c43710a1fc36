"""Training: a miniature from texts to attribution, killed and gone on with; what is refused."""

from __future__ import annotations

import inspect
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

import lrputils as lrp
from lrputils.__main__ import _parser, main, train
from lrputils.data.texts import Texts
from lrputils.study.attention import correct
from lrputils.training import corpus, trainer
from lrputils.training.corpus import encode, learn_vocabulary, load_corpus
from lrputils.training.recipe import Recipe

TINY = shlex.split("--layers 2 --hidden 32 --vocabulary 600 --max-length 64 --epochs 2 --batch 16")
QUIET = ["--device", "cpu", "--quiet"]
TEXTS = shlex.split("--labels negative positive --data reviews --validation reviews")
SILENT = {"device": "cpu", "quiet": True}


def call(*words: str | Path) -> int:
    return main(["train", *map(str, words), *QUIET])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A miniature trained on the book's own reviews by the command line."""
    out = tmp_path_factory.mktemp("training") / "mini"
    assert call("--out", out, *TEXTS, *TINY) == 0
    return out


def test_the_result_can_be_loaded_and_attributed(trained):
    clf = lrp.load_classifier(trained)
    assert clf.labels == ("negative", "positive")
    assert clf.architecture.layers == 2
    assert len(clf.tokenizer) == clf.model.config.vocab_size == 600
    inputs = clf.encode(["Friendly room, bright cooking.", "A LISTLESS run"])
    assert inputs.tokens[1][1] == "a"
    scores = lrp.attribute(clf.model, inputs, "attnlrp")
    assert scores.shape == inputs["input_ids"].shape
    assert scores.isfinite().all()
    names = {path.name for path in trained.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert not [name for name in names if "partial" in name or name.startswith("training")]
    parameters = sum(p.numel() for p in clf.model.parameters())
    assert (trained / "model.safetensors").stat().st_size < 2 * parameters + 10_000  # halves


def test_the_card_says_what_was_done_and_not_where(trained):
    card = (trained / "README.md").read_text()
    clf, texts = lrp.load_classifier(trained), lrp.load_texts("reviews")
    for identity in (texts.identity, clf.identity):
        assert identity in card
    assert torch.__version__ in card
    assert "**It was trained on texts of the same file as reviews.**" in card
    assert str(trained.parent) not in card
    assert str(Path.home()) not in card
    right = correct(clf, texts, np.array(texts.labels)).mean()
    row = re.search(r"\| reviews \| 240 \| ([\d.]+)% \[", card)
    assert float(row[1]) == pytest.approx(100 * right, abs=0.051)
    words = card.split("```sh\n")[1].split("```")[0]
    again, asked = shlex.split(words)[1:], ["train", "--out", "DIR", *TEXTS, *TINY]
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
def test_a_killed_run_gives_the_same_weights_by_the_same_command(tmp_path, capsys):
    out, options = tmp_path / "killed", [*TINY, "--data", "reviews-long", "--epochs", "12"]
    words = [sys.executable, "-m", "lrputils", "train", "--out", str(out), *options, *QUIET]
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < deadline:
        if any((out / "training" / "fine-tuning").glob("checkpoint-[12]?")):
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors.decode()
    assert not (out / "config.json").exists()
    assert call("--out", out, *options, "--hidden", "64") == 1
    assert "holds an unfinished training with hidden = 32, now it is 64" in capsys.readouterr().err
    assert call("--out", out, *options) == 0
    assert not (out / "training").exists()
    assert call("--out", tmp_path / "whole", *options) == 0
    for name in ("model.safetensors", "tokenizer.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("labels", [(0, "good"), ("good", 0), (0.5, 1.5), (0, None)])
def test_labels_of_several_kinds_are_refused_by_name(labels):
    texts = Texts(("a film", "another"), labels, ("0", "1"), "mixed", "sha256 0")
    with pytest.raises(ValueError, match="'mixed' has labels that are not all integers, or not"):
        corpus._labels_of(texts)


def test_a_folder_that_holds_something_else_is_left_alone(trained, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert call("--out", tmp_path, *TEXTS, *TINY) == 1
    assert "already holds something else" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert call("--out", trained, *TEXTS, *TINY) == 1
    assert "already holds a model" in capsys.readouterr().err


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_base_model_is_taken_over(trained, tmp_path, capsys, family):
    base = trained
    if family == "gpt2":
        base = tmp_path / "gpt2"
        config = GPT2Config(vocab_size=600, n_positions=64, n_embd=32, n_layer=2, n_head=2)
        GPT2ForSequenceClassification(config).save_pretrained(base)
        lrp.load_classifier(trained).tokenizer.save_pretrained(base)
    options = shlex.split("--data reviews --epochs 0.2 --max-length 64 --learning-rate 1e-9")
    assert call("--out", tmp_path / "tuned", "--base", base, *options) == 0
    clf, old = lrp.load_classifier(tmp_path / "tuned"), lrp.load_classifier(base)
    assert clf.tokenizer.get_vocab() == old.tokenizer.get_vocab()
    assert clf.labels == ("0", "1")
    body = clf.architecture.base.state_dict() if hasattr(clf.architecture, "base") else None
    for name, tensor in (body or clf.model.base_model.state_dict()).items():
        torch.testing.assert_close(
            tensor, old.model.base_model.state_dict()[name], atol=1e-3, rtol=0
        )
    card = (tmp_path / "tuned" / "README.md").read_text()
    assert re.search(rf"\| base model \| {base.name} \| – \| sha256 ", card)
    assert "| validation | reviews (held out) | 24 |" in card
    assert "of the same file" not in card
    capsys.readouterr()
    assert call("--out", tmp_path / "wide", *options, "--base", base, "--max-length", "256") == 1
    assert "--max-length 256 is more than the 64 positions" in capsys.readouterr().err


def test_a_loss_that_is_no_number_ends_the_training(tmp_path, capsys):
    options = ["--data", "reviews", *TINY, "--learning-rate", "1e30"]
    assert call("--out", tmp_path / "out", *options) == 1
    assert "the loss is nan after step" in capsys.readouterr().err


def test_a_half_written_checkpoint_is_passed_over(tmp_path):
    for step, state in ((9, '{"global_step": 9}'), (10, '{"global_st'), (11, None)):
        (folder := tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
    assert trainer.last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-9")


def test_texts_are_cut_and_a_tenth_is_held_out():
    tokenizer = learn_vocabulary(lrp.load_texts().texts, 500, 64)
    long, short = "one two three four five six seven", "a film"
    whole = tokenizer(long, add_special_tokens=False)["input_ids"]
    cut = encode(tokenizer, [long, short], 6, [1, 0])
    assert cut[0]["input_ids"].tolist()[1:-1] == whole[:4]
    assert [row["label"] for row in cut] == [1, 0]
    loaded = load_corpus(Recipe("reviews"))
    assert len(loaded.validation) == 24
    ids = (*loaded.data.ids, *loaded.validation.ids)
    assert sorted(ids) == sorted(lrp.load_texts("reviews").ids)


def test_a_vocabulary_is_the_same_every_time_and_large_enough():
    texts = lrp.load_texts().texts
    first, second = (learn_vocabulary(texts, 400, 64).get_vocab() for _ in range(2))
    assert first == second
    assert sorted(first.values()) == list(range(400))
    with pytest.raises(ValueError, match="--vocabulary 30 is too small: the characters"):
        learn_vocabulary(texts, 30, 64)


def test_a_folders_training_split_is_taken(tmp_path):
    for name in ("train", "validation"):
        (tmp_path / f"{name}.csv").write_text("text,label\n" + 5 * f"{name},a\n{name},b\n")
    assert load_corpus(Recipe(str(tmp_path))).data.texts[0] == "train"


def test_columns_of_other_names_are_named_once_for_all_texts(tmp_path):
    (tmp_path / "a.csv").write_text("said,mood\n" + 5 * "fine,up\ndull,down\n")
    recipe = Recipe(str(tmp_path / "a.csv"))
    with pytest.raises(ValueError, match=r"none of the columns .*'said', 'mood'"):
        load_corpus(recipe)
    loaded = load_corpus(replace(recipe, columns="said,mood"))
    assert loaded.labels == ["down", "up"]


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
        (["--data", "reviews", "--labels", "a", "b", "c"], "--labels names 3 classes"),
        (["--data", "reviews", "--hidden", "100", "--heads", "3"], "--hidden 100 does not divide"),
        (["--data", "reviews", "--epochs", "0"], "--epochs 0.0 must be above 0"),
        (["--data", "reviews", "--batch", "-1"], "--batch -1: the smallest possible value is 1"),
        (["--data", "reviews", "--dropout", "1"], "--dropout 1.0 must be below 1"),
        (
            ["--data", "reviews", "--base", "./nowhere"],
            "'./nowhere': there is no such file",
        ),
        (["--data", "reviews", "--base", "x", "--layers", "2"], "--base x decides --layers"),
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
