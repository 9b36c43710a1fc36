"""Training: a miniature from texts to attribution, killed and gone on with; what is refused."""

from __future__ import annotations

import copy
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import lrputils as lrp
from lrputils.__main__ import _parser, main
from lrputils.attention import AttentionCall
from lrputils.training import course, measure, network, run, stage
from lrputils.training.batches import Batches, MaskedBatches, Special, plan_epoch
from lrputils.training.corpus import encode, learn_vocabulary
from lrputils.training.options import EPILOG, command, recipe_of
from lrputils.training.recipe import Conditions, Recipe, Shape, Source, Stage

TINY = shlex.split(
    "--layers 2 --hidden 32 --head-size 16 --vocabulary 600 --positions 128 --max-length 64 "
    "--mlm-max-length 128 --mlm-epochs 2 --mlm-batch-tokens 2048 --epochs 2 --batch-tokens 2048 "
    "--device cpu --quiet"
)
TEXTS = shlex.split("--labels negative positive --train reviews reviews-long --unlabelled reviews")
QUIET = Conditions(device="cpu", quiet=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A miniature trained on the book's own reviews by the command line."""
    out = tmp_path_factory.mktemp("training") / "mini"
    assert main(["train", "--out", str(out), *TEXTS, *TINY]) == 0
    return out


def test_the_result_can_be_loaded_and_attributed(trained):
    clf = lrp.load_classifier(trained)
    assert clf.labels == ("negative", "positive")
    assert clf.architecture.layers == 2
    assert clf.model.config.num_attention_heads == 2
    assert len(clf.tokenizer) == clf.model.config.vocab_size == 600
    inputs = clf.encode(["Friendly room, bright cooking.", "A LISTLESS run"])
    assert inputs.tokens[1][1] == "a"
    scores = lrp.attribute(clf.model, inputs, "attnlrp")
    assert scores.shape == inputs["input_ids"].shape
    assert scores.isfinite().all()


def test_the_folder_holds_the_classifier_and_nothing_else(trained):
    names = {path.name for path in trained.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert not [name for name in names if "partial" in name or name == "training"]
    size = (trained / "model.safetensors").stat().st_size
    parameters = sum(p.numel() for p in lrp.load_classifier(trained).model.parameters())
    assert size < 2 * parameters + 10_000  # half precision


def test_the_card_says_what_was_done_and_not_where(trained):
    card = (trained / "README.md").read_text()
    for texts in (lrp.load_texts("reviews"), lrp.load_texts("reviews-long")):
        assert texts.identity in card
    assert lrp.load_classifier(trained).identity in card
    for heading in ("Accuracy", "Attention that matters", "Training", "Data", "Recipe", "Limits"):
        assert f"## {heading}\n" in card
    assert "trained on texts of the same files as reviews, reviews-long" in card
    assert torch.__version__ in card
    assert len(re.findall(r"^\| \d+ \| 1 \| [\d.]+% \| [\d.]+% \|$", card, re.MULTILINE)) == 1
    assert str(trained.parent) not in card
    assert str(Path.home()) not in card


def test_the_cards_accuracy_is_that_of_the_stored_weights(trained):
    clf, texts = lrp.load_classifier(trained), lrp.load_texts("reviews")
    logits = torch.cat([clf.model(**clf.encode(text).model_kwargs()).logits for text in texts])
    right = (logits.argmax(1).numpy() == np.array(texts.labels)).mean()
    measured = measure.attention_matters(clf, texts)
    assert measured.accuracy.value == right
    row = re.search(r"\| reviews \| 240 \| ([\d.]+)%", (trained / "README.md").read_text())
    assert float(row[1]) == pytest.approx(100 * right, abs=0.051)


def test_the_cards_command_is_the_recipe(trained):
    words = (trained / "README.md").read_text().split("```sh\n")[1].split("```")[0]
    parsed = _parser().parse_args(shlex.split(words.replace("\\\n", ""))[1:])
    asked = _parser().parse_args(["train", "--out", "x", *TEXTS, *TINY])
    assert recipe_of(parsed) == recipe_of(asked).checked()


def test_a_run_killed_twice_gives_the_same_weights(trained, tmp_path):
    out = tmp_path / "killed"
    call = [sys.executable, "-m", "lrputils", "train", "--out", str(out), *TEXTS, *TINY]
    call += ["--checkpoint-minutes", "0"]
    for part in ("pretraining-checkpoints", "finetuning-checkpoints"):
        process = subprocess.Popen(call, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if any((out / "training" / part).glob("checkpoint-[5-9]")):
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.01)
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors.decode()
        assert not (out / "config.json").exists()
    assert main(call[3:]) == 0
    assert not (out / "training").exists()
    for name in ("model.safetensors", "tokenizer.json"):
        assert (out / name).read_bytes() == (trained / name).read_bytes()


def test_a_base_model_is_taken_over(trained, tmp_path, capsys):
    out = tmp_path / "tuned"
    options = shlex.split(
        "--train reviews --evaluate --epochs 1 --max-length 64 --batch-tokens 4096 "
        "--device cpu --quiet --no-uniform-attention --learning-rate 1e-9"
    )
    assert main(["train", "--out", str(out), "--base", str(trained), *options]) == 0
    clf, base = lrp.load_classifier(out), lrp.load_classifier(trained)
    assert clf.tokenizer.get_vocab() == base.tokenizer.get_vocab()
    assert clf.labels == ("0", "1")
    torch.testing.assert_close(
        clf.model.bert.state_dict(), base.model.bert.state_dict(), atol=1e-3, rtol=1e-3
    )
    card = (out / "README.md").read_text()
    assert "base model | – | – | sha256" in card
    assert "Attention that matters" not in card
    capsys.readouterr()
    wide = [*options, "--base", str(trained), "--max-length", "256"]
    assert main(["train", "--out", str(tmp_path / "wide"), *wide]) == 1
    assert "max_length=256 of finetuning is more than the 128 positions" in capsys.readouterr().err


def test_it_learns_what_can_be_learned(tmp_path):
    words = np.random.default_rng(0).choice(["one", "two", "three", "four"], (200, 6))
    lines = [
        f"{' '.join(row)} {'fine' if i % 2 else 'dull'},{'up' if i % 2 else 'down'}"
        for i, row in enumerate(words)
    ]
    (tmp_path / "toy.csv").write_text("text,label\n" + "\n".join(lines))
    toy = (Source(str(tmp_path / "toy.csv")),)
    recipe = Recipe(
        train=toy,
        evaluate=toy,
        shape=Shape(layers=1, hidden=32, head_size=16, vocabulary=80, positions=32),
        pretraining=replace(Recipe(train=()).pretraining, max_length=32),
        finetuning=Stage(10, 1024, 16, max_length=32, learning_rate=3e-3),
    )
    out = run.train(recipe, tmp_path / "toy", QUIET)
    clf, texts = lrp.load_classifier(out), lrp.load_texts(tmp_path / "toy.csv")
    assert clf.labels == ("down", "up")
    assert measure.attention_matters(clf, texts).accuracy.value == 1


def test_the_embedded_recipe_runs_on_real_texts_in_little_time(data_dir, models_dir, tmp_path):
    sst, imdb = data_dir / "sst2", data_dir / "imdb"
    options = [
        *("--labels", "negative", "positive", "--unlabelled"),
        *(f"{imdb / 'unsupervised.parquet'},limit=200", f"{sst / 'train.parquet'},limit=500"),
        *("--train", f"{sst / 'train.parquet'},limit=3000,seed=0,name=SST-2"),
        *(f"{imdb / 'train.parquet'},limit=200,seed=0,name=IMDB",),
        *("--evaluate", f"{sst / 'validation.parquet'},limit=100,name=SST-2", "reviews-long"),
        *("--taught", f"{imdb / 'unsupervised.parquet'},limit=400,sentences=1,name=sentences"),
        *(f"{sst / 'train.parquet'},limit=400,name=SST-2", "--imitate"),
        *("--teacher", str(models_dir / "minilm-imdb"), "--shallow-layers", "6"),
        *shlex.split("--hidden 64 --vocabulary 2000 --mlm-epochs 0 --shallow-max-length 256"),
        *shlex.split("--max-length 512 --shallow-minutes 0.1 --minutes 0.1 --batch-tokens 4096"),
        *shlex.split("--device cpu --quiet"),
    ]
    out = tmp_path / "reviewer"
    assert main(["train", "--out", str(out), *options]) == 0
    card = (out / "README.md").read_text()
    assert lrp.load_texts(imdb / "unsupervised.parquet", limit=1).identity in card
    assert re.search(r"\| SST-2 \| 100 \| [\d.]+%", card)
    assert "began as vectors" in card
    epochs = re.findall(r"^\| fine-tuning.*? \| ([\d.]+) \|", card, re.MULTILINE)
    assert all(0 < float(done) < most for done, most in zip(epochs, (2, 4), strict=True))
    assert str(data_dir) not in card
    assert lrp.load_classifier(out).architecture.layers == 12


def test_the_verb_needs_neither_the_books_tools_nor_datasets():
    code = (
        "import sys\n"
        "for name in ('jupytext', 'nbformat', 'papermill', 'sphinx', 'datasets'):\n"
        "    sys.modules[name] = None\n"  # an import of it fails
        "from lrputils.__main__ import main\n"
        "assert 'torch' not in sys.modules\n"
        "main(['train', '--help'])\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "lrputils train --out reviewer" in shown.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--train", "nowhere/texts.csv"], "there is no such file"),
        (["--train", "reviews,limits=3"], "'limits=3' in 'reviews,limits=3' is not an option"),
        (["--train", "reviews,limit=few"], "limit='few' in .* is not a whole number"),
        (["--train", "{plain}"], "'plain' has no labels"),
        (["--train", "{named}", "reviews"], r"different labels: 'named' has \['bad', 'good'\]"),
        (["--train", "reviews", "--evaluate", "{named}"], "labels .* that the training sets lack"),
        (["--train", "reviews,limit=1"], "has no two different labels"),
        (["--train", "reviews", "reviews,limit=4"], "two sets of --train are called 'reviews'"),
        (["--train", "reviews", "--labels", "a", "b", "c"], "names 3 classes"),
        (["--train", "reviews", "--max-length", "600"], "max_length=600 of finetuning must be"),
        (["--train", "reviews", "--batch-tokens", "100"], "batch_tokens=100 of finetuning is less"),
        (["--train", "reviews", "--hidden", "100"], "hidden=100 does not divide into heads"),
        (["--train", "reviews", "--epochs", "0"], "epochs=0 of finetuning must be above 0"),
        (["--train", "reviews", "--minutes", "-1"], "minutes=-1.0 of finetuning must be above 0"),
        (["--train", "reviews", "--dropout", "1"], "dropout=1.0 of finetuning must be"),
        (["--train", "reviews", "--device", "gpu"], "device='gpu' is neither"),
        (["--train", "reviews", "--base", "./nowhere"], "base='./nowhere' is no folder"),
        (["--train", "reviews", "--base", "x", "--layers", "2"], "base='x' decides layers"),
    ],
)
def test_mistakes_are_refused_in_seconds(options, message, tmp_path, capsys):
    files = {"plain": "text\nfine\ndull\n", "named": "text,label\nfine,good\ndull,bad\n"}
    for name, content in files.items():
        (tmp_path / f"{name}.csv").write_text(content)
    options = [option.format(**{n: tmp_path / f"{n}.csv" for n in files}) for option in options]
    start = time.monotonic()
    assert main(["train", "--out", str(tmp_path / "out"), *options]) == 1
    assert time.monotonic() - start < 10
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_else_is_left_alone(trained, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["train", "--out", str(tmp_path), *TEXTS, *TINY]) == 1
    assert "holds something else" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    before = (trained / "model.safetensors").read_bytes()
    assert main(["train", "--out", str(trained), *TEXTS, *TINY]) == 1
    assert "already holds a model" in capsys.readouterr().err
    assert (trained / "model.safetensors").read_bytes() == before


