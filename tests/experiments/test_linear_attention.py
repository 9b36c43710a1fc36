import numpy as np
import pytest
import torch

import experiments.linear_attention as la
from experiments.images import ImageData, load_images
from experiments.recordings.mnist import _attnlrp_with_epsilon
from tests import reference

SETTINGS = la.SETTINGS
NAMED = {"ids": lambda setting: setting.name}


def tiny(setting, *, tokens=9, dim=4, classes=3, seed=0):
    """A network whose biases and positions are large enough to matter."""
    torch.manual_seed(seed)
    network = la.LinearAttention(
        setting, tokens=tokens, dim=dim, classes=classes, mean=0.3, deviation=0.4
    ).double()
    for parameter in network.parameters():
        parameter.data = torch.randn_like(parameter)
    return network.requires_grad_(False)


def some_images(count=5, tokens=9):
    images = torch.rand(count, tokens, generator=torch.Generator().manual_seed(1)).double()
    images[:, 0] = 0
    return images


def tiny_data(side=3, count=40):
    pixels = np.random.default_rng(0).random((count, side * side))
    labels = (pixels[:, 0] > 0.5).astype(np.int64)
    half = count // 2
    return ImageData("random", "", side, pixels[:half], labels[:half], pixels[half:], labels[half:])


# LRP by the explicit ε-rules


def slow_attnlrp(network, image, factorization, epsilon):
    state = network.state_dict()

    def back(name, x, relevance):
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        return reference.linear(x, weight, bias, relevance, epsilon)

    tokens = pixels = ((image - state["shift"]) / state["scale"])[:, None]
    if network.setting.embedding == "learned":
        embedded = pixels @ state["embedding.weight"].T + state["embedding.bias"]
        tokens = embedded + state["position"]
    q, k, v = (
        tokens @ state[f"{name}.weight"].T + state[f"{name}.bias"]
        for name in ("query", "key", "value")
    )
    attended = q @ k.T @ v
    mean = network.setting.pooling == "mean"
    pooled = attended.mean(0) if mean else attended.ravel()
    logits = state["output.weight"] @ pooled + state["output.bias"]
    explained = torch.where(logits == logits.max(), logits, 0.0)
    at_attended = back("output", pooled[None], explained[None])
    if mean:
        share = attended / len(attended) / reference.stabilised(pooled, epsilon)
        at_attended = share * at_attended
    at_attended = at_attended.reshape(attended.shape)
    if factorization == la.LEFT:
        at_scores, at_v = reference.product(q @ k.T, v, at_attended, epsilon)
        at_q, at_kt = reference.product(q, k.T, at_scores, epsilon)
    else:
        at_q, at_written = reference.product(q, k.T @ v, at_attended, epsilon)
        at_kt, at_v = reference.product(k.T, v, at_written, epsilon)
    at_tokens = sum(
        back(name, tokens, relevance)
        for name, relevance in (("query", at_q), ("key", at_kt.T), ("value", at_v))
    )
    if network.setting.embedding == "none":
        return at_tokens[:, 0]
    at_embedded, _ = reference.residual(embedded, state["position"], at_tokens, epsilon)
    return back("embedding", pixels, at_embedded)[:, 0]


@pytest.mark.parametrize("epsilon", [0.0, 1e-2])
@pytest.mark.parametrize("factorization", [la.LEFT, la.RIGHT])
@pytest.mark.parametrize("setting", SETTINGS, **NAMED)
def test_attnlrp_is_the_explicit_rules(setting, factorization, epsilon):
    network, images = tiny(setting, tokens=4, dim=3), some_images(3, tokens=4)
    fast = without = la.attnlrp(network, images, factorization).numpy()
    if epsilon:
        fast = _attnlrp_with_epsilon(network, images, factorization, epsilon).numpy()
        assert np.abs(fast - without).max() > 1e-6 * np.abs(fast).max()
    slow = np.stack([slow_attnlrp(network, image, factorization, epsilon) for image in images])
    np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-9 * np.abs(slow).max())


# LOO


