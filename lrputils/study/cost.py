"""What an evaluation costs: time before it starts, time and memory after it.

    plan = cost.forecast(clf, texts, methods)      # seconds, part by part
    with cost.measured(clf.device) as spent: ...   # seconds and peak memory of the real work

For a forecast a row and a batch are timed, and the rest is counted. `torch.utils.benchmark` is not
used: its timer runs the work twice more before each measurement and keeps no result, while a
forecast has to be cheap and the pairs of `bench` alternate.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from lrputils.data.given import Text
from lrputils.data.texts import Texts, TextStream, load_texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.removal.packing import BATCH_TOKENS, shareable
from lrputils.removal.packing import evaluate as run_rows
from lrputils.removal.rows import Row, split
from lrputils.study.evaluation import REFERENCE, variants_of
from lrputils.study.supplied import Supplied
from lrputils.study.variants import LayerSweep, Variant, layer_sets


@dataclass
class _Spent:
    """What a block of work took; filled in when the block ends.

    `seconds` are wall-clock time; `peak_bytes` on a GPU the most memory that torch held in the
    block, on a CPU the most that the whole process has held so far, NaN where the system does not
    tell.
    """

    device: torch.device
    seconds: float = float("nan")
    peak_bytes: float = float("nan")


@contextmanager
def measured(device: str | torch.device) -> Iterator[_Spent]:
    """Measure the time and the peak memory of the block's work on this device."""
    spent = _Spent(torch.device(device))
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
_SHARED = 2 / 3
_ASKED = 4  # texts that are answered for a forecast
_MINUTES = 300  # seconds that nobody minds
_FEW, _SHORTER = 20, (256, 128, 64)  # texts and tokens that are proposed where all take longer


_COPIES = (
    "; {} repeat an earlier text, and intervals would count them as texts of their own: leave "
    "copies out"
)


@dataclass(frozen=True)
class Forecast:
    """What an evaluation will take, by one process on one device.

    Attributes:
        seconds: part → seconds: each method by name at its first read-out, "other read-outs",
            "layers" of a sweep, "curves", and "answers" that the model itself has to give.
        device: where it was timed.
        texts: how many there are.
        tokens: of all texts, as far as they are not cut.
        cut: texts that are too long.
        copies: texts that repeat an earlier one; an interval would count each by itself.
        peak_bytes: most memory, as `_Spent` counts it.
        shorter: what would take minutes where all does not: option → seconds.
        price: of an hour of the device.
        workers: processes with a device each, which share the work.
    """

    seconds: Mapping[str, float]
    device: str
    texts: int
    tokens: int
    cut: int = 0
    peak_bytes: float = float("nan")
    shorter: Mapping[str, float] = field(default_factory=dict)
    price: float | None = None
    workers: int = 1
    copies: int = 0

    @property
    def total(self) -> float:
        """All parts together, in seconds."""
        return sum(self.seconds.values())

    def __str__(self) -> str:
        hours = self.total / 3600
        cost = f"{hours:.3g} device hours"
        if self.price is not None:
            cost += f", {hours * self.price:.2f} at {self.price:g} an hour"
        shares = {name: f"{part / self.total:.0%}" for name, part in self.seconds.items()}
        told = ", ".join(f"{name} {share}" for name, share in shares.items() if share != "0%")
        if self.workers > 1:
            cost += f"; {duration(self.total / self.workers)} by {self.workers} workers"
        lines = {
            "texts": f"{self.texts:,}, {self.tokens:,} tokens, {self.cut:,} texts too long"
            + ", cut" * bool(self.cut)
            + _COPIES.format(self.copies) * bool(self.copies),
            "time": f"about {duration(self.total)} on one {self.device}: {told}",
            "shorter": ", ".join(f"{duration(s)} with {way}" for way, s in self.shorter.items()),
            "memory": f"{self.peak_bytes / 2**30:.2f} GiB a process",
            "cost": cost,
        }
        return "\n".join(f"{name:8}{line}" for name, line in lines.items() if line)


