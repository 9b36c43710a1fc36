"""The paper's linear attention network, its exact attributions, and trained weights.

    network = load_shipped(Setting("learned", "mean", "standard"), seed=0)
    maps = explain(network, images)        # "LOO", "IG", "(QKᵀ)V", "Q(KᵀV)", "3-ary"

A token is one pixel, and there is no softmax: attention is a product of three matrices, and since
that product is associative, (QKᵀ)V and Q(KᵀV) are one function. What the paper leaves open
(embedding, pooling, input scaling) is a `Setting`.

A network trained in float32 differs from one processor to the next, and so would every number
after it. The weights in `assets/linear_attention` are therefore fixed: trained once, rounded to
half precision, and used in float64. They exist for scikit-learn's digits only; networks for other
data are trained on demand. `python -m experiments.linear_attention --out DIR` trains those that are
shipped again; their card is `experiments/assets/linear_attention/README.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from scipy.special import stdtrit
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.command import main
from experiments.images import ImageData, load_images
from lrputils.mistakes import one_of
from lrputils.report.figures.style import COLORS, DIVERGING, WIDTH, Drawing, new_figure
from lrputils.stats import Estimate, pearson, sum_to_one

# A factorization's name, and the share of the relevance that Q, K and V get: 2 to the minus the
# number of products above; the 3-ary equal split gives a third to each.
SHARES = {
    "(QKᵀ)V": (1 / 4, 1 / 4, 1 / 2),
    "Q(KᵀV)": (1 / 2, 1 / 4, 1 / 4),
    "3-ary": (1 / 3, 1 / 3, 1 / 3),
}
LEFT, RIGHT, TERNARY = SHARES

_CHOICES = {
    "embedding": ("learned", "none"),
    "pooling": ("mean", "flattened"),
    "scaling": ("unit", "standard", "signed"),
}


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread; afterwards it has as many as before.

    Thousands of products of 196 × 32 matrices gain little from a second thread, and wait for it
    where the core is busy: minutes instead of seconds.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Setting:
    """What the paper leaves open about its network.

    Attributes:
        embedding: "learned" maps a pixel to 32 numbers and adds a position embedding; "none" puts
            the grey level itself into the three projections.
        pooling: "flattened" reads the class from all tokens side by side, "mean" from their mean.
        scaling: of the grey levels: "unit" leaves 0 to 1, "standard" subtracts the training pixels'
            mean and divides by their standard deviation, "signed" gives −1 to 1.
    """

    embedding: str = "learned"
    pooling: str = "mean"
    scaling: str = "standard"

    def __post_init__(self):
        for field, allowed in _CHOICES.items():
            one_of(field, getattr(self, field), allowed)

    @property
    def name(self) -> str:
        """The three choices in one word, for files and tables."""
        return f"{self.embedding}-{self.pooling}-{self.scaling}"


# Every reading of the paper's network.
SETTINGS = tuple(Setting(*choice) for choice in product(*_CHOICES.values()))


class LinearAttention(nn.Module):
    """One layer of softmax-free attention over pixels, and a linear output layer.

    Takes grey levels from 0 to 1 as (batch, tokens); `scaled` turns them into the network's input.
    `mean` and `deviation` are those of the training pixels, for "standard" scaling; `dim` is that
    of the paper.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        tokens: int = 196,
        dim: int = 32,
        classes: int = 10,
        mean: float = 0.0,
        deviation: float = 1.0,
    ):
        super().__init__()
        self.setting, self.tokens, self.dim = setting, tokens, dim
        scales = {"unit": (0.0, 1.0), "standard": (mean, deviation), "signed": (0.5, 0.5)}
        shift, scale = scales[setting.scaling]
        self.register_buffer("shift", torch.tensor(shift, dtype=torch.float64))
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float64))
        learned = setting.embedding == "learned"
        if learned:
            self.embedding = nn.Linear(1, dim)
            self.position = nn.Parameter(torch.randn(tokens, dim) * 0.02)
        for name in ("query", "key", "value"):
            self.add_module(name, nn.Linear(dim if learned else 1, dim))
        flattened = setting.pooling == "flattened"
        self.output = nn.Linear(tokens * dim if flattened else dim, classes)

    def scaled(self, images: Tensor) -> Tensor:
        """Scale grey levels (batch, tokens) as the setting says, in the weights' precision."""
        return ((images - self.shift) / self.scale).to(self.output.weight.dtype)

    def project(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (batch, tokens, dim) of scaled pixels (batch, tokens)."""
        tokens = pixels[..., None]
        if self.setting.embedding == "learned":
            tokens = self.embedding(tokens) + self.position
        return self.query(tokens), self.key(tokens), self.value(tokens)

    def output_rows(self, target: Tensor) -> Tensor:
        """Return w, (batch, tokens, dim), with logit = bias + Σ over tokens of ⟨attended, w⟩."""
        rows = self.output.weight[target]
        if self.setting.pooling == "flattened":
            return rows.view(len(target), self.tokens, self.dim)
        return (rows / self.tokens)[:, None, :].expand(-1, self.tokens, -1)

    def classify(self, attended: Tensor) -> Tensor:
        """Return logits (batch, classes) of the attended tokens (batch, tokens, dim)."""
        pooled = attended.flatten(1) if self.setting.pooling == "flattened" else attended.mean(1)
        return self.output(pooled)

    def from_pixels(self, pixels: Tensor, factorization: str = RIGHT) -> Tensor:
        """Return logits (batch, classes) of scaled pixels, multiplied in the order asked for."""
        one_of("factorization", factorization, (LEFT, RIGHT))
        query, key, value = self.project(pixels)
        left = factorization == LEFT
        return self.classify((query @ key.mT) @ value if left else query @ (key.mT @ value))

    def forward(self, images: Tensor, factorization: str = RIGHT) -> Tensor:
        """Return logits (batch, classes) of grey levels (batch, tokens)."""
        return self.from_pixels(self.scaled(images), factorization)


@torch.no_grad()
def accuracy(network: LinearAttention, images: Tensor, labels: Tensor) -> float:
    """Return the share of images (images, tokens) whose class is predicted."""
    predicted = torch.cat([network(part).argmax(1) for part in images.split(250)])
    return float((predicted == labels).double().mean())


# --- maps -----------------------------------------------------------------------------------------

REMOVALS = ("zero", "black", "delete")
BASELINES = ("zero", "black", "white")
READOUTS = ("pixel", "token")


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(-1)


@one_thread()
def attnlrp(
    network: LinearAttention, images: Tensor, factorization: str, *, readout: str = "pixel"
) -> Tensor:
    """Return AttnLRP's relevance (batch, tokens) of the predicted class's logit.

    Each matrix product halves relevance between its factors (AttnLRP's rule for bilinear maps);
    linear layers follow the ε-rule with ε → 0, which is gradient × input. So it is gradient × input
    with Q, K and V letting their `SHARES` of the gradient pass.

    Args:
        images: grey levels from 0 to 1, (batch, tokens)
        factorization: a name in `SHARES`
        readout: "pixel" stops at the scaled pixel, so that biases and position embeddings keep
            their share; "token" stops at the rows of Q, K and V and includes that share
    """
    one_of("factorization", factorization, SHARES)
    one_of("readout", readout, READOUTS)
    pixels = network.scaled(images).detach().requires_grad_()
    projected = network.project(pixels)
    query, key, value = (
        z.detach() + share * (z - z.detach())
        for z, share in zip(projected, SHARES[factorization], strict=True)
    )
    logit = network.classify(query @ (key.mT @ value)).max(1).values.sum()
    if readout == "pixel":
        return (pixels * torch.autograd.grad(logit, pixels)[0]).detach()
    return sum(map(_dot, projected, torch.autograd.grad(logit, projected))).detach()


@one_thread()
@torch.no_grad()
def leave_one_out(network: LinearAttention, images: Tensor, *, removal: str = "zero") -> Tensor:
    """Return, for every pixel, the predicted class's logit minus that logit without the pixel.

    `removal`: "zero" puts 0 into the network's input (after scaling), "black" the grey level 0
    (before scaling), "delete" takes the token out of queries, keys and values, and out of the mean
    where the network pools.

    No forward pass is run per pixel. The logit is ⟨M, G⟩ plus a bias, with M = KᵀV (what is
    written) and G = Σ_t q_t w_tᵀ (how it is read), both dim × dim; w_t is the output layer's row
    at token t. Removing a pixel changes M by k′v′ᵀ − kvᵀ and G by (q′ − q)wᵀ, matrices of rank two
    and one.
    """
    one_of("removal", removal, REMOVALS)
    pixels = network.scaled(images)
    query, key, value = network.project(pixels)
    written = key.mT @ value
    rows = network.output_rows(network.classify(query @ written).argmax(1))
    read = query.mT @ rows
    if removal == "delete":
        new_query, new_key, new_value = map(torch.zeros_like, (query, key, value))
    else:
        new_query, new_key, new_value = network.project(emptied(network, pixels, removal))
    change = query - new_query
    # ⟨M, G⟩ − ⟨M + D, G + E⟩ = −⟨M, E⟩ − ⟨D, G⟩ − ⟨D, E⟩
    through_read = _dot(change @ written, rows)
    through_written = _dot(key @ read, value) - _dot(new_key @ read, new_value)
    both = _dot(new_key, change) * _dot(new_value, rows) - _dot(key, change) * _dot(value, rows)
    effect = through_read + through_written + both
    if removal == "delete" and network.setting.pooling == "mean":
        total = (written * read).sum((1, 2))[:, None]
        effect = total - (total - effect) * network.tokens / (network.tokens - 1)
    return effect


@one_thread()
def mean_gradient(
    network: LinearAttention,
    images: Tensor,
    *,
    baseline: str = "zero",
    factorization: str = RIGHT,
) -> tuple[Tensor, Tensor]:
    """Return the mean gradient on the way from the baseline, and the way, (batch, tokens) each.

    Of the predicted class's logit. The baseline "zero" is the network's input of zeros, "black" the
    image of grey level 0, "white" that of 1. The logit is a cubic of the path's position, so its
    derivative is a parabola, and two Gauss-Legendre nodes integrate it exactly.
    """
    one_of("baseline", baseline, BASELINES)
    pixels = network.scaled(images).detach()
    way = pixels - emptied(network, pixels, baseline)
    target = network.from_pixels(pixels).argmax(1, keepdim=True)
    gradient = torch.zeros_like(pixels)
    for node, weight in zip(*np.polynomial.legendre.leggauss(2), strict=True):
        point = (pixels - (1 - node) / 2 * way).requires_grad_()
        logit = network.from_pixels(point, factorization).gather(1, target).sum()
        gradient += weight / 2 * torch.autograd.grad(logit, point)[0]
    return gradient, way


def integrated_gradients(network: LinearAttention, images: Tensor, **options) -> Tensor:
    """Return Integrated Gradients (batch, tokens): `mean_gradient`, with its options, × the way."""
    gradient, way = mean_gradient(network, images, **options)
    return gradient * way


def explain(
    network: LinearAttention,
    images: Tensor,
    *,
    removal: str = "zero",
    baseline: str = "zero",
) -> dict[str, Tensor]:
    """Return the chapter's maps, each (batch, tokens): LOO, IG, and LRP through each graph."""
    maps = {
        "LOO": leave_one_out(network, images, removal=removal),
        "IG": integrated_gradients(network, images, baseline=baseline),
    }
    return maps | {graph: attnlrp(network, images, graph) for graph in SHARES}


def emptied(network: LinearAttention, pixels: Tensor, how: str) -> Tensor:
    """Return the scaled image in which every pixel is "zero", "black" or "white"."""
    if how == "zero":
        return torch.zeros_like(pixels)
    return network.scaled(torch.full_like(pixels, 1.0 if how == "white" else 0.0))


# --- how maps agree -------------------------------------------------------------------------------

GRAPHS = f"{LEFT} vs {RIGHT}"
PAIRS = {
    GRAPHS: (LEFT, RIGHT),
    f"{LEFT} vs LOO": (LEFT, "LOO"),
    f"{RIGHT} vs LOO": (RIGHT, "LOO"),
    f"{TERNARY} vs LOO": (TERNARY, "LOO"),
    "IG vs LOO": ("IG", "LOO"),
}


def correlations(
    maps: Mapping[str, Tensor], pairs: Mapping[str, tuple[str, str]] = PAIRS
) -> pd.DataFrame:
    """Return r of each pair of one network's maps, each (images, tokens), a row per image and pair.

    `pairs`: the name of a pair → its two maps.

    Returns:
        Columns `id`, the image's number; `pair`; `r`, Pearson's r of the maps as they are;
        `r_normalised`, r after dividing each map by its sum; `flipped`, whether exactly one of the
        two sums was negative; `pooled`, r over the normalised maps of all images together, the same
        in all rows of a pair. NaN where a map is constant or sums to zero.
    """
    # A map that sums to zero cannot be normalised; as a constant it has no correlation either.
    scores = {name: np.nan_to_num(sum_to_one(own)) for name, own in maps.items()}
    negative = {name: (own.sum(1) < 0).numpy() for name, own in maps.items()}
    parts = [
        {
            "id": np.arange(len(scores[first])),
            "pair": pair,
            "r": pearson(maps[first], maps[second]),
            "r_normalised": pearson(scores[first], scores[second]),
            "flipped": negative[first] ^ negative[second],
            "pooled": pearson(scores[first].ravel(), scores[second].ravel())[0],
        }
        for pair, (first, second) in pairs.items()
    ]
    return pd.concat(map(pd.DataFrame, parts), ignore_index=True)


def crossed_estimate(values: np.ndarray) -> Estimate:
    """Return the mean of correlations (seeds, images) and its 95% interval over both.

    All seeds share the images and all images the seeds, so the mean varies with either. Its
    variance is taken as the sum of the two, those of the seeds' and of the images' means, which
    counts what is left in a single cell twice; the interval is Student's, with Satterthwaite's
    degrees of freedom, and stays within ±1. With one seed it is over images only. NaN is left out;
    ValueError where nothing is left.
    """
    known = np.ma.masked_invalid(values)
    if not known.count():
        raise ValueError("All values are NaN: no pair of maps has a correlation")
    means = [known.mean(axis).compressed() for axis in (1, 0)]
    variance = np.array([some.var(ddof=1) / len(some) for some in means if len(some) > 1])
    free = np.array([len(some) - 1 for some in means if len(some) > 1])
    reach = 0.0
    if variance.any():
        freedom = variance.sum() ** 2 / (variance**2 / free).sum()
        reach = stdtrit(freedom, 0.975) * variance.sum() ** 0.5
    low, high = np.clip([known.mean() - reach, known.mean() + reach], -1, 1)
    used = int(known.count())
    return Estimate(float(known.mean()), float(low), float(high), used, known.size - used)


ANY = "any"  # the removal of a pair without LOO


def distinct(setting: Setting, among: tuple[str, ...] = REMOVALS) -> list[str]:
    """Return the removals (or baselines) that differ: black is zero where grey levels stay."""
    return [how for how in among if how != "black" or setting.scaling != "unit"]


def under_every_removal(network: LinearAttention, images: Tensor) -> pd.DataFrame:
    """Return r of every pair of one network's maps under every removal, a row per image and pair.

    `images` are grey levels from 0 to 1, (images, tokens).

    Returns:
        The columns of `correlations`; `setting`; `removal`, "any" for the two graphs with each
        other; `target`, the predicted class. Beside the pairs of `PAIRS` there are IG from the
        other baselines, and for removal "delete" both graphs read at the rows of Q, K and V ("… @
        token"). Black is left out, as removal and as baseline, where it is 0 (`distinct`).
    """
    maps = explain(network, images)
    for start in distinct(network.setting, BASELINES[1:]):
        maps[f"IG from {start}"] = integrated_gradients(network, images, baseline=start)
    del maps["LOO"]
    parts = [correlations(maps, {GRAPHS: PAIRS[GRAPHS]}).assign(removal=ANY)]
    for removal in distinct(network.setting):
        if removal == "delete":
            for graph in (LEFT, RIGHT):
                maps[f"{graph} @ token"] = attnlrp(network, images, graph, readout="token")
        loo = {"LOO": leave_one_out(network, images, removal=removal)}
        pairs = {f"{name} vs LOO": (name, "LOO") for name in maps}
        parts.append(correlations(maps | loo, pairs).assign(removal=removal))
    rows = pd.concat(parts, ignore_index=True)
    target = network(images).argmax(1).numpy()
    return rows.assign(setting=network.setting.name, target=target[rows["id"]])


# --- a figure -------------------------------------------------------------------------------------

_SIDE = 14  # pixels


def draw_maps(
    columns: Mapping[str, Tensor], *, title: str, together: Sequence[str] = ()
) -> Drawing:
    """Draw images, (count, pixels) under the name "image", and their maps, a column a name.

    A map's colours span its own largest score; the maps `together` share a span within a row.
    """
    count = min(map(len, columns.values()))
    size = {"rows": count, "columns": len(columns), "squeeze": False}
    figure, axes = new_figure(WIDTH, 0.6 + 0.9 * count, title=title, **size)
    for place, (name, scores) in enumerate(columns.items()):
        for row, panel in enumerate(axes[:, place]):
            sharing = [columns[other] for other in together] if name in together else [scores]
            most = float(max(each[row].abs().max() for each in sharing))
            colours = {"cmap": DIVERGING, "vmin": -most, "vmax": most}
            if name == "image":
                colours = {"cmap": "gray_r", "vmin": 0, "vmax": 1}
            panel.imshow(scores[row].unflatten(0, (_SIDE, _SIDE)), **colours)
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set(visible=True, color=COLORS["faint"])
        axes[0, place].set_title(name, fontsize=10)
    return figure


# --- training, and what is shipped ----------------------------------------------------------------

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
_ASSETS = Path(__file__).parent / "assets/linear_attention"


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


def make(*, out: Path, dataset: str = "digits", epochs: int | None = None) -> Path:
    """Train the shipped networks of chapter 2 again, about half an hour of one core.

    Args:
        out: folder for the weights, a file a setting
        dataset: digits, mnist or a folder
        epochs: of each network (default: by the data and setting)
    """
    data = load_images(dataset)
    for setting, seeds in SHIPPED.items():
        trained = [train(data, setting, seed, epochs=epochs) for seed in range(seeds)]
        save_networks(trained, out)
    return out


if __name__ == "__main__":
    main(make, "python -m experiments.linear_attention")
