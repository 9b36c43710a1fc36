"""The paper's network: one layer of softmax-free attention over pixels, in every reading."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

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


def check_choice(name: str, value: str, allowed: Collection[str]) -> None:
    """Raise ValueError unless `value` is one of the allowed ones."""
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is not one of {tuple(allowed)}")


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
            check_choice(field, getattr(self, field), allowed)

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
        check_choice("factorization", factorization, (LEFT, RIGHT))
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
