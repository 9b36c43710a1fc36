"""Training with a teacher: its answers, its hidden states, sentences to ask it about."""

from __future__ import annotations

import copy
import re
import shlex
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers.normalizers import BertNormalizer
from torch.nn.functional import cross_entropy
from transformers import GPT2TokenizerFast

import lrputils as lrp
from lrputils.__main__ import _parser, main
from lrputils.training import network, teaching
from lrputils.training.batches import Batches, Special
from lrputils.training.corpus import learn_vocabulary, load_corpus
from lrputils.training.course import Course
from lrputils.training.options import command, recipe_of
from lrputils.training.pupil import Pupil
from lrputils.training.recipe import Conditions, Recipe, Shallow, Shape, Source, Stage
from lrputils.training.sentences import sentences_of
from lrputils.training.teaching import ask, find_teacher
from lrputils.training.words import check_same_words


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


@pytest.mark.parametrize("states", [False, True])
def test_a_teachers_answers_are_kept_and_survive_a_kill(placeholder, tmp_path, monkeypatch, states):
    monkeypatch.setattr(teaching, "_SHARD", 5)
    texts = lrp.load_texts("reviews", limit=12).texts
    options = {"max_length": 64, "states": states, "quiet": True}
    answers = ask(placeholder, texts, tmp_path, **options)
    for text, answer in zip(texts, answers.classes, strict=True):
        logits = placeholder.model(**placeholder.encode(text).model_kwargs()).logits[0]
        np.testing.assert_allclose(answer, logits.softmax(-1).numpy(), atol=1e-5)
    assert (answers.states is not None) == states
    shards = sorted(path.name for path in tmp_path.glob("0*"))
    assert shards == ["00000000.npz", "00000005.npz", "00000010.npz"]
    (tmp_path / shards[1]).rename(tmp_path / "00000005.partial")
    asked = []
    plain = teaching._Asked.answers
    monkeypatch.setattr(
        teaching._Asked, "answers", lambda self, part: asked.append(part) or plain(self, part)
    )
    again = ask(placeholder, texts, tmp_path, **options)
    assert asked == [texts[5:10]]
    for name, value in answers._asdict().items():
        assert np.array_equal(getattr(again, name), value)


