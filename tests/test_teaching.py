"""Training with a teacher, on sentences, and from a shallow network stacked into a deep one."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

import lrputils as lrp
from lrputils.__main__ import _parser, main
from lrputils.training import network, teaching
from lrputils.training.corpus import load_corpus
from lrputils.training.course import Course
from lrputils.training.options import command, recipe_of
from lrputils.training.recipe import Conditions, Recipe, Shallow, Shape, Source
from lrputils.training.sentences import sentences_of
from lrputils.training.teaching import find_teacher, taught_classes


def _texts(*texts: str) -> lrp.Texts:
    return lrp.Texts(texts, None, tuple("abcdefgh"[: len(texts)]), "own", "sha256 0")


def test_a_text_divides_at_ends_of_sentences_and_lines():
    text = 'A film. "Really?" she said!  Yes (truly.) No end<br /><br />3.5 stars…\nof five'
    sentences = sentences_of(_texts(text))
    assert sentences.texts == (
        "A film.",
        '"Really?"',
        "she said!",
        "Yes (truly.)",
        "No end",
        "3.5 stars…",
        "of five",
    )
    assert sentences.ids[:2] == ("a.0", "a.1")
    assert sentences.labels is None
    assert " ".join(sentences).split() == re.sub("<br />", " ", text).split()


def test_sentences_are_chosen_by_length_number_and_chance_each_once():
    texts = _texts("One. One two. One two three.", "One two. One two three four.")
    assert sentences_of(texts, min_words=2).texts == (
        "One two.",
        "One two three.",
        "One two three four.",
    )
    assert sentences_of(texts, min_words=2, max_words=3, limit=1).texts == ("One two.",)
    shuffled = [sentences_of(texts, seed=seed) for seed in (0, 0, 1, 2, 3)]
    assert shuffled[0].texts == shuffled[1].texts
    assert len({s.texts for s in shuffled}) > 1
    assert all(set(s) == set(sentences_of(texts)) for s in shuffled)
    # What the first n are does not depend on n, so a longer run goes on where a shorter one ended.
    assert sentences_of(texts, seed=3, limit=2).texts == shuffled[4].texts[:2]
    with pytest.raises(ValueError, match="'own' has no sentence of 9 to any number of words"):
        sentences_of(texts, min_words=9)


def test_a_source_says_that_it_means_sentences():
    words = "reviews-long,limit=5,min_words=3,sentences=1,name=parts"
    source = Source.parse(words)
    assert source.sentences
    assert Source.parse(str(source)) == source
    assert not Source.parse("reviews-long,sentences=0").sentences


def test_a_teachers_answers_are_its_probabilities_and_survive_a_kill(
    placeholder, tmp_path, monkeypatch
):
    monkeypatch.setattr(teaching, "_SHARD", 5)
    texts = lrp.load_texts("reviews", limit=12).texts
    answers = taught_classes(placeholder, texts, tmp_path, max_length=64, quiet=True)
    for text, answer in zip(texts, answers, strict=True):
        logits = placeholder.model(**placeholder.encode(text).model_kwargs()).logits[0]
        np.testing.assert_allclose(answer, logits.softmax(-1).numpy(), atol=1e-5)
    shards = sorted(path.name for path in tmp_path.iterdir())
    assert shards == ["00000000.npy", "00000005.npy", "00000010.npy"]
    (tmp_path / shards[1]).rename(tmp_path / "00000005.partial")
    asked = []
    plain = teaching._probabilities
    monkeypatch.setattr(
        teaching, "_probabilities", lambda *args: asked.append(args[1]) or plain(*args)
    )
    again = taught_classes(placeholder, texts, tmp_path, max_length=64, quiet=True)
    assert asked == [texts[5:10]]
    assert np.array_equal(again, answers)


def test_the_labelled_learn_from_labels_and_the_others_from_the_teacher(placeholder, tmp_path):
    recipe = Recipe(
        train=(Source("reviews", (("limit", 6),)),),
        taught=(Source("reviews-long", (("limit", 4),)),),
        teacher="not asked for here",
    ).checked()
    course = Course(
        tmp_path,
        recipe,
        load_corpus(recipe),
        None,
        placeholder,
        Conditions(device="cpu", quiet=True),
    )
    encoded = course.labelled(placeholder.tokenizer)
    assert len(encoded) == 10
    labels = lrp.load_texts("reviews", limit=6).labels
    assert encoded.targets[:6].tolist() == np.eye(2)[list(labels)].tolist()
    taught = np.load(tmp_path / "taught" / "00000000.npy")
    assert np.array_equal(encoded.targets[6:], taught)
    assert ((taught > 0) & (taught < 1)).all()
    logits = torch.randn(10, 2, dtype=torch.float64)
    outputs = type("Outputs", (), {"logits": logits})
    expected = -(torch.from_numpy(encoded.targets) * logits.log_softmax(-1)).sum(-1).mean()
    loss = network.class_loss(outputs, torch.from_numpy(encoded.targets))
    torch.testing.assert_close(loss, expected.float())


def test_a_teacher_of_other_classes_is_refused(placeholder):
    assert find_teacher(None, ("a", "b"), "cpu") is None
    with pytest.raises(ValueError, match=r"tells \['negative', 'positive'\] apart, the training"):
        find_teacher(str(lrp.models.EMBEDDED), ("0", "1"), "cpu")


def test_a_deep_network_begins_as_copies_of_the_shallow_one(tmp_path):
    shape = Shape(layers=2, hidden=32, head_size=16, positions=32)
    config = network.new_config(shape, 50)
    shallow = network.classifier(config, ("no", "yes"), 0, 0.1)
    for parameter in shallow.parameters():  # fresh biases and norms would all look alike
        torch.nn.init.normal_(parameter)
    shallow.save_pretrained(tmp_path)
    deep = network.deepened(tmp_path, 5, 0.0)
    assert isinstance(deep, BertForSequenceClassification)
    assert deep.config.num_hidden_layers == 5
    assert deep.config.hidden_dropout_prob == 0
    assert deep.config.id2label == {0: "no", 1: "yes"}
    old, new = shallow.state_dict(), deep.state_dict()
    for name, value in new.items():
        layer = re.search(r"layer\.(\d+)\.", name)
        source = name if layer is None else name.replace(layer[0], f"layer.{int(layer[1]) % 2}.")
        assert torch.equal(value, old[source]), name
    # With as many layers as before, it is the same function.
    same = network.deepened(tmp_path, 2, 0.0).eval()
    ids = torch.randint(0, 50, (3, 7))
    torch.testing.assert_close(same(ids).logits, shallow.eval()(ids).logits)


SMALL = shlex.split(
    "--labels negative positive --hidden 32 --head-size 16 --vocabulary 600 --positions 128 "
    "--max-length 64 --mlm-max-length 128 --mlm-epochs 1 --mlm-batch-tokens 2048 --epochs 1 "
    "--batch-tokens 2048 --layers 4 --shallow-layers 2 --shallow-epochs 1 --train reviews "
    "--unlabelled reviews-long --taught reviews-long,sentences=1,max_words=20,name=sentences "
    "--evaluate reviews-long --device cpu --quiet"
)


def test_a_whole_training_with_all_of_it(tmp_path):
    out = tmp_path / "small"
    options = [*SMALL, "--teacher", str(lrp.models.EMBEDDED)]
    assert main(["train", "--out", str(out), *options]) == 0
    clf = lrp.load_classifier(out)
    assert clf.architecture.layers == 4
    assert {p.name for p in out.iterdir()}.isdisjoint({"training", "taught"})
    card = (out / "README.md").read_text()
    for stage in ("masked-language-model pretraining", "fine-tuning with fewer layers"):
        assert re.search(rf"^\| {stage} \| 1.00 \|", card, re.MULTILINE)
    sentences = sentences_of(lrp.load_texts("reviews-long"), max_words=20)
    assert f"| taught | sentences | {len(sentences)} |" in card
    teacher = lrp.load_classifier()
    assert f"| {teacher.identity} |" in card
    assert str(lrp.models.EMBEDDED.parent) not in card
    words = card.split("```sh\n")[1].split("```")[0].replace("\\\n", "")
    parsed = recipe_of(_parser().parse_args(shlex.split(words)[1:]))
    asked = recipe_of(_parser().parse_args(["train", "--out", "x", *options])).checked()
    assert replace(parsed, teacher=asked.teacher) == asked


def test_what_does_not_happen_is_not_in_the_command():
    recipe = Recipe(train=(Source("reviews"),)).checked()
    assert not re.search("shallow|mlm|taught|teacher", command(recipe))
    assert list(recipe.stages()) == ["finetuning"]
    shallow = replace(recipe, shallow=Shallow(layers=3, minutes=5.0))
    assert "--shallow-layers 3 --shallow-epochs 2 --shallow-minutes 5.0" in command(shallow)
    first, last = shallow.stages().values()
    assert (first.minutes, first.learning_rate) == (5.0, 5e-4)
    assert last == recipe.finetuning
    assert first.batch_tokens == last.batch_tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--taught", "reviews-long"], "--taught without --teacher: name both, or neither"),
        (["--teacher", "x"], "--teacher without --taught"),
        (["--taught", "reviews-long", "--teacher", "./nowhere"], "nowhere"),
        (["--shallow-layers", "12"], "shallow layers=12 must be above 0 and below the 12"),
        (["--shallow-layers", "0"], "shallow layers=0 must be"),
        (["--shallow-layers", "3", "--shallow-minutes", "0"], "minutes=0.0 of shallow must be"),
        (["--shallow-layers", "3", "--base", "x"], "base='x' decides shallow layers"),
    ],
)
def test_mistakes_are_refused(options, message, tmp_path, capsys):
    assert main(["train", "--out", str(tmp_path / "out"), "--train", "reviews", *options]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