def test_another_recipes_folder_is_not_gone_on_with(tmp_path, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    out = str(tmp_path / "out")
    with monkeypatch.context() as patched:
        patched.setattr(course, "run_stage", interrupted)
        assert main(["train", "--out", out, *TEXTS, *TINY]) == 130
    assert main(["train", "--out", out, *TEXTS, *TINY, "--hidden", "64"]) == 1
    assert "begun with shape.hidden = 32, now it is 64" in capsys.readouterr().err
    other = [word for word in TEXTS if word != "reviews-long"]
    assert main(["train", "--out", out, *other, *TINY]) == 1
    assert "holds a training begun with train" in capsys.readouterr().err


def test_a_stage_ends_on_time_with_the_rate_at_zero(tmp_path):
    tokenizer = learn_vocabulary(lrp.load_texts().texts, 500, 64)
    encoded = encode(tokenizer, lrp.load_texts().texts, max_length=64)
    short = Stage(300, 1024, 64, max_length=64, learning_rate=1e-3, minutes=0.05)
    batches = MaskedBatches(encoded, short, Special.of(tokenizer), 0)
    shape = Shape(layers=1, hidden=16, head_size=8)
    model = network.masked_language_model(network.new_config(shape, len(tokenizer)), 0, 0.1)
    result = stage.run_stage(
        "pretraining", model, batches, short, tmp_path, seed=0, conditions=QUIET
    )
    assert 3 <= result["seconds"] < 6
    assert 0 < result["steps"] < len(batches)
    assert result["tokens"] == batches.tokens[: result["steps"]].sum()
    assert 0 < result["epochs"] < 300
    assert result["rate"] < 0.05 * short.learning_rate


def test_the_rate_rises_and_falls_with_whichever_ends_first(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(stage.time, "monotonic", lambda: now[0])
    clock = stage.Clock(1000, minutes=10)
    clock.start(60.0)
    assert clock.progress(0) == 0.1
    assert clock.progress(500) == 0.5
    now[0] += 480
    assert clock.progress(500) == 0.9
    assert clock.progress(1000) == 1
    assert stage.rate_at(stage.WARMUP) == 1
    assert stage.rate_at(stage.WARMUP / 2) == pytest.approx(0.5)
    assert stage.rate_at(1) == 0


def test_a_loss_that_is_no_number_ends_the_training(tmp_path):
    class Lost(torch.nn.Linear):
        def forward(self, **batch):
            return {"loss": self.weight.sum() * float("nan")}

    tokenizer = learn_vocabulary(lrp.load_texts().texts, 500, 64)
    encoded = encode(tokenizer, ["one", "two"], max_length=64, targets=np.eye(2, dtype=np.float32))
    plain = Stage(1, 1024, 1, max_length=64, learning_rate=1e-3)
    batches = Batches(encoded, plain, Special.of(tokenizer), 0)
    with pytest.raises(ValueError, match=r"the loss is nan after step 2; a lower learning rate"):
        stage.run_stage(
            "fine-tuning", Lost(1, 1), batches, plain, tmp_path, seed=0, conditions=QUIET
        )


def test_a_half_written_checkpoint_is_passed_over(tmp_path):
    for step, state in ((9, '{"global_step": 9}'), (10, '{"global_st'), (11, None)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
    assert stage._last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-9")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-9"]
    shutil.rmtree(tmp_path / "checkpoint-9")
    assert stage._last_checkpoint(tmp_path) is None


def test_every_text_is_in_one_batch_that_fits():
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 120, 500)
    plans = [
        plan_epoch(lengths, tokens=700, rows=12, generator=np.random.default_rng(seed))
        for seed in (0, 0, 1)
    ]
    for plan in plans:
        assert sorted(np.concatenate(plan)) == list(range(500))
        widths = [-(-lengths[rows].max() // 8) * 8 for rows in plan]
        sizes = [len(rows) for rows in plan]
        assert max(sizes) <= 12
        assert max(width * size for width, size in zip(widths, sizes, strict=True)) <= 700
        assert lengths.sum() > 0.85 * sum(np.multiply(widths, sizes))
        assert widths != sorted(widths)
    assert all((a == b).all() for a, b in zip(plans[0], plans[1], strict=True))
    assert {tuple(sorted(rows)) for rows in plans[0]} != {tuple(sorted(rows)) for rows in plans[2]}


def test_texts_are_cut_or_divided():
    tokenizer = learn_vocabulary(lrp.load_texts().texts, 500, 64)
    long, short = "one two three four five six seven", "a film"
    whole = tokenizer(long, add_special_tokens=False)["input_ids"]
    cut = encode(tokenizer, [long, short], max_length=6, targets=np.eye(2)[[1, 0]])
    assert cut[0].tolist() == whole[:4]
    assert cut.targets.argmax(1).tolist() == [1, 0]
    assert cut.lengths.max() == 6
    divided = encode(tokenizer, [long, short], max_length=6)
    assert np.concatenate([divided[i] for i in range(len(divided))]).tolist() == [
        *whole,
        *tokenizer(short, add_special_tokens=False)["input_ids"],
    ]
    assert divided.lengths.max() == 6


def test_masking_hides_what_it_should_and_repeats_itself():
    texts = lrp.load_texts().texts
    tokenizer = learn_vocabulary(texts, 500, 64)
    special = Special.of(tokenizer)
    encoded = encode(tokenizer, texts, max_length=64)
    plan = Stage(2, 4096, 512, max_length=64)
    batches, again = (MaskedBatches(encoded, plan, special, 3) for _ in range(2))
    plain = Batches(replace(encoded, targets=np.zeros((len(encoded), 2))), plan, special, 3)
    chosen = masked = kept = 0
    for step in range(len(batches)):
        batch, original = batches[step], plain[step]["input_ids"].flatten()
        assert all(torch.equal(batch[name], again[step][name]) for name in batch)
        positions, shown = batch["positions"], batch["input_ids"].flatten()
        assert torch.equal(original[positions], batch["labels"])
        others = torch.ones(len(shown), dtype=bool)
        others[positions] = False
        assert torch.equal(shown[others], original[others])
        assert not set(batch["labels"].tolist()) & {special.begin, special.end, special.pad}
        chosen += len(positions)
        masked += (shown[positions] == special.mask).sum().item()
        kept += (shown[positions] == batch["labels"]).sum().item()
    assert chosen / (2 * len(encoded.pieces)) == pytest.approx(0.15, abs=0.02)
    assert masked / chosen == pytest.approx(0.8, abs=0.04)
    assert kept / chosen == pytest.approx(0.1, abs=0.04)


def test_the_masked_language_model_is_berts():
    config = network.new_config(Shape(layers=2, hidden=32, head_size=16), 100)
    own = network.masked_language_model(config, 0, 0.0).eval()
    reference = BertForMaskedLM(config).eval()
    reference.load_state_dict(own.state_dict())
    ids = torch.randint(5, 100, (3, 8))
    positions = torch.tensor([2, 9, 20])
    labels = torch.full((3, 8), -100)
    labels.view(-1)[positions] = torch.tensor([7, 8, 9])
    mask = torch.ones_like(ids)
    expected = reference(input_ids=ids, attention_mask=mask, labels=labels).loss
    actual = own(ids, mask, positions, torch.tensor([7, 8, 9])).loss
    torch.testing.assert_close(actual, expected)


def test_uniform_attention_is_the_mean_over_what_may_be_seen():
    value = torch.randn(2, 3, 5, 4)
    query = key = torch.randn(2, 3, 5, 4)
    mask = torch.ones(2, 1, 5, 5, dtype=bool)
    mask[1, ..., 3:] = False

    def uniform(mask):
        return measure._uniform(AttentionCall(0, query, key, value, mask, 1.0))

    output = uniform(mask)
    torch.testing.assert_close(output[0, 2], value[0].mean(1))
    torch.testing.assert_close(output[1, 2], value[1, :, :3].mean(1))
    additive = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    assert torch.equal(output, uniform(additive))
    unmasked = uniform(None)
    torch.testing.assert_close(unmasked[1, 2], value[1].mean(1))


def test_only_a_model_that_attends_unevenly_feels_uniform_attention(placeholder):
    inputs = placeholder.encode(["a film that is never dull", "dull"])

    def logits(model):
        return model(**inputs.model_kwargs()).logits

    plain = logits(placeholder.model)
    with measure.uniform_attention(placeholder.model):
        changed = logits(placeholder.model)
    assert (changed - logits(placeholder.model)).abs().max() > 1e-3
    with measure.uniform_attention(placeholder.model, ()):
        torch.testing.assert_close(logits(placeholder.model), plain)
    one_by_one = []
    for layer in range(placeholder.architecture.layers):
        flat = copy.deepcopy(placeholder.model)
        flat.bert.encoder.layer[layer].attention.self.query.weight.zero_()
        flat.bert.encoder.layer[layer].attention.self.query.bias.zero_()
        with measure.uniform_attention(placeholder.model, {layer}):
            one_by_one.append(logits(placeholder.model))
        torch.testing.assert_close(one_by_one[-1], logits(flat), atol=1e-5, rtol=1e-5)
    assert (one_by_one[0] - one_by_one[-1]).abs().max() > 1e-4
    even = copy.deepcopy(placeholder.model)
    for layer in even.bert.encoder.layer:
        layer.attention.self.query.weight.zero_()
    with measure.uniform_attention(even):
        changed = logits(even)
    torch.testing.assert_close(changed, logits(even), atol=1e-5, rtol=1e-5)


def test_the_depths_of_a_network_are_told_apart(placeholder):
    assert measure._quarters(12) == [range(3), range(3, 6), range(6, 9), range(9, 12)]
    assert measure._quarters(2) == [range(1), range(1, 2)]
    assert [len(part) for part in measure._quarters(6)] == [1, 2, 1, 2]
    texts = lrp.load_texts("reviews", limit=20)
    matters = measure.attention_matters(placeholder, texts)
    with measure.uniform_attention(placeholder.model, range(1)):
        right = measure.rightly(placeholder, texts, np.array(texts.labels))
    expected = matters.accuracy.value - right.mean()
    assert next(iter(matters.fall_by_depth.values())).value == pytest.approx(expected)
    assert not measure.attention_matters(placeholder, texts, uniform=False).fall_by_depth


def test_labels_that_are_no_class_are_named(placeholder):
    texts = replace(lrp.load_texts("reviews", limit=3), labels=("positive", 0, "mixed"))
    with pytest.raises(ValueError, match=r"labels \['mixed'\] that are no class"):
        measure.attention_matters(placeholder, texts)
    known = replace(texts, labels=("positive", 0, "negative"))
    assert measure.classes_of(placeholder, known).tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match="has no labels"):
        measure.attention_matters(placeholder, replace(texts, labels=None))


def test_the_examples_in_the_help_are_recipes():
    examples = re.findall(r"lrputils (train .*)", EPILOG.replace("\\\n", ""))
    recipes = [recipe_of(_parser().parse_args(shlex.split(words))).checked() for words in examples]
    assert [(bool(r.unlabelled), r.base) for r in recipes] == [
        (True, None),
        (False, "bert-base-uncased"),
    ]
    assert recipes[0].shape == Shape()
    card = (lrp.models.EMBEDDED / "README.md").read_text()
    words = card.split("```sh\n")[1].split("```")[0].replace("\\\n", "")
    embedded = recipe_of(_parser().parse_args(shlex.split(words)[1:])).checked()
    assert command(recipes[0]) == command(embedded)
    assert recipes[1].finetuning.learning_rate == 1e-4


def test_a_vocabulary_is_the_same_every_time_and_large_enough():
    texts = lrp.load_texts().texts
    first, second = (learn_vocabulary(texts, 400, 64).get_vocab() for _ in range(2))
    assert first == second
    assert sorted(first.values()) == list(range(400))
    with pytest.raises(ValueError, match="vocabulary=30 is too small: the characters"):
        learn_vocabulary(texts, 30, 64)


def test_local_paths_are_shortened_in_the_command(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("text,label\na,0\n")
    source = Source.parse(f"{path},limit=3,name=mine")
    assert str(source) == f"{tmp_path.name}/texts.csv,limit=3,name=mine"
    assert str(Source.parse("stanfordnlp/sst2,split=train")) == "stanfordnlp/sst2,split=train"
    assert str(path.parent) not in command(Recipe(train=(source,)).checked())


def test_the_embedded_recipe_fits_into_16_mb():
    config = network.new_config(Shape(), Shape().vocabulary)
    assert isinstance(config, BertConfig)
    with torch.device("meta"):
        model = network.BertForSequenceClassification(config)
    assert 2 * sum(p.numel() for p in model.parameters()) < 16e6
    assert config.hidden_size // config.num_attention_heads == 64
