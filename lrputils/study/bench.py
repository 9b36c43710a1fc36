"""Speed, measured side by side: each claim is a ratio of runs of the same work, in turn.

All sides run in this process, A B C A B C …, after one uncounted run of each. Ratios are taken
within a turn, so that they do not depend on a machine whose speed drifts. Where two sides compute
the same thing, their outputs have to agree. What is kept of it is in `lrputils.runs.bench`.

Counted are matrix products of an encoder's layers, two operations a multiplication and addition.
Embeddings and the head, less than a percent, are left out. What is not a matrix product has no
count here: `shares` measures its time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from lrputils.attribution import attribute
from lrputils.data.texts import load_texts
from lrputils.model.classifier import Classifier, load_classifier
from lrputils.model.inputs import Inputs
from lrputils.propagation.layerwise import layerwise_bypass
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.packed import packed
from lrputils.removal.packing import BATCH_TOKENS
from lrputils.removal.perturbation import perturbation_curves
from lrputils.study import sides
from lrputils.study.cost import timed
from lrputils.study.variants import layer_sets

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


_METHODS = ("loo", "attnlrp", "cp-lrp", "mask-gradient", "ig")


def scores(classifier: Classifier, inputs: Inputs, method: str = "loo") -> Tensor:
    """A method's scores of the texts' tokens, special ones included, text after text."""
    found = attribute(classifier.model, inputs, method)
    return found[inputs.valid_mask]


def one_by_one(classifier: Classifier, inputs: Inputs, method: str) -> Tensor:
    """The same, a text at a time."""
    return torch.cat([scores(classifier, text, method) for text in sides.alone(inputs)])


def model_against_clock(
    classifier: Classifier,
    text: str,
    *,
    lengths: tuple[int, ...] = (16, 32, 64, 128, 192),
    depths: tuple[int, ...] = (2, 4, 6, 8, 12),
    widths: tuple[int, ...] = (192, 384, 768),
    budgets: tuple[int, ...] = (64, 256, 1024, 4096, 16384),
    middle: int = 64,
    repeats: int = 2,
) -> pd.DataFrame:
    """Time leave-one-out of one text while one thing varies: length, depth, width, batch budget.

    Depths and widths are those of untrained BERTs; lengths that the text does not reach are left
    out, and `middle` tokens hold where another thing varies. A row a measurement: `varied`,
    `value`, `tokens`, `seconds` (the fastest), `operations` as `Shape.loo` counts them, and `rate`,
    the machine's on matrices of that width.
    """
    given, device = Shape.of(classifier), str(classifier.device)
    plan = [("tokens", tokens, classifier, tokens, None) for tokens in lengths]
    for layers in depths:
        deep = untrained(layers, given.hidden, device=device)
        plan.append(("layers", layers, deep, middle, None))
    for hidden in widths:
        wide = untrained(given.layers, hidden, device=device)
        plan.append(("width", hidden, wide, middle, None))
    plan += [("tokens a batch", budget, classifier, middle, budget) for budget in budgets]
    rates, rows = {}, []
    for varied, value, model, tokens, budget in plan:
        inputs, shape = model.encode([text], tokens, truncate=True), Shape.of(model)
        if int(inputs.lengths) < tokens:
            continue
        if shape.hidden not in rates:
            rates[shape.hidden] = matrix_rate(model)
        row = {"varied": varied, "value": value, "tokens": tokens}
        row |= {"operations": float(shape.loo(tokens)), "rate": rates[shape.hidden]}
        options = {"batch_tokens": budget, "progress": False}
        rows.append({**row, "work": partial(leave_one_out, model.model, inputs, **options)})
    # In rounds, so that a slow minute of the machine meets every row alike.
    rounds = [[timed(device, row["work"])[0] for row in rows] for _ in range(repeats + 1)]
    return pd.DataFrame(rows).drop(columns="work").assign(seconds=np.min(rounds, axis=0))


def throughput(classifier: Classifier, texts: Mapping[str, Inputs]) -> pd.DataFrame:
    """Time each method a text at a time: a row a kind of texts and method, `seconds` a text.

    The faster of two runs counts.
    """
    rows = []
    for kind, inputs in texts.items():
        for method in _METHODS:
            work = partial(one_by_one, classifier, inputs, method)
            taken = min(timed(classifier.device, work)[0] for _ in range(2))
            row = {"texts": kind, "method": method, "seconds": taken / len(inputs.lengths)}
            rows.append({**row, "tokens": float(inputs.lengths.float().mean())})
    return pd.DataFrame(rows)


OURS = "lrputils"
Work = Callable[[], Tensor]
_BATCHES = (8, 16, 32, 64)  # rows a pass, of which captum gets the fastest


@dataclass(frozen=True)
class Contest:
    """Several ways to do a piece of work: `sides`, name → the work, this package's first.

    `tolerance` is the largest difference of a side's output from the first one's, relative to the
    largest output; None where the sides compute different things on purpose.
    """

    name: str
    sides: Mapping[str, Work]
    tolerance: float | None = None


def measure(
    contest: Contest, repeats: int = 5, device: str | torch.device = "cpu"
) -> list[dict[str, Any]]:
    """Time all sides in turn: a row a side.

    Columns are `what`, `side`, `seconds` (median), `ratio` (its time over the first side's, median
    over the turns) with its extremes `low` and `high`, and the outputs' `difference`. Between the
    extremes of k independent turns lies the true median with probability 1 − 2^(1−k): 94% for five.

    Raises:
        ArithmeticError: the outputs differ by more than the tolerance.
    """
    first, *others = [work() for work in contest.sides.values()]
    differences = [0.0, *(float("nan") for _ in others)]
    if contest.tolerance is not None:
        size = first.abs().max()
        differences[1:] = [float((other - first).abs().max() / size) for other in others]
        for side, difference in zip(contest.sides, differences, strict=True):
            if not difference <= contest.tolerance:
                raise ArithmeticError(f"{contest.name}: {side} differs by {difference:.1e}")
    turns = np.array(
        [[timed(device, work)[0] for work in contest.sides.values()] for _ in range(repeats)]
    )
    ratios = turns / turns[:, :1]
    columns = {
        "seconds": np.median(turns, 0),
        "ratio": np.median(ratios, 0),
        "low": ratios.min(0),
        "high": ratios.max(0),
        "difference": differences,
    }
    rows = pd.DataFrame(columns).assign(what=contest.name, side=list(contest.sides))
    return rows[["what", "side", *columns]].to_dict("records")


@dataclass(frozen=True)
class Bench:
    """What is measured on: a BERT, its texts ("sentences" and a "review"), a contest's turns."""

    classifier: Classifier
    texts: Mapping[str, Inputs]
    repeats: int = 5

    @classmethod
    def of(
        cls, classifier: Classifier, *, sentences: int = 5, longest: int = 128, repeats: int = 5
    ) -> Bench:
        """On the book's own reviews, the long one cut at `longest` tokens."""
        short = classifier.encode(load_texts("reviews", limit=sentences, seed=0))
        long = load_texts("reviews-long", limit=1, seed=0)
        long = classifier.encode(long, longest, truncate=True)
        return cls(classifier, {"sentences": short, "review": long}, repeats)

    def named(self, kind: str) -> str:
        """The kind of texts with their lengths: "sentences of 14 to 29 tokens"."""
        low, high = (int(end) for end in self.texts[kind].lengths.aminmax())
        return f"{kind} of {low} to {high} tokens" if low < high else f"{kind} of {low} tokens"

    def run(self, contests: list[Contest]) -> list[dict[str, Any]]:
        """All rows of these contests."""
        shown = tqdm(contests, leave=False, desc="contests", unit="", disable=None)
        return [row for each in shown for row in measure(each, self.repeats, self.device)]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.classifier.device


