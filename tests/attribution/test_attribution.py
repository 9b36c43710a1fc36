"""Every named method on every model: gate 5, its options, its mistakes, and what it must equal."""

import pytest
import torch

import lrputils as lrp
from lrputils.attribution import registry
from lrputils.model.attention import fused
from lrputils.model.operations import routed
from lrputils.model.readout import read
from tests import tiny

METHODS = sorted(lrp.METHODS)
QUICK = {"ig": {"steps": 3}, "shapley": {"permutations": 4}}


def scores(model, inputs, method, **options):
    options = {**QUICK.get(method, {}), **options}
    if method == "ig" and "pixel_values" in inputs:
        options.setdefault("baseline", "zero")
    return lrp.attribute(model, inputs, method, **options)


# --- gate 5 ---------------------------------------------------------------------------------------


# Every method on four families; of the others, what goes through all rules, and a removal.
FAMILIES = ("bert", "gpt2", "llama", "vit")
ON_EACH = [
    (name, method)
    for name in tiny.NAMES
    for method in (METHODS if name in FAMILIES else ("attnlrp", "loo"))
]


@pytest.mark.parametrize(("name", "method"), ON_EACH)
def test_a_batch_equals_its_rows_alone_and_padding_gets_zero(name, method):
    model, inputs = tiny.build(name, dtype=torch.float32), tiny.inputs_for(name)
    inputs = {k: v.float() if v.is_floating_point() else v for k, v in inputs.items()}
    together = scores(model, inputs, method)
    assert together.dtype == torch.float32
    assert not together.requires_grad
    for index in range(3):
        alone = scores(model, tiny.row(inputs, index), method)
        length = alone.shape[1]
        assert float((together[index : index + 1, :length] - alone).abs().max()) <= 1e-5
        assert not together[index, length:].any()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_models_dtype_costs_only_precision(method, dtype):
    model, inputs = tiny.build("bert", dtype=torch.float32), tiny.texts()
    expected = scores(model, inputs, method, target=0)
    found = scores(model.to(dtype), inputs, method, target=0)
    assert found.dtype == torch.float32
    # Leave-one-out is a difference of close numbers, and bfloat16 has 8 bits.
    tolerance = 1e-4 if dtype == torch.float64 else 0.35
    assert tiny.close(found, expected, tolerance)


@pytest.mark.parametrize("method", METHODS)
def test_a_decoder_padded_on_the_left_gets_the_same_scores(method):
    model, inputs = tiny.build("llama-lm"), tiny.texts((6, 4))
    expected = scores(model, inputs, method)
    left = {key: value.clone() for key, value in inputs.items()}
    for value in left.values():
        value[1] = value[1].roll(2)
    found = scores(model, left, method)
    assert tiny.close(found[0], expected[0])
    assert tiny.close(found[1, 2:], expected[1, :4])
    assert not found[1, :2].any()


