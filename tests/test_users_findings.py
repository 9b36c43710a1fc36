"""What users met that was wrong in silence, or said in a way that misleads: the right answer."""

import copy

import numpy as np
import pytest
import torch
from tokenizers import processors

import lrputils as lrp
from lrputils.attribution.methods import completeness_gap
from lrputils.study.cost import forecast
from tests import reference, tiny

TEXT = "an unwatchable film that is never dull"


def test_a_span_over_both_texts_of_a_pair_is_one_unit(clf):
    inputs = clf.encode([("a good film", "never dull at all")])
    spans = [[(7, 17), (18, 22)]]  # "film", across the separator, "never"; and "dull"
    across = [3, 5]
    assert [inputs.tokens[0][i] for i in across] == ["film", "never"]
    loo = lrp.leave_one_out(clf, inputs, units=spans)[0]
    expected = reference.leave_one_out(clf.model, inputs, units=[[across]])[0, 3]
    assert loo[3] == pytest.approx(float(expected), abs=1e-4)
    assert loo.nonzero().flatten().tolist() == [3, 6]
    assert inputs.units(spans).mask[0].nonzero().flatten().tolist() == [3, 6]
    shapley = lrp.shapley_values(clf, inputs, units=spans, permutations="all")
    assert shapley.scores[0].nonzero().flatten().tolist() == [3, 6]
    single = lrp.attribute(clf, inputs, "attnlrp")[0]
    summed = lrp.attribute(clf, inputs, "attnlrp", units=spans)[0]
    assert summed[3] == pytest.approx(float(single[across].sum()), abs=1e-5)
    assert summed.nonzero().flatten().tolist() == [3, 6]
    assert "film\nnever" in inputs.units(spans).texts[0]


def test_what_was_not_measured_has_no_score_and_a_span_is_called_by_what_goes(clf, tmp_path):
    shown = lrp.explain(clf, TEXT, "loo", units=[(3, 9)])  # "unwatc"
    frame = shown.to_frame().set_index("word").LOO
    assert frame.dropna().index.tolist() == ["unwatchable"]
    page = shown.save(tmp_path / "x.html").read_text()
    assert "film –" in page
    assert "+0" not in str(shown).replace("+0.", "")


def test_half_precision_is_said(clf):
    half = copy.deepcopy(clf.model).half()
    with pytest.warns(UserWarning, match=r"computes in float16: .* model\.float\(\) makes it"):
        found = lrp.load_classifier(half, clf.tokenizer)
    shown = lrp.explain(found, TEXT, "grad-x-input")
    assert shown.origin.endswith("computed in float16")


@pytest.mark.parametrize("call", ["pad", "ig"])
@pytest.mark.parametrize("fault", ["beyond", "nan"])
def test_a_replacement_that_the_model_does_not_know_is_named(clf, call, fault):
    clf = lrp.Classifier(copy.deepcopy(clf.model), clf.tokenizer, "tried")
    inputs = clf.encode(["a good film"])
    if fault == "beyond":
        inputs.replacements = {**inputs.replacements, "pad": 99_999}
    else:
        with torch.no_grad():
            clf.model.get_input_embeddings().weight[inputs.replacements["pad"]] = torch.nan
    said = "'pad' needs the token .*, (and the model has embeddings of|whose word embedding)"
    how = {"method": "loo", "removal": "pad"} if call == "pad" else {"method": "ig"}
    with pytest.raises(ValueError, match=said):
        lrp.attribute(clf, inputs, **how)


def test_copies_are_counted(clf):
    texts = ["a good film", "a bad film", "a good film"]
    assert "3 texts (1 of them copies" in str(lrp.evaluate(clf, texts, ["attnlrp"]))
    assert "1 repeat an earlier text" in str(forecast(clf, texts, ["attnlrp"]))
    assert "copies" not in str(lrp.evaluate(clf, texts[:2], ["attnlrp"]))
    assert "repeat" not in str(forecast(clf, texts[:2], ["attnlrp"]))


def test_a_baseline_is_a_text_or_an_embedding(clf):
    inputs, other = clf.encode("a good film"), clf.encode("a bad film")
    scores = lrp.attribute(clf, inputs, "ig", baseline=other.input_ids, steps=64)
    assert scores[0].nonzero().flatten().tolist() == [2]  # the one word that differs
    with torch.inference_mode():
        ends = [float(clf.model(**x.model_kwargs()).logits[0, 1]) for x in (inputs, other)]
    gap = completeness_gap(clf, inputs, scores, target=1, baseline=other.input_ids)
    assert float(gap) == pytest.approx(ends[0] - ends[1] - float(scores.sum()), abs=1e-4)
    zero = torch.zeros(clf.model.config.hidden_size)
    torch.testing.assert_close(
        lrp.attribute(clf, inputs, "ig", baseline=zero),
        lrp.attribute(clf, inputs, "ig", baseline="zero"),
    )
    for wrong, said in (
        (torch.zeros(3), r"has shape \(3,\): embeddings are"),
        (torch.zeros(1, 2).long(), "as many tokens as the one explained"),
    ):
        with pytest.raises(ValueError, match=said):
            lrp.attribute(clf, inputs, "ig", baseline=wrong)