def loo(
    bench: Bench, kind: str, batches: Sequence[int] = _BATCHES, tolerance: float = 1e-3
) -> list[dict[str, Any]]:
    """Leave-one-out against a plain loop, and captum as it comes and at its best."""
    inputs = bench.texts[kind]
    given = bench.classifier, inputs
    ways = {OURS: partial(scores, *given), "plain loop": partial(sides.masked_loo, *given)}
    if sides.installed("captum"):
        batches = sorted({min(batch, int(inputs.lengths.max())) for batch in batches})
        passes = {rows: partial(sides.captum_loo, *given, rows) for rows in batches}
        taken = {rows: timed(bench.device, work)[0] for rows, work in passes.items()}
        best = min(taken, key=taken.__getitem__)
        ways["captum, default"] = partial(sides.captum_loo, *given)
        ways[f"captum, {best} rows a pass"] = passes[best]
    return bench.run([Contest(f"LOO, {bench.named(kind)}", ways, tolerance)])


def lrp(bench: Bench) -> list[dict[str, Any]]:
    """LRP and the mask gradient against plain forward and backward passes, and explicit rules."""
    contests = []
    for kind, inputs in bench.texts.items():
        given = bench.classifier, inputs
        for method in ("attnlrp", "cp-lrp", "mask-gradient"):
            ours = partial(one_by_one, *given, method)
            plain = {"plain forward + backward": partial(sides.plain_gradient, *given)}
            contests.append(Contest(f"{method}, {bench.named(kind)}", {OURS: ours, **plain}))
            if method == "attnlrp" and sides.installed("lxt"):
                explicit = {"LXT, explicit rules": partial(sides.explicit_attnlrp, *given)}
                name = f"{method} by rules, {bench.named(kind)}"
                contests.append(Contest(name, {OURS: ours, **explicit}, tolerance=1e-2))
    return bench.run(contests)