def leave_one_out_by_passes(network, images, removal, order):
    """One forward pass a pixel; "delete" cuts the token out of Q, K and V."""
    pixels = network.scaled(images)
    logits = network.from_pixels(pixels, order)
    absent = network.scaled(0 * images) if removal == "black" else 0 * pixels
    places, without = torch.arange(network.tokens), []
    for token in places:
        if removal != "delete":
            without.append(network.from_pixels(torch.where(places == token, absent, pixels), order))
            continue
        kept = places != token
        query, key, value = (rows[:, kept] for rows in network.project(pixels))
        attended = (query @ key.mT) @ value if order == la.LEFT else query @ (key.mT @ value)
        if network.setting.pooling == "mean":
            without.append(network.classify(attended))
        else:
            weight = network.output.weight.view(-1, network.tokens, network.dim)[:, kept]
            without.append(attended.flatten(1) @ weight.flatten(1).T + network.output.bias)
    effects = logits[:, None] - torch.stack(without, 1)
    target = logits.argmax(1)[:, None, None].expand(-1, network.tokens, 1)
    return effects.gather(2, target)[..., 0]


@pytest.mark.parametrize("removal", la.REMOVALS)
@pytest.mark.parametrize("setting", SETTINGS, **NAMED)
def test_closed_form_loo_equals_a_forward_pass_per_pixel(setting, removal):
    network, images = tiny(setting), some_images(10)
    closed = la.leave_one_out(network, images, removal=removal)
    for order in (la.LEFT, la.RIGHT):
        by_passes = leave_one_out_by_passes(network, images, removal, order)
        torch.testing.assert_close(closed, by_passes, rtol=1e-8, atol=1e-8)


# Integrated Gradients


def completeness_gap(network, images, maps, baseline):
    """How far each map's sum is from the gain in logit over the baseline, as a share of it."""
    grey = {"black": 0 * images, "white": 1 + 0 * images}
    pixels = network.scaled(images)
    start = network.scaled(grey[baseline]) if baseline in grey else 0 * pixels
    logits = network.from_pixels(pixels)
    gain = (logits - network.from_pixels(start)).gather(1, logits.argmax(1, keepdim=True))[:, 0]
    return ((maps.sum(1) - gain) / gain).abs()


@pytest.mark.parametrize("baseline", la.BASELINES)
@pytest.mark.parametrize("setting", SETTINGS, **NAMED)
def test_two_nodes_are_complete(setting, baseline):
    network, images = tiny(setting), some_images()
    maps = la.integrated_gradients(network, images, baseline=baseline)
    assert completeness_gap(network, images, maps, baseline).max() < 1e-9


# Agreement


@pytest.mark.parametrize(
    ("seeds", "by_seed", "by_image"), [(3, 0.1, 0.02), (5, 0.1, 0.02), (8, 0.05, 0.05), (3, 0, 0.2)]
)
def test_crossed_interval_holds_the_truth_as_often_as_it_says(seeds, by_seed, by_image):
    generator, held = np.random.default_rng(0), []
    for _ in range(400):
        values = by_seed * generator.normal(size=(seeds, 1))
        values = values + by_image * generator.normal(size=40)
        values = values + 0.05 * generator.normal(size=(seeds, 40))
        found = la.crossed_estimate(values)
        held.append(found.low <= 0 <= found.high)
    assert 0.88 <= np.mean(held) <= 0.99


# Training and what is shipped


def test_training_learns_and_leaves_the_global_generator_alone():
    data = tiny_data(count=400)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    network = la.train(data, la.Setting("none", "flattened", "signed"), 0, epochs=20)
    assert torch.equal(before, torch.get_rng_state())
    images, labels = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
    assert la.accuracy(network, images, labels) > 0.8
    assert network.output.weight.dtype == torch.float64


def test_networks_are_written_and_read_back(tmp_path):
    data = tiny_data()
    setting = la.Setting("learned", "mean", "standard")
    trained = [la.train(data, setting, seed, epochs=1) for seed in range(2)]
    la.save_networks(trained, tmp_path / "new")
    images = torch.from_numpy(data.test_images)
    for seed, network in enumerate(trained):
        loaded = la.load_shipped(setting, seed, tmp_path / "new")
        assert loaded.tokens == 9
        torch.testing.assert_close(loaded(images), network(images), rtol=0.01, atol=0.01)
        assert torch.equal(loaded.scale, network.scale)


def test_every_shipped_network_classifies_the_digits():
    data = load_images("digits")
    images, labels = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
    for setting, count in la.SHIPPED.items():
        networks = la.networks(data, setting, count)
        torch.testing.assert_close(
            networks[-1](images), la.load_shipped(setting, count - 1)(images)
        )
        for network in networks:
            assert la.accuracy(network, images, labels) > 0.5
            assert network.dim == 32
