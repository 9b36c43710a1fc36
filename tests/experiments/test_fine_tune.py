"""Fine-tuning: from labelled texts to a folder that is explained; what is refused."""

import torch

import lrputils as lrp
from experiments import fine_tune
from tests import tiny

SHORT = {"data": "reviews", "max_length": 24, "epochs": 0.5, "batch": 16}


def test_the_result_is_the_package_s_classifier_a_step_further_and_repeats(tmp_path):
    out = fine_tune.make(out=tmp_path / "mini", labels=["negative", "positive"], **SHORT)
    clf, own = lrp.load_classifier(out), lrp.load_classifier()
    assert clf.labels == ("negative", "positive")
    assert clf.tokenizer.get_vocab() == own.tokenizer.get_vocab()
    change = clf.model.classifier.weight - own.model.classifier.weight
    assert 0 < change.abs().max() < 0.01  # an output a class was there, and is kept
    assert lrp.attribute(clf, clf.encode("Friendly room."), "attnlrp").isfinite().all()
    again = lrp.load_classifier(fine_tune.make(out=tmp_path / "again", **SHORT))
    assert torch.equal(again.model.classifier.weight, clf.model.classifier.weight)


def test_a_decoder_without_a_padding_token_and_three_new_classes(tmp_path):
    decoder = tiny.build("gpt2", dtype=torch.float32, vocab_size=8192, pad_token_id=None)
    decoder.save_pretrained(tmp_path / "base")
    tokenizer = lrp.load_classifier().tokenizer
    tokenizer.eos_token, tokenizer.pad_token = tokenizer.mask_token, None
    tokenizer.save_pretrained(tmp_path / "base")
    data = tmp_path / "stars.csv"
    data.write_text("text,label\n" + "good,3\nbad,1\nfine,2\n" * 4, encoding="utf-8")
    how = {"base": str(tmp_path / "base"), "epochs": 1.0}
    clf = lrp.load_classifier(fine_tune.make(data=str(data), out=tmp_path / "out", **how))
    assert clf.labels == ("1", "2", "3")
    assert lrp.leave_one_out(clf, clf.encode(["good", "a fine film"])).isfinite().all()
