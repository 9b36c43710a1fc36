"""Leave-one-out in low precision: what is rounded, what is certified, and what is run again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lrputils as lrp
from lrputils.model.architectures import describe
from lrputils.model.forwards import replaced
from lrputils.removal import shortcuts
from lrputils.removal.certified import certified
from lrputils.removal.leave_one_out import certified_loo, leave_one_out
from lrputils.removal.rows import Text
from tests import tiny

# Results are the same where bfloat16 is emulated.
pytestmark = pytest.mark.filterwarnings("ignore:this device has no products of bfloat16")

CLASSIFIERS = tuple(name for name in tiny.TEXT_NAMES if not name.endswith("-lm"))
LENGTHS = (16, 12, 20, 14, 18, 16, 13, 19, 15, 17)


def loss_of(scores, exact):
    return 1 - np.corrcoef(scores, exact)[0, 1]


def made_up(random, texts, noise, normal=True):
    """Texts, their outputs in float32, and errors whose size differs from text to text."""
    lengths = random.integers(8, 41, texts)
    found = [Text(np.arange(n) + 100 * i, np.arange(n)) for i, n in enumerate(lengths)]
    outputs = [random.standard_t(4, n) * random.lognormal() for n in lengths]
    drawn = random.standard_normal if normal else lambda n: random.standard_t(5, n)
    sizes = noise * random.lognormal(sigma=0.6, size=texts)
    errors = [s * f.std() * drawn(len(f)) for f, s in zip(outputs, sizes, strict=True)]
    return found, np.concatenate(outputs), np.concatenate(errors)


def run_on(output, errors, calls=None):
    """What `certified` is given to run rows: float32's outputs, or those with errors."""

    def run(numbers, digits):
        if calls is not None:
            calls.append((digits, list(numbers)))
        numbers = np.array(numbers)
        return torch.from_numpy(output[numbers] + (digits != "float32") * errors[numbers])

    return run


def certify(texts, output, errors, tolerance=0.9, *, calls=None):
    return certified(texts, run_on(output, errors, calls), "bf16", tolerance)


def by_text(texts, values):
    return np.split(np.asarray(values), np.cumsum([len(text) for text in texts])[:-1])


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_low_precision_is_near_on_every_architecture(name, fused, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: fused)
    model, inputs = tiny.build(name, dtype=torch.float32), tiny.texts(LENGTHS)
    exact = leave_one_out(model, inputs)
    low = certified_loo(model, inputs, precision="bf16", tolerance=0.999)
    error = (low.scores - exact).abs()
    size = exact.abs().max()
    assert error[low.exact].max() < 1e-5 * max(1, size)
    assert 0 < error.max() < 0.1 * size
    assert all("forward" not in vars(part) for part in model.modules())


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_only_the_factors_of_products_are_rounded(name):
    """Residual stream and last block are in float32, with more digits than bfloat16 holds."""
    model, inputs = tiny.build(name, dtype=torch.float32), tiny.texts()
    architecture, seen, states = describe(model), [], []
    kept = {
        block: lambda f, *a, **k: states.append(a[0]) or f(*a, **k) for block in architecture.blocks
    }
    linear = [m for m in architecture.blocks[-1].modules() if isinstance(m, torch.nn.Linear)]
    kept |= {m: lambda f, x: seen.append(f(x)) or seen[-1] for m in linear}
    with torch.no_grad(), shortcuts.fast_linear(architecture, 0, "bf16"), replaced(kept):
        model(**architecture.arguments(inputs))
    assert len(states) == architecture.layers
    for each in (*states, *seen):
        assert each.dtype == torch.float32
    assert all((each != each.bfloat16().float()).any() for each in (*states, *seen))


@pytest.mark.parametrize("normal", [True, False], ids=["normal", "heavy tails"])
def test_the_certificate_covers(normal):
    random = np.random.default_rng(1)
    bounds = []
    for _ in range(80):
        texts, output, errors = made_up(random, 30, 0.03, normal)
        found = certify(texts, output, errors)
        pairs = zip(by_text(texts, found.scores), by_text(texts, output), strict=True)
        true = np.array([loss_of(*pair) for pair in pairs])
        bounds.append((true <= found.bound).mean())
    assert np.mean(bounds) > 0.94