def test_states_are_principal_components_at_the_first_piece_of_each_word(placeholder, tmp_path):
    texts = ["A film that is never dull.", "unwatchable", "It's long; loud, too."]
    answers = ask(placeholder, texts, tmp_path, max_length=64, states=True, quiet=True)
    layers = placeholder.architecture.layers
    depths = [layers // 3, 2 * layers // 3, layers]
    states = []
    for text, start, end in zip(texts, answers.starts, answers.starts[1:], strict=False):
        encoding = placeholder.tokenizer(text, return_tensors="pt")
        hidden = placeholder.model(**encoding, output_hidden_states=True).hidden_states
        words = encoding.word_ids(0)
        firsts = [0] + [
            words.index(word) for word in range(max(w for w in words if w is not None) + 1)
        ]
        assert end - start == len(firsts)
        states.append(torch.stack([hidden[depth][0, firsts] for depth in depths], 1))
    pieces = [len(row) - 1 for row in placeholder.tokenizer(texts)["input_ids"]]
    assert sum(pieces) > answers.starts[-1]  # some word has several
    states = torch.cat(states).double()
    centred = states - states.mean(0)
    for depth in range(3):
        left, values, _ = torch.linalg.svd(centred[:, depth], full_matrices=False)
        found = torch.from_numpy(answers.states[:, depth]).double()
        # Signs of components are free, and few texts have few: what they span is compared.
        kept = (left * values)[:, : found.shape[1]] / (values.square().sum() / len(left)).sqrt()
        torch.testing.assert_close(found @ found.T, kept @ kept.T, atol=5e-3, rtol=5e-3)
        assert float(found.square().sum() / len(found)) == pytest.approx(1, abs=5e-3)


def _course(teacher, tmp_path, **options):
    recipe = Recipe(
        train=(Source("reviews", (("limit", 6),)),),
        taught=(Source("reviews-long", (("limit", 4),)),),
        teacher="not asked for here",
        **options,
    ).checked()
    corpus = load_corpus(recipe)
    return Course(tmp_path, recipe, corpus, None, teacher, Conditions(device="cpu", quiet=True))


def test_the_labelled_learn_from_labels_and_the_others_from_the_teacher(placeholder, tmp_path):
    course = _course(placeholder, tmp_path)
    answers = course._answers()
    encoded = course.labelled(placeholder.tokenizer, answers, 64)
    assert len(encoded) == 10
    labels = lrp.load_texts("reviews", limit=6).labels
    assert encoded.targets[:6].tolist() == np.eye(2)[list(labels)].tolist()
    assert np.array_equal(encoded.targets[6:], answers.classes)
    assert ((answers.classes > 0) & (answers.classes < 1)).all()
    assert encoded.states is None


def test_a_batch_shows_each_word_with_the_teachers_state_of_it(placeholder, tmp_path):
    """Also where the pupil has other pieces than the teacher, and sees less of a text."""
    course = _course(placeholder, tmp_path, imitate=True)
    texts = lrp.load_texts("reviews-long", limit=4).texts
    own = learn_vocabulary(texts, 300, 64)
    check_same_words(own, placeholder.tokenizer)
    answers = course._answers()
    encoded = course.labelled(own, answers, 40)
    stage = Stage(1, 400, 4, max_length=40, learning_rate=1.0)
    batches = Batches(encoded, stage, Special.of(own), 0)
    inside = [piece.startswith("##") for piece in own.convert_ids_to_tokens(range(len(own)))]
    matched = 0
    for step in range(len(batches)):
        batch, rows = batches[step], batches.plan[step]
        width = batch["input_ids"].shape[1]
        flat = batch["input_ids"].flatten()
        at = 0
        for i, row in enumerate(rows):
            here = [int(p) for p in batch["positions"] if i * width <= p < (i + 1) * width]
            if row < 6:  # labelled by hand
                assert not here
                continue
            ids = [own.cls_token_id, *encoded[row]]
            expected = [i * width + k for k, piece in enumerate(ids) if not inside[piece]]
            assert here == expected
            assert flat[here[0]] == own.cls_token_id
            states = answers.states[answers.starts[row - 6] :][: len(here)]
            assert np.array_equal(batch["states"][at : at + len(here)], states)
            at += len(here)
        matched += at
        assert at == len(batch["positions"])
    assert matched > 40


def test_the_loss_is_that_of_the_equations():
    shape = Shape(layers=6, hidden=32, head_size=16, positions=32)
    clf = network.classifier(network.new_config(shape, 50), ("no", "yes"), 0, 0.0)
    pupil = Pupil(clf, 3, 5)
    for parameter in pupil.guesses.parameters():  # they begin as zeros
        assert not parameter.any()
        torch.nn.init.normal_(parameter)
    ids, mask = torch.randint(0, 50, (3, 7)), torch.ones(3, 7, dtype=torch.long)
    labels = torch.tensor([[0.2, 0.8], [1.0, 0.0], [0.5, 0.5]])
    outputs = clf(ids, attention_mask=mask, output_hidden_states=True)
    expected = -(labels * outputs.logits.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(pupil(ids, mask, labels).loss, expected)
    torch.testing.assert_close(cross_entropy(outputs.logits, labels), expected)
    positions, states = torch.tensor([0, 3, 8]), torch.randn(3, 3, 5).half()
    distance = torch.tensor(0.0)
    for word, (row, token) in enumerate([(0, 0), (0, 3), (1, 1)]):
        for depth, layer in enumerate([2, 4, 6]):
            guess = pupil.guesses[depth](outputs.hidden_states[layer][row, token])
            distance += (guess - states[word, depth].float()).square().sum() / 9
    loss = pupil(ids, mask, labels, positions, states).loss
    torch.testing.assert_close(loss, expected + distance)
    nothing = pupil(ids, mask, labels, positions[:0], states[:0]).loss
    torch.testing.assert_close(nothing, expected)


def test_a_teacher_with_other_words_is_refused(placeholder):
    cased = copy.deepcopy(placeholder.tokenizer)
    cased.backend_tokenizer.normalizer = BertNormalizer(lowercase=False)
    with pytest.raises(ValueError, match=r"another way: .*lowercase=False.*Leave out --imitate"):
        check_same_words(placeholder.tokenizer, cased)
    of_bytes = GPT2TokenizerFast(vocab={"a": 0, "<|endoftext|>": 1}, merges=[])
    with pytest.raises(ValueError, match="ByteLevel"):
        check_same_words(placeholder.tokenizer, of_bytes)
    with pytest.raises(ValueError, match="another way"):
        check_same_words(of_bytes, of_bytes)


def test_a_teacher_of_other_classes_is_refused(placeholder):
    assert find_teacher(None, ("a", "b"), "cpu") is None
    with pytest.raises(ValueError, match=r"tells \['negative', 'positive'\] apart, the training"):
        find_teacher(str(lrp.models.EMBEDDED), ("0", "1"), "cpu")


def test_other_words_are_refused_before_anything_is_made(tmp_path, capsys):
    cased = tmp_path / "cased"
    shutil.copytree(lrp.models.EMBEDDED, cased)
    for name, key in (("tokenizer.json", "lowercase"), ("tokenizer_config.json", "do_lower_case")):
        text = (cased / name).read_text()
        (cased / name).write_text(re.sub(rf'("{key}": *)true', r"\1false", text))
    options = ["--taught", "reviews-long", "--labels", "negative", "positive", "--imitate"]
    options += ["--train", "reviews", "--teacher", str(cased), "--device", "cpu"]
    assert main(["train", "--out", str(tmp_path / "out"), *options]) == 1
    assert "Leave out --imitate" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


SMALL = shlex.split(
    "--labels negative positive --hidden 32 --head-size 16 --vocabulary 600 --positions 128 "
    "--max-length 64 --mlm-max-length 128 --mlm-epochs 1 --mlm-batch-tokens 2048 --epochs 1 "
    "--batch-tokens 2048 --layers 4 --shallow-layers 2 --shallow-epochs 1 --train reviews "
    "--unlabelled reviews-long --taught reviews-long,sentences=1,max_words=20,name=sentences "
    "--imitate --evaluate reviews-long --device cpu --quiet"
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
    assert not re.search("shallow|mlm|taught|teacher|imitate", command(recipe))
    assert list(recipe.stages()) == ["finetuning"]
    shallow = replace(recipe, shallow=Shallow(layers=3, minutes=5.0))
    assert "--shallow-layers 3 --shallow-epochs 2 --shallow-minutes 5.0" in command(shallow)
    first, last = shallow.stages().values()
    assert (first.minutes, first.learning_rate) == (5.0, 5e-4)
    assert last == recipe.finetuning
    assert (first.batch_tokens, first.max_length) == (last.batch_tokens, last.max_length)
    short = replace(recipe, shallow=Shallow(layers=3, max_length=99)).stages()
    assert [stage.max_length for stage in short.values()] == [99, last.max_length]
    vectors = replace(recipe, unlabelled=recipe.train, pretraining=Stage(0, 512, 8))
    assert list(vectors.stages()) == ["finetuning"]
    assert "--mlm-epochs 0" in command(vectors)


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
        (
            ["--shallow-layers", "3", "--shallow-max-length", "600"],
            "max_length=600 of shallow must",
        ),
        (["--imitate"], "--imitate without --teacher"),
        (
            ["--base", "x", "--unlabelled", "reviews", "--mlm-epochs", "0"],
            "base='x' learns nothing from --unlabelled texts with --mlm-epochs 0",
        ),
    ],
)
def test_mistakes_are_refused(options, message, tmp_path, capsys):
    assert main(["train", "--out", str(tmp_path / "out"), "--train", "reviews", *options]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
