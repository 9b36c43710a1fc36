"""What an evaluation costs: seconds before it starts, seconds and memory after it, digits lost.

`estimate` times a few batches and adds up; `measured` holds the clock over the real work;
`precision_error` says what faster matrix products change. How the cost grows with the length of a
text is in `lrputils.scaling`.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import nnls

from lrputils.evaluation import REFERENCE, Evaluation, evaluate
from lrputils.inputs import Inputs
from lrputils.models import Classifier
from lrputils.packing import BATCH_TOKENS
from lrputils.packing import evaluate as run_rows
from lrputils.precision import PRECISIONS, matmul_precision, takes_effect
from lrputils.readout import run
from lrputils.rows import Row, every, split
from lrputils.variants import LayerSweep, Variant

# On a CPU, an estimate above this many seconds comes with a warning.
LONG = 1_800
# A change of r below this is called harmless.
HARMLESS = 1e-3
_ENCODED_AT_ONCE = 256


@dataclass(frozen=True)
class RunEstimate:
    """How long an evaluation will take.

    Attributes:
        seconds: part → seconds: each method by name, and "curves".
        device: where it was timed.
        lengths: tokens of each text.
    """

    seconds: Mapping[str, float]
    device: torch.device
    lengths: tuple[int, ...]

    @property
    def total(self) -> float:
        """All parts together, in seconds."""
        return sum(self.seconds.values())

    def table(self) -> pd.DataFrame:
        """A row a part and one for all together: `seconds` and the `share` of the total."""
        parts = pd.Series(self.seconds)
        parts["together"] = self.total
        return pd.DataFrame({"seconds": parts, "share": parts / self.total})

    def warn_if_long(self, limit: float = LONG) -> None:
        """Warn, where the run would take a CPU more than `limit` seconds, how to go on."""
        if self.device.type == "cpu" and self.total > limit:
            warnings.warn(
                f"{self}. This wants a GPU: device='auto' takes one where there is one. On this "
                f"CPU, take fewer texts (limit=) or shorter ones (max_tokens=)",
                stacklevel=2,
            )

    def __str__(self) -> str:
        longest = max(self.seconds, key=self.seconds.__getitem__)
        return (
            f"{len(self.lengths)} texts of {min(self.lengths)} to {max(self.lengths)} tokens will "
            f"take about {_duration(self.total)} on {self.device}, {longest} alone "
            f"{_duration(self.seconds[longest])}"
        )


def estimate(
    classifier: Classifier,
    texts: Sequence[str],
    methods: Sequence[str | Variant | LayerSweep] = ("ig", "rollout", "attnlrp", "cp-lrp"),
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    chunk: int | None = None,
    max_length: int | None = None,
    truncate: bool = False,
) -> RunEstimate:
    """Say how long `lrputils.evaluate` with these arguments will take on the classifier's device.

    A forward pass over one row of n tokens is modelled as a + b·n + c·n² seconds, fitted to one
    batch at each of three lengths. Leave-one-out is n rows of n − 1 tokens a text, a curve one row
    a step; every other method is timed on one text of middle length (on a GPU a batch of them) and
    scaled by tokens.

    Raises:
        ValueError: an unknown method, no texts, or a text that cannot be encoded.
    """
    if not len(texts):
        raise ValueError("there are no texts to estimate for")
    variants = [
        Variant(method, method, (options or {}).get(method, {}))
        if isinstance(method, str)
        else method
        for method in methods
        if method != REFERENCE
    ]
    cut = {"max_length": max_length, "truncate": truncate}
    lengths, special = text_lengths(classifier, texts, **cut)
    order = np.argsort(lengths, kind="stable")
    row_seconds = _row_model(classifier, classifier.encode([texts[order[-1]]], **cut))
    seconds = {REFERENCE: float((lengths * row_seconds(lengths - 1) + row_seconds(lengths)).sum())}
    alike = order[len(order) // 2 :][: 1 if classifier.device.type == "cpu" else 16]
    probe, maps = classifier.encode([texts[row] for row in alike], **cut), 1
    for variant in variants:
        taken, found = _method_seconds(classifier, variant, probe)
        name = variant.name if isinstance(variant, Variant) else f"{len(found)} ablations"
        seconds[name] = taken * lengths.sum() / int(probe.lengths.sum())
        maps += len(found)
    if chunk is not None:
        points = [_curve_lengths(n, s, chunk) for n, s in zip(lengths, special, strict=True)]
        seconds["curves"] = 2 * maps * float(row_seconds(np.concatenate(points)).sum())
    return RunEstimate(seconds, classifier.device, tuple(lengths.tolist()))


def text_lengths(
    classifier: Classifier, texts: Sequence[str], **cut: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of each text, and how many of them are special; `cut` as in `encode`."""
    found = []
    for start in range(0, len(texts), _ENCODED_AT_ONCE):
        stop = min(start + _ENCODED_AT_ONCE, len(texts))
        inputs = classifier.encode([texts[row] for row in range(start, stop)], **cut)
        own = inputs.content_mask.sum(1).cpu().numpy()
        found.append((inputs.lengths.cpu().numpy(), inputs.lengths.cpu().numpy() - own))
    lengths, special = zip(*found, strict=True)
    return np.concatenate(lengths), np.concatenate(special)