def forecast(
    classifier: Classifier,
    texts: Any,
    methods: Sequence[str | Variant | LayerSweep],
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    chunk: int | None = None,
    max_length: int | None = None,
    batch_size: int = 16,
    units: str = "token",
    target: int | str | None = None,
    truncate: bool = True,
    part_size: int = 64,
    **told: Any,
) -> Forecast:
    """Forecast how long `lrputils.evaluate` with these arguments takes on the classifier's device.

    All texts are read and tokenized. A forward pass over one row of n tokens is modelled as
    a + b·n + c·n² seconds, fitted to one batch at each of three lengths, and everything else is
    counted. Leave-one-out is a row a unit, of n − 1 tokens where units are tokens, two thirds of
    that in a decoder, whose rows run from the removed token on; a curve is a row a step. Every
    other method takes the passes of its price (see `lrputils.METHODS`), each as long as one of the
    cheapest of them in a batch as wide as its longest text. A model that answers the texts itself
    answers the first few here, and those answers stand for the others'.

    Memory is the peak over what is timed.

    Args:
        classifier: `load_classifier`'s answer.
        texts: those of `load_texts` or `stream_texts`, or texts in any form that they take.
        methods: as `lrputils.evaluate` takes them, and so are the other arguments.
        part_size: texts among which those of similar length share a batch.
        told: `price` and `workers` of a `Forecast`.

    Raises:
        ValueError: an unknown method, no texts, or a text that cannot be encoded.
    """
    asked: list[Any] = variants_of(methods, options or {}, progress=False)
    others = [variant for variant in asked[1:] if not isinstance(variant, Supplied)]
    texts = texts if isinstance(texts, TextStream) else load_texts(texts)
    said: list[tuple[str, float]] = []
    if isinstance(texts, TextStream) and texts.each:
        texts = replace(texts, each=partial(_with_few_answers, classifier, said))
    encode = partial(classifier.encode, max_length=max_length, truncate=truncate)
    numbers, examples, cut, copies = _counted(texts, encode, units)
    most, layers = max(examples), classifier.architecture.layers
    rows = min(batch_size, part_size, numbers.shape[1])
    with measured(classifier.device) as spent:
        row_seconds = map_seconds = _row_model(classifier, encode([examples[most]]))
        if others:
            some = np.quantile(numbers[0], (0, 0.5, 1), method="nearest").astype(int)
            batches = {size: encode([examples[size]] * rows) for size in some}
            cheap = [variant for variant in others if isinstance(variant, Variant)]
            cheap.append(Variant("", "grad-x-input"))
            least = min(cheap, key=lambda variant: variant.passes(most))
            work = partial(least.maps, classifier.model, target=target, units=units)
            map_seconds = _map_model(classifier, batches, work, least.passes)

    def seconds(first: int | None = None, cut_to: float = np.inf) -> dict[str, float]:
        """Return the seconds of each part, of the first texts, cut to so many tokens."""
        lengths, content, removed = np.minimum(numbers[:, :first], cut_to)
        left = lengths - lengths / np.maximum(removed, 1)  # tokens of a row
        rows = removed * row_seconds(left)
        if shareable(classifier.architecture, lengths.max()):
            rows = rows * _SHARED
        found = {REFERENCE: float((rows + row_seconds(lengths)).sum())}
        if said:
            found["answers"] = len(lengths) * sum(took for _, took in said) / len(said)
        once, maps = map_seconds(_widths(lengths, part_size, batch_size)), 1
        for variant in others:
            name, count = "layers", 1
            if isinstance(variant, LayerSweep):
                # For each set of layers a backward pass, through half of them on average.
                each = len(layer_sets(layers, variant.families))
                taken = float(once.sum()) * (1 + each)
                count = each * (1 if isinstance(variant.readout, str) else len(variant.readout))
            elif variant.method == REFERENCE:
                name, taken = variant.name, found[REFERENCE]
            else:
                name = variant.name if variant.name not in found else "other read-outs"
                taken = float(once @ [float(variant.passes(int(n))) for n in lengths])
            found[name] = found.get(name, 0.0) + taken
            maps += count
        if chunk is not None:
            # Tokens left at each step; the empty text, shared by all curves, is left out.
            own = zip(lengths, content, strict=True)
            steps = np.concatenate([np.arange(n - chunk, n - c, -chunk) for n, c in own])
            found["curves"] = 2 * maps * float(row_seconds(steps).sum())
        return found

    whole, ways = seconds(), {}
    if sum(whole.values()) > _MINUTES:
        cuts = {size: sum(seconds(cut_to=size).values()) for size in _SHORTER if size < most}
        fits = [size for size, taken in cuts.items() if taken <= _MINUTES] or [*cuts][-1:]
        ways = {f"--max-length {size}": cuts[size] for size in fits[:1]}
        if numbers.shape[1] > _FEW:
            ways[f"--limit {_FEW}"] = sum(seconds(_FEW).values())
    size = {"texts": numbers.shape[1], "tokens": int(numbers[0].sum())}
    size |= {"cut": cut, "copies": copies}
    told = {"peak_bytes": spent.peak_bytes, "shorter": ways, **told}
    return Forecast(whole, str(classifier.device), **size, **told)


