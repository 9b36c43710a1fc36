import re

import numpy as np
import pytest
from tokenizers.implementations import (
    BertWordPieceTokenizer,
    ByteLevelBPETokenizer,
    SentencePieceBPETokenizer,
)

import lrputils as lrp
from lrputils.model.units import joined
from lrputils.report.heatmap import Heatmap, named

TEXT = "The Paella didn't TASTE of café, naïve <b>電影</b>.\nTin"
WORDS = ["The", "Paella", "didn't", "TASTE", "of", "café", "naïve", "Tin"]


def html(tokens, maps, **options) -> str:
    return Heatmap(tokens, maps, **options)._repr_mimebundle_()["text/html"]


def shares(page: str) -> list[float]:
    return [float(share) for share in re.findall(r"--s:(-?[\d.]+)", page.split("</style>")[1])]


def test_a_word_s_colour_is_its_share_of_the_largest_score():
    assert shares(html(["up", "down", "none"], {"m": np.array([2.0, -1.0, 0.0])})) == [1, -0.5, 0]
    assert shares(html(["a", "b"], {"m": np.zeros(2)})) == [0, 0]


def test_a_word_s_score_is_the_sum_of_its_pieces_and_theirs_are_in_reach():
    words = joined("Tin, too", [(0, 1), (1, 3), (3, 4), (5, 8)], ["t", "##in", ",", "too"])
    page = html(["t", "##in", ",", "too"], {"m": np.array([3.0, -1.0, 0.5, -1.0])}, words=words)
    assert shares(page) == [1, 0.25, -0.5]
    assert 'data-score="Tin +2.00 = T +3.00, in −1.00"' in page
    said = "most for: “<bdi>Tin</bdi>” +2.00; most against: “<bdi>too</bdi>” −1.00"
    assert said in page
    rows = re.findall(r"<tr><th scope=\"row\"[^>]*>(.*?)</th><td>(.*?)</td>", page)
    expected = [("Tin", "+2.00"), ("T", "+3.00"), ("in", "−1.00"), (",", "+0.50")]
    assert rows == [*expected, ("too", "−1.00")]


@pytest.mark.parametrize(("scores", "said"), [(np.zeros(3), "shape"), ([0, np.nan], "not finite")])
def test_a_map_that_is_none_is_refused(scores, said):
    with pytest.raises(ValueError, match=said):
        Heatmap(["a", "b"], {"m": scores})


@pytest.mark.parametrize(
    "tokenizer",
    [
        BertWordPieceTokenizer(),  # lower-cased, without accents; what it does not know is [UNK]
        ByteLevelBPETokenizer(trim_offsets=True),  # as RoBERTa's, whose offsets leave spaces out
        ByteLevelBPETokenizer(),  # as GPT-2's: the space belongs to the piece
        SentencePieceBPETokenizer(),  # as Llama's: spaces become a letter
    ],
)
def test_pieces_join_to_words_in_the_text_s_spelling(tokenizer):
    tokenizer.train_from_iterator([TEXT.replace("電影", "")], vocab_size=270, show_progress=False)
    spans = tokenizer.encode(TEXT, add_special_tokens=False).offsets
    words = joined(TEXT, spans, ["?"] * len(spans))
    shown = [word.text for word in words if word.text != "␣"]
    assert "".join(shown) == "".join(TEXT.split())
    assert [word for word in shown if word[0].isascii() and len(word.strip("<>/.b")) > 1] == WORDS
    assert [place for word in words for place in word.pieces] == list(range(len(spans)))
    assert not [word.text for word in words if word.text in ",./" and word.spaced]


def test_a_text_is_shown_with_its_class_and_special_tokens(classifier):
    text = "a film that is never dull"
    inputs = classifier.encode([text], max_length=6, truncate=True)
    maps = {"AttnLRP": lrp.attribute(classifier.model, inputs, "attnlrp")[0]}
    shown = Heatmap.of(classifier, text, maps, max_length=6)
    answer = classifier.model(**inputs.model_kwargs()).logits[0].softmax(0).max(0)
    name = classifier.labels[answer.indices]
    assert shown.caption == f"Predicted: {name}, probability {float(answer.values):.2f}"
    assert [word.text for word in shown.words] == ["[CLS]", "a", "film", "that", "is", "[SEP]"]
    with pytest.raises(ValueError, match="shape"):
        Heatmap.of(classifier, text, maps)


def test_unknown_words_are_marked_counted_and_named(tmp_path):
    shown = lrp.explain(None, "a very bad film, שלום ☃", "loo")
    words = [shown.words[place].text for place in sorted(shown.unknown)]
    assert words == ["שלום", "☃"]
    assert shown.remark.startswith("The tokenizer does not know 2 of 7 words (“שלום”, “☃”)")
    page = shown._repr_mimebundle_()["text/html"]
    assert page.count('class="unknown"') == 2
    assert shown.remark.split(":")[1] in page
    assert "(“<bdi>שלום</bdi>”, “<bdi>☃</bdi>”)" in page
    assert "[UNK]" in str(shown)
    picture = shown.save(tmp_path / "x.svg").read_text(encoding="utf-8")
    assert "The tokenizer does not know" in picture
    assert not lrp.explain(None, "a bad film", "loo").remark


def test_a_word_that_occurs_again_is_named_by_its_place():
    shown = lrp.explain(None, "good, never bad, never dull", "loo")
    names = [named(shown.words, place) for place in range(len(shown.words))]
    assert names[1] == "“good”"
    assert [name for name in names if "never" in name] == ["“never” (1 of 2)", "“never” (2 of 2)"]