# --- the contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sorted({*METHODS} - {"rollout"}))
def test_targets_one_for_all_or_one_a_row(method):
    model, inputs = tiny.build("bert"), tiny.texts()
    each = [scores(model, inputs, method, target=c) for c in range(tiny.LABELS)]
    mixed = scores(model, inputs, method, target=torch.tensor([2, 0, 1]))
    assert tiny.close(mixed, torch.stack([each[2][0], each[0][1], each[1][2]]))
    with torch.no_grad():
        predicted = model(**lrp.describe(model).arguments(inputs)).logits.argmax(1)
    assert tiny.close(
        scores(model, inputs, method), scores(model, inputs, method, target=predicted)
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_trainable_model_and_any_gradient_mode_get_the_same_scores_and_no_gradients(method):
    model, inputs = tiny.build("bert"), tiny.texts()
    expected = scores(model, inputs, method)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(scores(model, inputs, method), expected)
    model.requires_grad_(True)
    assert torch.equal(scores(model, inputs, method), expected)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_special_tokens_can_be_left_out():
    model, inputs = tiny.build("bert"), tiny.texts()
    everything = scores(model, inputs, "cp-lrp")
    content = scores(model, inputs, "cp-lrp", special_tokens=False)
    special = inputs["special_tokens_mask"].bool()
    assert not content[special].any()
    assert torch.equal(content[~special], everything[~special])


def test_a_method_is_one_function():
    @registry.method("half-value", "Half of V", "#F0E442")
    def half_value(model, inputs, *, target, readout="word", **_):
        """AttnLRP with its softmax closed.

        Args:
            readout: where relevance is read,
                in one of three places.
        """
        composite = lrp.ATTN_LRP.but(attention="half-value")
        return lrp.attribute(model, inputs, composite, target=target, readout=readout)

    try:
        model, inputs = tiny.build("bert"), tiny.texts()
        composite = lrp.ATTN_LRP.but(attention="half-value")
        expected = lrp.attribute(model, inputs, composite, readout="sum")
        assert torch.equal(lrp.attribute(model, inputs, "half-value", readout="sum"), expected)
        entered = lrp.METHODS["half-value"]
        option = registry.Option("word", "where relevance is read, in one of three places.")
        assert (entered.label, entered.colour) == ("Half of V", "#F0E442")
        assert entered.options == {"readout": option}
        with pytest.raises(ValueError, match="a method 'half-value' already"):
            registry.method("half-value", "Another")(half_value)
        with pytest.raises(ValueError, match="'my way' cannot name a method: a name is words"):
            registry.method("my way", "Mine")(half_value)
    finally:
        del lrp.METHODS["half-value"]


def broken(model):
    model.classifier.bias.data[0] = float("nan")
    return model


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda m, x: lrp.attribute(m, x, "shap"),
            "unknown method 'shap' .did you mean 'shapley'.*attnlrp",
        ),
        (lambda m, x: lrp.attribute(m, x, "ig", step=3), "no option 'step'.*steps=32"),
        (lambda m, x: lrp.attribute(m, x, "cp-lrp", bypass_layers={1}), "no option.*readout"),
        (lambda m, x: lrp.attribute(m, x, "cp-lrp", readout="top"), "has no read-out 'top'"),
        (lambda m, x: lrp.attribute(m, x, "attnlrp", bypass_layers={9}), r"\[9\] do not exist"),
        (lambda m, x: lrp.attribute(m, x, "canonised-lrp", unit="half"), "unit='half' is not one"),
        (lambda m, x: lrp.attribute(m, x, "cp-lrp", target=3), "classes are 0 to 2"),
        (lambda m, x: lrp.attribute(m, x, "cp-lrp", target=[0, 1]), "one for each of the 3 rows"),
        (lambda m, x: lrp.attribute(m, x, "cp-lrp", target=0.5), "class number"),
        (lambda m, x: lrp.attribute(m, x, "ig", baseline="noise"), "unknown baseline 'noise'"),
        (lambda m, x: lrp.attribute(m, x, "ig", baseline="mask"), "mask_token_id"),
        (
            lambda m, x: lrp.attribute(m, x, "ig", steps=0),
            "steps=0 is not a whole number from 1 on",
        ),
        (
            lambda m, x: lrp.attribute(m, x, "rollout", variant="mean"),
            r"variant='mean' is not one of \['paper'",
        ),
        (lambda m, x: lrp.attribute(m.train(), x, "cp-lrp"), "model.eval"),
        (lambda m, x: lrp.attribute(m, x, ["ig"]), "unknown method"),
        (lambda m, x: lrp.attribute(m, x, "attnlrp", bypass_layers=None), "set, list or range"),
        (lambda m, x: lrp.attribute(m, x, "ig", baseline=10**6), "no token id"),
        (lambda m, x: lrp.attribute(m, x, "ig", batch_tokens=0), "batch_tokens"),
        (lambda m, x: lrp.attribute(m, {"input_ids": torch.ones(1, 3)}, "cp-lrp"), "whole numbers"),
        (
            lambda m, x: lrp.attribute(m, {"input_ids": torch.tensor([[1, 10**6]])}, "loo"),
            "tokenizer that belongs to the model",
        ),
        (lambda m, x: lrp.attribute(broken(m), x, "cp-lrp"), "NaN or infinite.*rows"),
        (lambda m, x: lrp.attribute(m, {**x, "special_tokens_mask": None}, "ig"), "special_tokens"),
    ],
)
def test_mistakes_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call(tiny.build("bert"), tiny.texts())