def _row_model(classifier: Classifier, longest: Inputs) -> Callable[[np.ndarray], np.ndarray]:
    """Seconds of one row of a packed batch as a function of its length."""
    architecture = classifier.architecture
    text = split(architecture, longest)
    budget = BATCH_TOKENS.get(classifier.device.type, BATCH_TOKENS["cuda"])
    lengths = sorted({max(1, len(text[0]) // part) for part in (4, 2, 1)})

    def seconds(length: int) -> float:
        rows = [Row(0, length, every(length))] * max(1, budget // length)
        work = partial(run_rows, architecture, text, rows, lambda logits, _: logits)
        return timed(classifier.device, work)[0] / len(rows)

    seconds(lengths[0])  # the first batch is slower than the rest
    taken = np.array([seconds(length) for length in lengths])
    powers = np.vander(np.array(lengths, float), 3, increasing=True)
    # Relative errors count: a short row's milliseconds as much as a long row's.
    weights, _ = nnls(powers / taken[:, None], np.ones(len(taken)))
    return lambda n: weights[0] + weights[1] * n + weights[2] * np.square(n, dtype=float)


def _method_seconds(
    classifier: Classifier, variant: Variant | LayerSweep, probe: Inputs
) -> tuple[float, dict[str, torch.Tensor]]:
    with torch.no_grad():
        target = run(classifier.architecture, classifier.architecture.arguments(probe)).argmax(-1)

    def work() -> dict[str, torch.Tensor]:
        return variant.maps(classifier.model, probe, target)

    if classifier.device.type != "cpu":
        work()  # the first one loads its kernels
    return timed(classifier.device, work)


def _curve_lengths(length: int, special: int, chunk: int) -> np.ndarray:
    """Tokens left at each step of a curve; the empty text, shared by all curves, left out."""
    return np.arange(length - chunk, special, -chunk)


@dataclass
class Spent:
    """What a block of work took; filled in when the block ends.

    Attributes:
        device: where it ran.
        seconds: wall time.
        peak_bytes: on a GPU the most memory that torch held in the block; on a CPU the most that
            the whole process has held so far, NaN where the system does not tell.
    """

    device: torch.device
    seconds: float = float("nan")
    peak_bytes: float = float("nan")

    def table(self, evaluation: Evaluation) -> pd.DataFrame:
        """One line a fact: seconds, throughput over the evaluation's texts, peak memory in GiB.

        Tokens are those of the texts; leave-one-out reads each of them once a token of its text.
        """
        tokens = sum(map(len, evaluation.tokens))
        facts = {
            "seconds": self.seconds,
            "texts a second": len(evaluation.tokens) / self.seconds,
            "tokens a second": tokens / self.seconds,
            "peak memory, GiB": self.peak_bytes / 2**30,
        }
        return pd.DataFrame({"this run": facts})


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
        spent.peak_bytes = (
            torch.cuda.max_memory_allocated(spent.device) if cuda else _process_peak()
        )


def _process_peak() -> float:
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak) * (1 if sys.platform == "darwin" else 1024)


def precision_error(
    classifier: Classifier,
    texts: Sequence[str],
    method: str = "attnlrp",
    *,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Compare every precision of products that the device may be asked for with float32.

    LOO and the method's map are both computed at the precision, as a run would.

    Returns:
        A row a precision: `effect` (no: the device ignores it, and the other columns are empty),
        `error of LOO` (the largest), `mean |LOO|` in float32, `change of r` (the largest over the
        texts), `verdict`, and `seconds` as a multiple of float32's.
    """
    device = classifier.device
    asked = [p for p in PRECISIONS.get(device.type, ()) if p != "float32"]

    def run(precision: str) -> tuple[float, Evaluation]:
        def work() -> Evaluation:
            return evaluate(
                classifier, texts, [method], max_length=max_length, truncate=True, progress=False
            )

        with matmul_precision(precision, device):
            return timed(device, work)

    run("float32")
    baseline, exact = run("float32")
    rows = {}
    for precision in asked:
        if not takes_effect(precision, device):
            rows[precision] = {"effect": "none on this device"}
            continue
        seconds, rounded = run(precision)
        rows[precision] = {"effect": "yes", **_changes(exact, rounded, method)}
        rows[precision]["seconds / float32's"] = seconds / baseline
    return pd.DataFrame.from_dict(rows, orient="index")


def _changes(exact: Evaluation, rounded: Evaluation, method: str) -> dict[str, Any]:
    pairs = list(zip(exact.maps[REFERENCE], rounded.maps[REFERENCE], strict=True))
    change = (rounded.per_text("r")[method] - exact.per_text("r")[method]).abs().max()
    return {
        "error of LOO": float(max(np.abs(a - b).max() for a, b in pairs)),
        "mean |LOO|": float(np.concatenate([np.abs(a) for a, _ in pairs]).mean()),
        "change of r": float(change),
        "verdict": "harmless" if change < HARMLESS else "changes r",
    }


def timed(device: str | torch.device, work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that `work` takes on this device, and its result."""
    with measured(device) as spent:
        result = work()
    return spent.seconds, result


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"
