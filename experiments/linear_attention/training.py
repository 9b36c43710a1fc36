"""Training as in the paper, and the weights that were trained once.

A network trained in float32 differs from one processor to the next, and so would every number
after it. The weights in `assets/linear_attention` are therefore fixed: trained once, rounded to
half precision, and used in float64. They exist for scikit-learn's digits only; networks for other
data are trained on demand.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

from experiments.images import ImageData
from experiments.linear_attention.network import LinearAttention, Setting, one_thread

_SHIPPED_DATA = "scikit-learn digits"
_PAPER_EPOCHS = 5
# The digits are few: 60 epochs are 11,460 steps, against 37,500 of 5 epochs of the whole MNIST.
# Without an embedding there is less to learn.
_DIGITS_EPOCHS = {"learned": 60, "none": 30}
# Shipped networks: setting → number of training seeds. Flattened networks are ten times larger.
SHIPPED = {
    Setting(embedding, pooling, scaling): seeds
    for embedding, pooling, seeds in (("learned", "mean", 5), ("none", "flattened", 3))
    for scaling in ("unit", "standard", "signed")
}
_ASSETS = Path(__file__).parents[1] / "assets/linear_attention"


@one_thread()
def train(
    data: ImageData,
    setting: Setting,
    seed: int,
    *,
    epochs: int | None = None,
    device: str | torch.device = "cpu",
) -> LinearAttention:
    """Train one network on `data`, on a device, and return it here in float64, without gradients.

    Adam with cross-entropy, as in the paper: learning rate 1e-3, betas 0.9 and 0.999. `epochs` is
    `epochs_for` the data by default. The paper gives no batch size for training; 8 is the one that
    it gives for LOO. Training runs in float32: the same seed gives the same network on the same
    computer only.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LinearAttention(
            setting,
            tokens=data.side**2,
            classes=data.classes,
            mean=float(data.train_images.mean()),
            deviation=float(data.train_images.std()),
        )
        # Weights and order are drawn here, so that a seed means the same on every device.
        pixels = network.scaled(torch.from_numpy(data.train_images)).to(device)
        labels = torch.from_numpy(data.train_labels).to(device)
        network = network.to(device)
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        for _ in range(epochs_for(data, setting) if epochs is None else epochs):
            for batch in torch.randperm(len(labels)).to(device).split(8):
                optimizer.zero_grad()
                cross_entropy(network.from_pixels(pixels[batch]), labels[batch]).backward()
                optimizer.step()
    return network.cpu().double().eval().requires_grad_(False)


def epochs_for(data: ImageData, setting: Setting) -> int:
    """Return the paper's 5 epochs, or more for scikit-learn's digits, since they are few."""
    return _DIGITS_EPOCHS[setting.embedding] if data.name == _SHIPPED_DATA else _PAPER_EPOCHS


def networks(
    data: ImageData,
    setting: Setting,
    seeds: int,
    *,
    train_here: bool = False,
    device: str | torch.device = "cpu",
) -> list[LinearAttention]:
    """Return one network per training seed (0, 1, …): shipped ones where they exist, else trained.

    `train_here` trains even where weights are shipped, on the `device`; ValueError for less than
    one seed.
    """
    if seeds < 1:
        raise ValueError(f"seeds={seeds}: at least one network is needed")
    shipped = data.name == _SHIPPED_DATA and data.side == 14 and seeds <= SHIPPED.get(setting, 0)
    here = train_here or not shipped
    return [
        train(data, setting, n, device=device) if here else load_shipped(setting, n)
        for n in range(seeds)
    ]


def load_shipped(
    setting: Setting, seed: int, folder: str | Path | None = None, *, tokens: int = 196
) -> LinearAttention:
    """Return the shipped network of this training seed, in float64.

    `folder`: read what `save_networks` wrote there instead. `tokens` counts where the weights do
    not tell: a mean without positions takes any number.
    """
    count = SHIPPED.get(setting, 0)
    if folder is None and not 0 <= seed < count:
        raise ValueError(
            f"{setting.name} is shipped for {count} seed(s), not for seed={seed}; "
            f"shipped settings: {[s.name for s in SHIPPED]}; train the others"
        )
    stored = load_file(Path(folder or _ASSETS) / f"{setting.name}.safetensors")
    start = f"{seed}."
    state = {n.removeprefix(start): t.double() for n, t in stored.items() if n.startswith(start)}
    output = state["output.weight"]
    dim = len(state["query.bias"])
    if setting.pooling == "flattened":
        tokens = output.shape[1] // dim
    elif "position" in state:
        tokens = len(state["position"])
    network = LinearAttention(setting, tokens=tokens, dim=dim, classes=len(output)).double()
    network.load_state_dict(state)
    return network.eval().requires_grad_(False)


def save_networks(trained: Iterable[LinearAttention], folder: str | Path) -> Path:
    """Write one setting's networks to a file, parameters in half precision; return its path."""
    trained = list(trained)
    (setting,) = {network.setting for network in trained}
    tensors = {
        f"{seed}.{name}": (tensor if name in ("shift", "scale") else tensor.half()).contiguous()
        for seed, network in enumerate(trained)
        for name, tensor in network.state_dict().items()
    }
    path = Path(folder) / f"{setting.name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return path
