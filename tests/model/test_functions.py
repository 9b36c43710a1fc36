"""Functions of texts and modules of torch as models, beside the removal written out."""

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import lrputils as lrp
from lrputils.data.texts import stream_texts
from lrputils.model.functions import Words
from lrputils.runs.datasets import evaluate_dataset, read
from lrputils.runs.settings import Settings
from tests import tiny

TEXT = "A good film, isn't it?  Not bad at all."
WORDS = ["A", " good", " film", ",", " isn't", " it", "?", "  Not", " bad", " at", " all", "."]


@pytest.fixture(scope="module")
def bag():
    """A pipeline of scikit-learn, which counts words and pairs of words."""
    texts = lrp.load_texts()
    model = make_pipeline(CountVectorizer(ngram_range=(1, 2)), LogisticRegression())
    return model.fit([*texts], texts.labels)


@pytest.fixture(scope="module")
def clf(bag):
    return lrp.load_classifier(function=bag.predict_proba, labels=["negative", "positive"])


def lost(bag, text, parts):
    """What the logarithm of the predicted class's probability loses without each part."""
    p = bag.predict_proba([text, *(text.replace(part, "", 1) for part in parts)])
    return np.log(p[0, p[0].argmax()]) - np.log(p[1:, p[0].argmax()])


def test_leave_one_out_is_that_of_the_texts_written_without_each_word(bag, clf):
    inputs = clf.encode([TEXT, "never dull"])
    assert inputs.tokens == (tuple(WORDS), ("never", " dull"))
    assert "".join(inputs.tokens[0]) == TEXT
    loo = lrp.leave_one_out(clf, inputs, progress=False)
    np.testing.assert_allclose(loo[0], lost(bag, TEXT, WORDS), atol=1e-5)
    np.testing.assert_allclose(loo[1, :2], lost(bag, "never dull", ["never", " dull"]), atol=1e-5)
    for removal in ("delete", "attention-mask"):
        same = lrp.leave_one_out(clf, inputs, removal=removal, progress=False)
        torch.testing.assert_close(same, loo)
    with pytest.raises(ValueError, match="a function of texts has no word embeddings for removal"):
        lrp.leave_one_out(clf, inputs, removal="zero", progress=False)


def test_sentences_and_probabilities(bag, clf):
    inputs = clf.encode([TEXT])
    parts = ["A good film, isn't it?", "  Not bad at all."]
    found = lrp.leave_one_out(clf, inputs, units="sentence", progress=False)
    found = found[inputs.units("sentence").mask]
    np.testing.assert_allclose(found, lost(bag, TEXT, parts), atol=1e-5)
    p = bag.predict_proba([TEXT, TEXT.replace(parts[1], "")])
    found = lrp.leave_one_out(
        clf, inputs, units="sentence", output="probability", target=0, progress=False
    )
    assert float(found[0, 7]) == pytest.approx(p[0, 0] - p[1, 0], abs=1e-6)


def test_every_verb_that_removes_takes_it(clf, tmp_path):
    said = str(lrp.explain(clf, TEXT, ["loo", "shapley"]))
    assert "Shapley values" in said
    maps = {"counted": [np.arange(12.0), np.arange(2.0)]}
    found = lrp.evaluate(
        clf, [TEXT, "never dull"], ["shapley"], scores=maps, chunk=1, progress=False
    )
    assert [*found.rows.method.unique()] == ["loo", "shapley", "counted"]
    texts, settings = stream_texts("reviews", limit=3), Settings(methods=("shapley",))
    other = lrp.load_classifier(function=clf.model.function, labels=clf.labels)
    for each in (clf, other):  # words that were seen meanwhile make it no other model
        evaluate_dataset(each, texts, tmp_path, settings, quiet=True)
    assert len(read(tmp_path).rows) == 6


def test_blanks_marks_and_other_scripts_are_kept():
    words = Words()
    for text in ("  two  blanks  ", "日本語の文", "e-mail: a_b@c.d…", "naïve café\n\nnext"):
        ids = words([text])["input_ids"][0]
        assert "".join([*words.known][each] for each in ids) == text


def test_a_module_of_torch_is_a_model(classifier):
    module = tiny.Reader(len(classifier.tokenizer)).eval()
    clf = lrp.load_classifier(module, classifier.tokenizer)
    inputs = clf.encode(["a film that is never dull", "dull"])
    loo = lrp.leave_one_out(clf, inputs, progress=False)
    ids, whole = inputs.input_ids[:1], torch.ones_like(inputs.input_ids[:1])
    with torch.inference_mode():
        f = module(ids, whole)[0]
        for token in range(ids.shape[1]):
            mask = whole.clone()
            mask[0, token] = 0
            lost = f.max() - module(ids, mask)[0, f.argmax()]
            torch.testing.assert_close(loo[0, token], lost, atol=1e-5, rtol=0)
    words = module.words(ids).detach().requires_grad_()
    module.words.register_forward_hook(lambda *_: words)
    (gradient,) = torch.autograd.grad(module(ids, whole).max(), words)
    module.words._forward_hooks.clear()
    found = lrp.attribute(clf, inputs, "grad-x-input")[0]
    torch.testing.assert_close(found, (words * gradient).sum(-1)[0].detach(), atol=1e-5, rtol=0)
    assert lrp.attribute(clf, inputs, "attnlrp").isfinite().all()
