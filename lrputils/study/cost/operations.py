"""Operations of leave-one-out, counted; the machine's rate of them; where the time really goes.

Counted are matrix products of an encoder's layers, two operations a multiplication and addition.
Embeddings and the head, less than a percent, are left out. What is not a matrix product has no
count here: `shares` measures its time.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lrputils.model.classifier import Classifier, load_classifier
from lrputils.model.inputs import Inputs
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.packed import packed
from lrputils.removal.packing import BATCH_TOKENS
from lrputils.study.cost.clock import timed

# Kind of work → what its operators' names hold; the first kind that fits counts.
KINDS = {
    "matrix products": ("addmm", "::mm", "bmm", "linear"),
    "attention": ("scaled_dot_product", "softmax"),
    "LayerNorm": ("layer_norm",),
    "activation": ("gelu", "tanh"),
    "sums and copies": ("",),
}
PYTHON = "Python"


@dataclass(frozen=True)
class Shape:
    """Of an encoder with plain blocks: attention, then two linear layers of an inner width.

    Every method takes a number of tokens n (or an array of them) and returns operations.
    """

    layers: int
    hidden: int
    inner: int
    heads: int

    @classmethod
    def of(cls, classifier: Classifier) -> Shape:
        """The shape that a BERT-like model's configuration states."""
        config = classifier.model.config
        sizes = config.hidden_size, config.intermediate_size, config.num_attention_heads
        return cls(config.num_hidden_layers, *sizes)

    @property
    def token(self) -> int:
        """Of a layer's linear parts, a token: four maps of attention, two of the feed-forward."""
        return 8 * self.hidden**2 + 4 * self.hidden * self.inner

    def attention(self, n: Any) -> Any:
        """Of a layer's Q·Kᵀ and A·V."""
        return 4 * self.hidden * n * n

    def forward(self, n: Any) -> Any:
        """Of a whole forward pass over one text."""
        return self.layers * (n * self.token + self.attention(n))

    def forward_for_head(self, n: Any) -> Any:
        """The same with the last layer for the head's token alone, as `removal.last_layer` has it.

        There K and V are not computed: each head compares and mixes the states themselves.
        """
        last = self.token + 4 * self.heads * self.hidden * n
        return (self.layers - 1) * (n * self.token + self.attention(n)) + last

    def gradient(self, n: Any) -> Any:
        """Of a forward and a backward pass, no weight taking a gradient: any LRP, one IG step."""
        return self.layers * (2 * n * self.token + 3 * self.attention(n))

    def loo(self, n: Any) -> Any:
        """Of `leave_one_out`: the text, it without each token but one, and that one masked."""
        return 2 * self.forward_for_head(n) + (n - 1) * self.forward_for_head(n - 1)

    def naive_loo(self, n: Any) -> Any:
        """Of the text and one whole pass a token with that token masked."""
        return (n + 1) * self.forward(n)


def untrained(layers: int, hidden: int, *, device: str = "cpu") -> Classifier:
    """Return a BERT of this depth and width with random weights and the book's own tokenizer.

    How long a pass takes does not depend on the weights. Widths that 12 heads share have 12.
    """
    own = load_classifier()
    config = copy.deepcopy(own.model.config)
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = (
        layers,
        hidden,
        4 * hidden,
    )
    config.num_attention_heads = 12 if hidden % 12 == 0 else hidden // 64
    config.initializer_range = 0.05  # effects of a token well above a logit's rounding
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = type(own.model)(config)
    model = model.eval().requires_grad_(False).to(device)
    return Classifier(model, own.tokenizer, f"untrained {layers}x{hidden}")


def matrix_rate(classifier: Classifier, *, tokens: int | None = None, repeats: int = 5) -> float:
    """Return the operations a second of the linear layers of the model's first block, at best.

    Weights are packed, and a batch has as many `tokens`, as in leave-one-out; the fastest of the
    `repeats` counts.
    """
    device = classifier.device
    tokens = tokens or BATCH_TOKENS.get(device.type, BATCH_TOKENS["cuda"])
    linear = [m for m in classifier.architecture.blocks[0].modules() if isinstance(m, nn.Linear)]
    states = {m.in_features: torch.randn(tokens, m.in_features, device=device) for m in linear}

    def work() -> None:
        for module in linear:
            module(states[module.in_features])

    count = 2 * tokens * sum(module.weight.numel() for module in linear)
    with torch.inference_mode(), packed(classifier.architecture, 4 * tokens):
        return count / min(timed(device, work)[0] for _ in range(repeats + 1))


def shares(classifier: Classifier, inputs: Inputs, *, repeats: int = 3) -> dict[str, float]:
    """Return where leave-one-out's time goes: `{kind: seconds}`, by torch's profiler.

    "Python" is what the run takes, unobserved, beyond its operators.
    """
    work = partial(leave_one_out, classifier.model, inputs, progress=False)
    device = classifier.device
    work()
    whole = sorted(timed(device, work)[0] for _ in range(repeats))[repeats // 2]
    found = dict.fromkeys(KINDS, 0.0)
    cuda = device.type == "cuda"
    with profile(activities=list(ProfilerActivity) if cuda else [ProfilerActivity.CPU]) as seen:
        work()
    for event in seen.key_averages():
        spent = event.self_device_time_total if cuda else event.self_cpu_time_total
        kind = next(k for k, parts in KINDS.items() if any(part in event.key for part in parts))
        found[kind] += spent / 1e6
    return {**found, PYTHON: max(0.0, whole - sum(found.values()))}