def test_a_map_s_own_errors_stand_beside_it(clf):
    gap, errors = lrp.explain(clf, TEXT, ["ig:steps=2", "shapley:permutations=4"]).notes.values()
    assert "more steps close the gap" in gap
    assert "standard errors up to" in errors
    many = ["ig:steps=512", "shapley:permutations=all"]
    gap, errors = lrp.explain(clf, TEXT, many).notes.values()
    assert "close the gap" not in gap
    assert "standard errors" not in errors


def test_a_map_that_is_rounding_is_called_so(clf):
    """Under a LayerNorm whose ε is nothing, a word's embedding has no gradient along itself."""
    scaled = lrp.Classifier(copy.deepcopy(clf.model), clf.tokenizer, "scaled")
    embeddings = scaled.model.base_model.embeddings
    embeddings.LayerNorm.eps = 1e-12
    for table in (embeddings.position_embeddings, embeddings.token_type_embeddings):
        table.weight.data.zero_()
    shown = lrp.explain(scaled, TEXT, ["loo", "grad-x-input", "attnlrp"])
    assert "Its scores are rounding" in shown.notes["Gradient × input"]
    assert "r = " in shown.notes["AttnLRP"]


def test_explain_removes_as_it_is_asked_to(clf):
    inputs = clf.encode([TEXT])
    deleted = lrp.leave_one_out(clf, inputs, removal="delete")[0].numpy()
    shown = lrp.explain(clf, TEXT, removal="delete")
    np.testing.assert_allclose(shown.maps["LOO"], deleted, atol=1e-6)
    noted = lrp.explain(clf, TEXT, "attnlrp", removal="delete")
    assert noted.notes["AttnLRP"] == shown.notes["AttnLRP"]


def test_no_probability_is_rounded_to_none(clf):
    sure = lrp.Classifier(copy.deepcopy(clf.model), clf.tokenizer, "tried")
    with torch.no_grad():
        sure.model.classifier.weight *= 40
    assert "probability above 0.99" in lrp.explain(sure, TEXT, "grad-x-input").caption
    shown = lrp.explain(sure, TEXT, "grad-x-input", target="positive")
    assert "probability below 0.01" in shown.caption


def test_blank_tokens_of_a_chat_are_its_own():
    lm = tiny.language_model()
    chat = [{"role": "user", "content": "x    x"}]
    right = int(lm.encode([chat]).content_mask.sum())
    lm.tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    offsets = lm.tokenizer("x    x", return_offsets_mapping=True)["offset_mapping"]
    assert any(begin == end for begin, end in offsets)  # of blanks nothing is left
    assert int(lm.encode([chat]).content_mask.sum()) == right


def intermediate_of(model):
    return model.bert.encoder.layer[1].intermediate


def other_forward(model):
    part = intermediate_of(model)
    inner = part.forward
    part.forward = lambda states: 2 * inner(states)


def other_hook(model):
    intermediate_of(model).register_forward_hook(lambda module, given, output: 2 * output)


class Doubled(torch.nn.Module):
    """The same change as a part of the network."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, states):
        return 2 * self.inner(states)


@pytest.mark.parametrize("change", [other_forward, other_hook])
@pytest.mark.parametrize("method", ["attnlrp", "cp-lrp", "loo", "mask-gradient", "grad-x-input"])
def test_what_runs_is_what_is_explained(change, method):
    changed, plain = tiny.build("bert"), tiny.build("bert")
    before = lrp.attribute(tiny.build("bert"), tiny.texts(), method)
    change(changed)
    plain.bert.encoder.layer[1].intermediate = Doubled(intermediate_of(plain)).eval()
    found, right = (lrp.attribute(m, tiny.texts(), method) for m in (changed, plain))
    torch.testing.assert_close(found, right)
    assert (found - before).abs().max() > 1e-2 * before.abs().max()


def test_a_hook_that_only_looks_changes_nothing_and_a_backward_hook_is_refused():
    model, right = tiny.build("bert"), lrp.attribute(tiny.build("bert"), tiny.texts(), "attnlrp")
    seen = []
    intermediate_of(model).register_forward_hook(lambda module, given, output: seen.append(1))
    torch.testing.assert_close(lrp.attribute(model, tiny.texts(), "attnlrp"), right)
    assert seen
    model = tiny.build("bert")
    layer = model.bert.encoder.layer[0]
    layer.register_full_backward_hook(lambda module, back, out: (back[0] / 2, *back[1:]))
    with pytest.raises(TypeError, match="not covered by rules"):
        lrp.attribute(model, tiny.texts(), "attnlrp")