def test_an_error_that_a_text_shares_cancels():
    texts, output, _ = made_up(np.random.default_rng(3), 12, 0.03)
    shared = np.repeat(np.arange(12.0), [len(text) for text in texts])
    found = certify(texts, output, shared)
    np.testing.assert_allclose(found.scores, output, atol=1e-12)
    assert found.bound.max() < 1e-12


def test_a_tampered_pass_is_caught_and_only_the_worst_texts_run_again():
    texts, output, errors = made_up(np.random.default_rng(4), 20, 0.002)
    starts = np.cumsum([0, *map(len, texts)])
    random = np.random.default_rng(5)
    for text in (3, 11):
        own = slice(starts[text], starts[text + 1])
        errors[own] = output[own].std() * random.standard_normal(len(texts[text]))
    calls = []
    found = certify(texts, output, errors, 0.01, calls=calls)
    assert set(np.flatnonzero(found.redone)) == {3, 11}
    assert [digits for digits, _ in calls] == ["bf16", "float32", "float32"]
    once = sorted(calls[1][1] + calls[2][1])
    assert len(set(once)) == len(once)
    assert np.flatnonzero(found.exact).tolist() == once
    for number, (scores, exact) in enumerate(
        zip(by_text(texts, found.scores), by_text(texts, output), strict=True)
    ):
        assert np.allclose(scores, exact, atol=1e-12) == (number in {3, 11})
        assert loss_of(scores, exact) < 0.01


def test_a_single_row_that_goes_astray_is_among_the_largest_and_becomes_exact():
    texts, output, errors = made_up(np.random.default_rng(6), 12, 0.002)
    astray = len(texts[0]) + 5
    errors[astray] = 50 * np.abs(output).max()
    found = certify(texts, output, errors)
    assert found.exact[astray]
    assert found.scores[astray] == pytest.approx(output[astray])


def test_a_text_too_short_to_sample_is_exact():
    texts = [Text(np.arange(n) + n, np.arange(n)) for n in (1, 2, 3, 4)]
    output, errors = np.random.default_rng(8).standard_normal((2, 10))
    found = certify(texts, output, errors)
    assert found.exact.all()
    np.testing.assert_allclose(found.scores, output)
    assert found.bound.max() == 0


def test_a_models_worst_texts_are_float32s():
    model, inputs = tiny.build("bert", dtype=torch.float32), tiny.texts(LENGTHS)
    exact = leave_one_out(model, inputs)
    found = certified_loo(model, inputs, precision="bf16", tolerance=0.9)
    assert not found.redone.any()
    assert found.exact.sum() < inputs["attention_mask"].sum()
    tolerance = float(np.sort(found.bound)[-4])
    again = certified_loo(model, inputs, precision="bf16", tolerance=tolerance)
    assert again.redone.tolist() == (found.bound > tolerance).tolist()
    assert again.redone.sum() == 3
    torch.testing.assert_close(again.scores[again.redone], exact[again.redone])
    kept = torch.from_numpy(~again.redone)
    torch.testing.assert_close(again.scores[kept], found.scores[kept])
    by_name = lrp.attribute(model, inputs, "loo", precision="bf16", tolerance=1e-9)
    torch.testing.assert_close(by_name, exact)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "half"}, r"'half' is not available on 'cpu' devices.*'bf16'"),
        ({"precision": "tf32"}, r"'tf32' is not available on 'cpu' devices"),
        ({"precision": "bf16", "tolerance": 0.0}, r"tolerance=0.0.*precision='float32'"),
        ({"precision": "bf16", "tolerance": 1}, "tolerance=1"),
        ({"precision": "bf16", "tolerance": float("nan")}, "tolerance=nan"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    model = tiny.build("bert", dtype=torch.float32)
    with pytest.raises(ValueError, match=message):
        certified_loo(model, tiny.texts(), **options)


def test_a_model_of_another_dtype_is_refused():
    with pytest.raises(ValueError, match=r"this one is in float64.*dtype='float32'"):
        leave_one_out(tiny.build("bert"), tiny.texts(), precision="bf16")


def test_a_processor_without_such_products_is_named(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False})
    model = tiny.build("bert", dtype=torch.float32)
    with pytest.warns(UserWarning, match=r"no products of bfloat16.*slower"):
        leave_one_out(model, tiny.texts(), precision="bf16")
