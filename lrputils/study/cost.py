"""What an evaluation costs: time before it starts, time and memory after it.

    plan = cost.forecast(clf, texts, methods)      # seconds, part by part
    with cost.measured(clf.device) as spent: ...   # seconds and peak memory of the real work

For a forecast a few batches are timed, and the rest is added up. `torch.utils.benchmark` is not
used: its timer runs the work twice more before each measurement and keeps no result, while a
forecast has to be cheap and the pairs of `bench` alternate.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from lrputils.model.classifier import Classifier
from lrputils.model.forwards import run
from lrputils.model.inputs import Inputs
from lrputils.removal.certified import rows_checked
from lrputils.removal.packing import BATCH_TOKENS, shareable
from lrputils.removal.packing import evaluate as run_rows
from lrputils.removal.rows import Row, split
from lrputils.study.evaluation import REFERENCE, variants_of
from lrputils.study.variants import LayerSweep, Variant


@dataclass
class Spent:
    """What a block of work took; filled in when the block ends.

    `seconds` are wall-clock time; `peak_bytes` on a GPU the most memory that torch held in the
    block, on a CPU the most that the whole process has held so far, NaN where the system does not
    tell.
    """

    device: torch.device
    seconds: float = float("nan")
    peak_bytes: float = float("nan")


@contextmanager
def measured(device: str | torch.device) -> Iterator[Spent]:
    """Measure the time and the peak memory of the block's work on this device."""
    spent = Spent(torch.device(device))
    cuda = spent.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(spent.device)
        torch.cuda.reset_peak_memory_stats(spent.device)
    started = time.perf_counter()
    try:
        yield spent
    finally:
        if cuda:
            torch.cuda.synchronize(spent.device)
        spent.seconds = time.perf_counter() - started
        peak = torch.cuda.max_memory_allocated(spent.device) if cuda else _process_peak()
        spent.peak_bytes = peak


def _process_peak() -> float:
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak) * (1 if sys.platform == "darwin" else 1024)