def ablations(bench: Bench) -> list[dict[str, Any]]:
    """All ablations of twelve layers in one sweep, against a pass each."""
    deep = untrained(12, Shape.of(bench.classifier).hidden, device=str(bench.device))
    model, inputs = deep.model, deep.encode(load_texts("reviews", limit=4, seed=0))
    sets = list(layer_sets(12).values())

    def separately() -> Tensor:
        maps = [attribute(model, inputs, "attnlrp", bypass_layers=chosen) for chosen in sets]
        return torch.stack(maps)

    ways = {OURS: partial(layerwise_bypass, model, inputs, sets), "a pass each": separately}
    return bench.run([Contest(f"{len(sets)} layer ablations", ways, tolerance=1e-4)])


def curves(bench: Bench) -> list[dict[str, Any]]:
    """Perturbation curves of sentences against one masked pass a step."""
    inputs = bench.texts["sentences"]
    ranks = torch.rand(inputs.input_ids.shape, generator=torch.Generator().manual_seed(0))
    ranks = ranks.to(bench.device)
    own = inputs.content_mask.sum(1).tolist()

    def ours() -> Tensor:
        both = perturbation_curves(bench.classifier.model, inputs, ranks)
        pairs = [pair for found in both for pair in zip(found, own, strict=True)]
        return torch.cat([curve[:count] for curve, count in pairs])

    def plain() -> Tensor:
        both = [sides.masked_curves(bench.classifier, inputs, each) for each in (ranks, -ranks)]
        return torch.cat(both)

    name = f"curves, {bench.named('sentences')}"
    return bench.run([Contest(name, {OURS: ours, "plain loop": plain}, tolerance=1e-3)])


def time_goes(bench: Bench) -> list[dict[str, Any]]:
    """Where leave-one-out's time goes, and the time of its operations at the machine's rate."""
    rate, shape, rows = matrix_rate(bench.classifier), Shape.of(bench.classifier), []
    for kind, inputs in bench.texts.items():
        lengths = np.array(inputs.lengths.tolist())
        head = {"texts": bench.named(kind), "rate": rate}
        head["naive"] = float(shape.naive_loo(lengths).sum())
        head["operations"] = float(shape.loo(lengths).sum())
        found = shares(bench.classifier, inputs)
        rows += [{**head, "part": part, "seconds": seconds} for part, seconds in found.items()]
    return rows


def model(bench: Bench) -> list[dict[str, Any]]:
    """`model_against_clock` on the longest of the book's reviews."""
    text = max(load_texts("reviews-long"), key=len)
    return model_against_clock(bench.classifier, text).to_dict("records")


def methods(bench: Bench) -> list[dict[str, Any]]:
    """`throughput` on both kinds of texts."""
    named = {bench.named(kind): inputs for kind, inputs in bench.texts.items()}
    return throughput(bench.classifier, named).to_dict("records")


# Name → what measures it, and about how many seconds it takes on two cores at five repeats.
GROUPS: dict[str, tuple[Callable[[Bench], list[dict[str, Any]]], int]] = {
    "time": (time_goes, 15),
    "model": (model, 65),
    "methods": (methods, 20),
    "loo-sentences": (partial(loo, kind="sentences"), 55),
    "lrp": (lrp, 30),
    "ablations": (ablations, 40),
    "curves": (curves, 10),
    "loo-review": (partial(loo, kind="review"), 90),
}