def _with_few_answers(classifier: Classifier, said: list[tuple[str, float]], texts: Texts) -> Texts:
    """Give texts without an answer those of the first few; `said` keeps them and their seconds."""
    for each in [each for each in texts if each.answer is None][: _ASKED - len(said)]:
        took, (answer, _) = timed(classifier.device, partial(classifier.reply, each.prompt))
        said.append((answer, took))
    turns = cycle(answer for answer, _ in said)
    filled = (each if each.answer else replace(each, answer=next(turns)) for each in texts)
    return classifier.answered(replace(texts, texts=tuple(filled)))


def _counted(
    texts: Texts | TextStream, encode: Callable[[Texts], Inputs], units: str
) -> tuple[np.ndarray, dict[int, Text], int, int]:
    """Return each text's tokens, own tokens and rows of leave-one-out (3, texts), a text of each
    length, how many are cut, and how many repeat an earlier one.
    """
    counts, cut = [], 0
    examples: dict[int, Text] = {}
    seen: set[int] = set()
    for part in texts.parts(256):
        inputs = encode(part)
        removed = inputs.lengths if units == "token" else inputs.units(units).mask.sum(1)
        counts.append(torch.stack([inputs.lengths, inputs.content_mask.sum(1), removed]).cpu())
        cut += len(inputs.truncated)
        seen |= {hash(repr(text)) for text in part}
        examples |= dict(zip(inputs.lengths.tolist(), part, strict=True))
    numbers = torch.cat(counts, dim=1).numpy()
    return numbers, examples, cut, numbers.shape[1] - len(seen)


def _widths(lengths: np.ndarray, part_size: int, batch_size: int) -> np.ndarray:
    """Return how wide each text's batch is, (texts,), part by part, shorter texts first."""
    parts = [np.sort(lengths[k : k + part_size]) for k in range(0, len(lengths), part_size)]
    batches = (part[k : k + batch_size] for part in parts for k in range(0, len(part), batch_size))
    return np.concatenate([np.full(len(batch), batch[-1]) for batch in batches])


def _row_model(classifier: Classifier, longest: Inputs) -> Callable[[np.ndarray], np.ndarray]:
    """Return the seconds of one row of a packed batch as a function of its length, timed at three.

    `longest` is the longest text alone.
    """
    architecture = classifier.architecture
    text = split(architecture, longest)
    budget = BATCH_TOKENS.get(classifier.device.type, BATCH_TOKENS["cuda"])

    def seconds(length: int) -> float:
        rows = [Row(0, length)] * max(1, budget // length)
        work = partial(run_rows, architecture, text, rows, lambda x, _: x)
        return timed(classifier.device, work)[0] / len(rows)

    return _fitted(seconds, {max(1, len(text[0]) // part) for part in (4, 2, 1)})


def _map_model(
    classifier: Classifier,
    batches: Mapping[int, Inputs],
    work: Callable[[Inputs], Any],
    passes: Callable[[int], float],
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the seconds of a text's pass in a batch as a function of its width, as `work` has it.

    `batches` are some, by their width; `passes` are those of the work.
    """

    def seconds(width: int) -> float:
        taken = timed(classifier.device, partial(work, batches[width]))[0]
        return taken / passes(width) / len(batches[width]["input_ids"])

    return _fitted(seconds, batches)


def _fitted(
    seconds: Callable[[int], float], at: Iterable[int]
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a + b·n + c·n² that is nearest to the seconds at some n; none is negative."""
    sizes = sorted(at)
    seconds(sizes[0])  # the first batch is slower than the rest
    taken = np.array([seconds(size) for size in sizes])
    powers = np.vander(np.array(sizes, float), 3, increasing=True)
    # Relative errors count: a short row's milliseconds as much as a long row's.
    weights, _ = nnls(powers / taken[:, None], np.ones(len(taken)))
    return lambda n: weights[0] + weights[1] * n + weights[2] * np.square(n, dtype=float)


def duration(seconds: float) -> str:
    """Return a duration in words, in the largest unit that gives at least 1.5 of it."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"
