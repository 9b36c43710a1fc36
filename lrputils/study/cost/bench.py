"""Speed, measured side by side: each claim is a ratio of runs of the same work, in turn.

All sides run in this process, A B C A B C …, after one uncounted run of each. Ratios are taken
within a turn, so that they do not depend on a machine whose speed drifts. Where two sides compute
the same thing, their outputs have to agree. What is kept of it is in `lrputils.runs.bench`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from lrputils.attribution import attribute
from lrputils.data.texts import load_texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.propagation.layerwise import layerwise_bypass
from lrputils.removal.perturbation import perturbation_curve
from lrputils.study.cost import sides
from lrputils.study.cost.clock import timed
from lrputils.study.cost.operations import Shape, matrix_rate, shares, untrained
from lrputils.study.cost.scaling import model_against_clock, one_by_one, scores, throughput
from lrputils.study.variants import layer_sets

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
        found = perturbation_curve(bench.classifier.model, inputs, ranks)
        return torch.cat([curve[:count] for curve, count in zip(found, own, strict=True)])

    plain = partial(sides.masked_curves, bench.classifier, inputs, ranks)
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