def timed(device: str | torch.device, work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that `work` takes on this device, and its result."""
    with measured(device) as spent:
        result = work()
    return spent.seconds, result


# What a decoder's rows take without the beginnings of their texts: half the tokens, in more passes.
SHARED = 2 / 3


@dataclass(frozen=True)
class Forecast:
    """What an evaluation will take, by one process on one device.

    Attributes:
        seconds: part → seconds, each method by name, and "curves".
        device: where it was timed.
        texts: how many there are.
        tokens: of all texts, as far as they are not cut.
        cut: texts that are too long.
        peak_bytes: most memory, as `Spent` counts it.
        price: of an hour of the device.
        workers: processes with a device each, which share the work.
    """

    seconds: Mapping[str, float]
    device: str
    texts: int
    tokens: int
    cut: int = 0
    peak_bytes: float = float("nan")
    price: float | None = None
    workers: int = 1

    @property
    def total(self) -> float:
        """All parts together, in seconds."""
        return sum(self.seconds.values())

    def __str__(self) -> str:
        hours = self.total / 3600
        cost = f"{hours:.3g} device hours"
        if self.price is not None:
            cost += f", {hours * self.price:.2f} at {self.price:g} an hour"
        shares = (f"{name} {part / self.total:.0%}" for name, part in self.seconds.items())
        if self.workers > 1:
            cost += f"; {duration(self.total / self.workers)} by {self.workers} workers"
        lines = {
            "texts": f"{self.texts:,}, {self.tokens:,} tokens, {self.cut:,} texts too long",
            "time": f"{duration(self.total)} on one {self.device}: {', '.join(shares)}",
            "memory": f"{self.peak_bytes / 2**30:.2f} GiB a process",
            "cost": cost,
        }
        return "\n".join(f"{name:8}{line}" for name, line in lines.items())


def forecast(
    classifier: Classifier,
    texts: Sequence[str],
    methods: Sequence[str | Variant | LayerSweep],
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    chunk: int | None = None,
    max_length: int | None = None,
    batch_size: int = 16,
    units: str = "token",
) -> Forecast:
    """Forecast how long `lrputils.evaluate` with these arguments takes on the classifier's device.

    A forward pass over one row of n tokens is modelled as a + b·n + c·n² seconds, fitted to one
    batch at each of three lengths. Leave-one-out is a row a unit, of n − 1 tokens where units are
    tokens, two thirds of that in a decoder, whose rows run from the removed token on; a curve is a
    row a step. Every other method is timed on the batch of the longest texts and scaled by tokens;
    longer ones are cut.

    In low precision leave-one-out's rows are timed in it, and those that `certified_loo` checks in
    float32 too; texts that it runs again are not foreseen.

    Raises:
        ValueError: an unknown method, no texts, or a text that cannot be encoded.
    """
    if not len(texts):
        raise ValueError("there are no texts to forecast for")
    cut = {"max_length": max_length, "truncate": True}
    counts = []
    for start in range(0, len(texts), 256):
        inputs = classifier.encode(list(texts[start : start + 256]), **cut)
        rows = inputs.lengths if units == "token" else inputs.units(units).mask.sum(1)
        counts.append(torch.stack([inputs.lengths, inputs.content_mask.sum(1), rows]).cpu())
    lengths, content, removed = torch.cat(counts, dim=1).numpy()
    order = np.argsort(lengths, kind="stable")
    reference, *others = variants_of(methods, options or {}, progress=False)
    longest = classifier.encode([texts[order[-1]]], **cut)
    row_seconds = low_seconds = row_model(classifier, longest)
    checked: float | np.ndarray = 0
    if (precision := reference.options.get("precision", "float32")) != "float32":
        low_seconds = row_model(classifier, longest, precision)
        checked = rows_checked(lengths, min(batch_size, len(texts)))
    left = lengths - lengths / np.maximum(removed, 1)  # tokens of a row
    rows = removed * low_seconds(left) + checked * row_seconds(left)
    if shareable(classifier.architecture, max(lengths)):
        rows = rows * SHARED
    seconds = {REFERENCE: float((rows + row_seconds(lengths)).sum())}
    probe, maps = classifier.encode([texts[row] for row in order[-batch_size:]], **cut), 1
    with torch.no_grad():
        target = run(classifier.architecture, classifier.architecture.arguments(probe)).argmax(-1)
    for variant in others:
        work = partial(variant.maps, classifier.model, probe, target, units)
        if classifier.device.type != "cpu":
            work()  # the first one loads its kernels
        taken, found = timed(classifier.device, work)
        name = variant.name if isinstance(variant, Variant) else f"{len(found)} ablations"
        taken *= lengths.sum() / int(probe.lengths.sum())
        seconds[name] = seconds.get(name, 0) + taken  # at each of its read-outs
        maps += len(found)
    if chunk is not None:
        # Tokens left at each step; the empty text, shared by all curves, is left out.
        steps = [np.arange(n - chunk, n - c, -chunk) for n, c in zip(lengths, content, strict=True)]
        seconds["curves"] = 2 * maps * float(row_seconds(np.concatenate(steps)).sum())
    return Forecast(seconds, str(classifier.device), len(texts), int(lengths.sum()))


def row_model(
    classifier: Classifier, longest: Inputs, precision: str = "float32"
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the seconds of one row of a packed batch as a function of its length, timed at three.

    `longest` is the longest text alone; `precision` as of `lrputils.certified_loo`.
    """
    architecture = classifier.architecture
    text = split(architecture, longest)
    budget = BATCH_TOKENS.get(classifier.device.type, BATCH_TOKENS["cuda"])
    lengths = sorted({max(1, len(text[0]) // part) for part in (4, 2, 1)})

    def seconds(length: int) -> float:
        rows = [Row(0, length)] * max(1, budget // length)
        work = partial(run_rows, architecture, text, rows, lambda x, _: x, precision=precision)
        return timed(classifier.device, work)[0] / len(rows)

    seconds(lengths[0])  # the first batch is slower than the rest
    taken = np.array([seconds(length) for length in lengths])
    powers = np.vander(np.array(lengths, float), 3, increasing=True)
    # Relative errors count: a short row's milliseconds as much as a long row's.
    weights, _ = nnls(powers / taken[:, None], np.ones(len(taken)))
    return lambda n: weights[0] + weights[1] * n + weights[2] * np.square(n, dtype=float)


def duration(seconds: float) -> str:
    """Return a duration in words, in the largest unit that gives at least 1.5 of it."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"
