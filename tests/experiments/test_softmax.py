"""The softmax errors against their equations, and attention computed again without a key."""

import numpy as np
import pytest
import torch

import lrputils as lrp
from experiments.softmax import _measures, _softmax_maps, measure
from lrputils.model.attention import fused, with_all_heads
from lrputils.model.operations import routed
from lrputils.propagation.composites import GRADIENT
from tests import tiny
from tests.gauge import CHANGES, reparameterised

ACCOUNTS = ("contrast", "structural", "softmax", "softmax_attended", "removal")


class Blocks:
    """Each layer's attention of one text, kept with its graph to be differentiated by hand."""

    def __init__(self, model, inputs):
        self.calls = {}
        architecture = lrp.describe(model)

        def keep(call):
            leaves = [x.detach().requires_grad_() for x in call.factors]
            output, _ = fused(call)
            output.requires_grad_()
            output.retain_grad()
            self.calls[call.layer] = (*leaves, call.mask, call.scaling, output)
            return output, None

        with torch.enable_grad(), routed(model, keep):
            logits = model(**architecture.arguments(inputs)).logits[0]
            logits = logits[-1] if logits.dim() == 2 else logits
            logits.max().backward()
        tokens = self.calls[0][0].shape[2]
        self.readout = 0 if not architecture.causal else tokens - 1


def by_hand(blocks, layer):
    """One text's maps, token by token, query by query, head by head, from the equations."""
    query, key, value, mask, scaling, output = blocks.calls[layer]
    received = output.grad[0].transpose(0, 1)
    query, key, value = (with_all_heads(x, query)[0].detach() for x in (query, key, value))
    heads, tokens, _ = query.shape
    maps = {name: torch.zeros(tokens, dtype=torch.float64) for name in ACCOUNTS}
    entropies = []
    for h in range(heads):
        for j in range(tokens):
            seen = [i for i in range(tokens) if mask is None or mask[0, 0, j, i]]
            bias = torch.zeros(tokens, dtype=torch.float64)
            if mask is not None and mask.dtype != torch.bool:  # a bias of positions, a constant
                bias = mask[0, h, j]
            logits = scaling * key[h, seen] @ query[h, j]
            weights = (logits + bias[seen]).softmax(0)
            out, g = weights @ value[h, seen], received[h, j]
            if len(seen) > 1:
                share = -(weights * weights.log()).sum() / np.log(len(seen))
                entropies.append(float(share))
            mean, average = value[h, seen].mean(0), logits.mean()
            attended = weights @ logits
            for place, i in enumerate(seen):
                if i == j and i != blocks.readout:
                    continue
                a, z, difference = weights[place], logits[place], (value[h, i] - out) @ g
                others = [other for other in seen if other != i]
                left = (scaling * key[h, others] @ query[h, j] + bias[others]).softmax(0)
                left = left @ value[h, others]
                maps["contrast"][i] += a * difference
                maps["structural"][i] += a * (out - mean) @ g
                maps["softmax"][i] += (z - average) * a * difference
                maps["softmax_attended"][i] += (z - attended) * a * difference
                maps["removal"][i] += (out - left) @ g
    return maps, np.mean(entropies)


@pytest.mark.parametrize("name", tiny.NAMES)
def test_every_account_equals_its_equation(name):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    maps = _softmax_maps(model, inputs, composite=GRADIENT)
    for row in (0, 1):
        blocks = Blocks(model, tiny.row(inputs, row))
        for layer in range(maps["entropy"].shape[0]):
            expected, entropy = by_hand(blocks, layer)
            assert maps["entropy"][layer, row].item() == pytest.approx(entropy)
            for account, scores in expected.items():
                found = maps[account][layer, row]
                assert not found[len(scores) :].any()
                torch.testing.assert_close(found[: len(scores)], scores, rtol=1e-9, atol=1e-9)
            assert expected["removal"].abs().max() > 1e-4


def test_of_a_difference_of_logits_every_account_is_the_difference(classifier):
    model, inputs = classifier.model, classifier.encode(["a film that is never dull"])
    both, first, second = (
        _softmax_maps(model, inputs, target=target) for target in (lrp.contrast(0, 1), 0, 1)
    )
    for account in ACCOUNTS:
        torch.testing.assert_close(both[account], first[account] - second[account])
    predicted = int(model(**inputs.model_kwargs()).logits.argmax())
    wanted = _measures(_softmax_maps(model, inputs, target=lrp.contrast(predicted, 1 - predicted)))
    found = measure(classifier, ["a film that is never dull"], difference=True)
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values[:, 0], rtol=1e-5)


class TestGauge:
    """What must not depend on how the function is parameterised, and what does."""

    @pytest.fixture(scope="class", params=["tiny", "embedded"])
    def case(self, request):
        if request.param == "tiny":
            return tiny.build("bert"), tiny.texts()
        classifier = lrp.load_classifier()
        return classifier.model, classifier.encode(["a film that is never dull"])

    def both(self, case, *changes):
        model, inputs = case
        return reparameterised(model), reparameterised(model, *changes, seed=3), inputs

    def logits(self, model, inputs):
        with torch.no_grad():
            return model(**lrp.describe(model).arguments(inputs)).logits

    @pytest.mark.parametrize("changes", [*([c] for c in CHANGES), CHANGES])
    def test_no_change_reaches_logits_or_measures(self, case, changes):
        one, other, inputs = self.both(case, *changes)
        torch.testing.assert_close(
            self.logits(other, inputs), self.logits(one, inputs), rtol=0, atol=1e-6
        )
        expected = _measures(_softmax_maps(one, inputs))
        for name, values in _measures(_softmax_maps(other, inputs)).items():
            np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-5, err_msg=name)

    def test_loo_stays_but_where_a_word_becomes_the_zero_vector(self, case):
        one, other, inputs = self.both(case, "embeddings")
        for removal in ("attention-mask", "delete", "zero"):
            how = {"removal": removal, "progress": False, "target": 1}
            before, after = (lrp.leave_one_out(m, inputs, **how) for m in (one, other))
            moved = float((after - before).abs().max() / before.abs().max())
            assert moved > 1e-2 if removal == "zero" else moved < 1e-5, removal

    @pytest.mark.parametrize("method", ["attnlrp", "cp-lrp"])
    @pytest.mark.parametrize(
        ("change", "moved"),
        [
            ("inside", set()),
            ("layer input", {"post-norm"}),
            ("embeddings", {"word"}),
        ],
    )
    def test_the_map_at_the_sum_never_moves(self, case, change, moved, method):
        one, other, inputs = self.both(case, change)
        for place in ("word", "sum", "post-norm"):
            maps = [lrp.attribute(m, inputs, method, readout=place) for m in (one, other)]
            difference = float((maps[0] - maps[1]).abs().max() / maps[0].abs().max())
            assert difference > 0.1 if place in moved else difference < 1e-5