# --- single methods -------------------------------------------------------------------------------


def gap(model, inputs, baseline, steps):
    """How far scores are from summing to f(x) − f(baseline), as a share of the largest of these."""
    architecture, found = (
        lrp.describe(model),
        scores(model, inputs, "ig", baseline=baseline, steps=steps),
    )
    reading = read(architecture, inputs)
    empty = torch.zeros_like(reading.value)
    if baseline != "zero":
        token = tiny.PAD if baseline == "pad" else baseline
        empty = architecture.word_embeddings(torch.full(reading.valid.shape, token)).detach()
    kept = reading.head if architecture.vision else inputs["special_tokens_mask"].bool()
    start = torch.where(kept[..., None], reading.value, empty)
    end = read(architecture, inputs, target=reading.target, change=lambda _: start)
    change = (reading.output - end.output).detach()
    return float((found.sum(1) - change).abs().max() / change.abs().max())


@pytest.mark.parametrize(
    ("name", "baseline"),
    [(name, start) for name in ("bert", "gpt2") for start in ("pad", "zero", tiny.MASK)]
    + [("vit", "zero")],
)
def test_integrated_gradients_become_complete(name, baseline):
    model, inputs = tiny.build(name, initializer_range=0.1), tiny.inputs_for(name)
    assert gap(model, inputs, baseline, 64) < min(gap(model, inputs, baseline, 2), 2e-3)


def test_integrated_gradients_keep_special_tokens_and_bound_their_memory():
    model, inputs = tiny.build("bert"), tiny.texts()
    whole = scores(model, inputs, "ig", steps=7)
    assert not whole[inputs["special_tokens_mask"].bool()].any()
    assert tiny.close(scores(model, inputs, "ig", steps=7, batch_tokens=1), whole)


def test_integrated_gradients_of_images_start_from_nothing():
    model, inputs = tiny.build("vit"), tiny.images()
    assert not scores(model, inputs, "ig")[:, 0].any()
    with pytest.raises(ValueError, match="images"):
        lrp.attribute(model, inputs, "ig")


@pytest.mark.parametrize("name", ["bert", "llama", "vit"])
@pytest.mark.parametrize("variant", ["paper", "abnar"])
def test_rollout_is_the_product_of_mean_attentions(name, variant):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    one = tiny.row(inputs, 0)
    weights = []

    def note(call):
        weights.append(call.weights()[0].mean(0))
        return fused(call)

    with routed(model, note), torch.no_grad():
        model(**lrp.describe(model).arguments(one))
    if variant == "abnar":
        weights = [(w + torch.eye(len(w))) / 2 for w in weights]
    product = weights[2] @ weights[1] @ weights[0]
    expected = product[-1 if name == "llama" else 0].float()
    found = scores(model, one, "rollout", variant=variant)[0]
    assert tiny.close(found, expected)
    assert abs(float(found.sum()) - 1) < 1e-5


def test_attention_x_grad_is_the_effect_of_scaling_all_weights_on_a_token():
    """Σ A_ji ∂f/∂A_ji is the derivative of f when every weight on token i grows by one factor."""
    model, inputs = tiny.build("bert"), tiny.texts((5,))
    found = scores(model, inputs, "attention-x-grad", target=0)[0]
    step = 1e-6
    for token in range(5):
        values = []
        for sign in (1, -1):

            def scaled(call, sign=sign, token=token):
                weights = call.weights().clone()
                weights[..., token] *= 1 + sign * step
                return (weights @ call.value).transpose(1, 2), weights

            with routed(model, scaled), torch.no_grad():
                values.append(float(model(**lrp.describe(model).arguments(inputs)).logits[0, 0]))
        assert abs((values[0] - values[1]) / (2 * step) - float(found[token])) < 1e-4
