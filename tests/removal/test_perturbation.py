"""Perturbation curves against taking out one chunk after the other by hand."""

import pytest
import torch

import lrputils as lrp
from tests import reference, tiny


def random_scores(inputs):
    return torch.randn(inputs["input_ids"].shape, generator=torch.Generator().manual_seed(0))


def slow_curve(model, inputs, scores, row, order, chunk=1):
    """One text, one method: rank the chunks, mask one after the other, run each time."""
    one, causal = tiny.row(inputs, row), lrp.describe(model).causal
    own = lrp.Inputs.of(one).content_mask[0].nonzero().flatten().tolist()
    chunks = [own[start : start + chunk] for start in range(0, len(own), chunk)]
    sign = -1 if order == "morf" else 1
    chunks.sort(key=lambda part: sign * sum(float(scores[row, i]) for i in part))
    curve = []
    for step in range(len(chunks) + 1):
        gone = {token for part in chunks[:step] for token in part}
        left = [i for i in range(one["input_ids"].shape[1]) if i not in gone]
        if not left:
            curve.append(float("nan"))
            continue
        # A decoder's masked text ends where the last token that is left stands.
        end = left[-1] + 1 if causal else None
        text = {name: value[:, :end] for name, value in one.items()}
        logits = reference.without(model, text, 0, [i for i in gone if not end or i < end])
        if not curve:
            target = int(logits.argmax())
        curve.append(float(logits[target]))
    return torch.tensor(curve, dtype=torch.float64)


@pytest.mark.parametrize(("name", "chunk"), tiny.cases([1, 3], [3], tiny.TEXT_NAMES))
def test_equals_one_step_at_a_time(name, chunk):
    model = tiny.build(name)
    inputs = tiny.texts((9, 4, 6, 3, 1))
    scores = random_scores(inputs)
    found = lrp.perturbation_curves(model, inputs, scores, chunk)
    for order in ("morf", "lerf"):
        curves = getattr(found, order)
        assert curves.shape == (5, -(-7 // chunk) + 1)
        for row in range(5):
            slow = slow_curve(model, inputs, scores, row, order, chunk)
            torch.testing.assert_close(
                curves[row, : len(slow)], slow, rtol=1e-9, atol=1e-9, equal_nan=True
            )
            assert curves[row, len(slow) :].isnan().all()


def test_of_equal_scores_the_left_one_goes_first():
    model, inputs = tiny.build("bert"), tiny.texts((6,))
    falling = lrp.perturbation_curves(model, inputs, -torch.arange(6.0)[None])
    for curve in lrp.perturbation_curves(model, inputs, torch.zeros(1, 6)):
        torch.testing.assert_close(curve, falling.morf)
    assert not torch.allclose(falling.lerf, falling.morf)


def test_a_mean_is_that_of_a_rows_own_points():
    curve = torch.tensor([[5.0, 3.0, 2.0, 2.0], [4.0, 1.0, torch.nan, torch.nan]])
    torch.testing.assert_close(lrp.curve_mean(curve), torch.tensor([3.0, 2.5]))


def test_scores_must_fit_and_be_finite():
    model, inputs = tiny.build("bert"), tiny.texts((5, 4))
    with pytest.raises(ValueError, match=r"\(2, 4\)"):
        lrp.perturbation_curves(model, inputs, torch.zeros(2, 4))
    scores = torch.zeros(2, 5)
    scores[1, 4] = torch.nan  # padding may hold anything
    assert lrp.perturbation_curves(model, inputs, scores).morf.shape == (2, 4)
    scores[1, 2] = torch.inf
    with pytest.raises(ValueError, match="text 1, token 2 is inf"):
        lrp.perturbation_curves(model, inputs, scores)
