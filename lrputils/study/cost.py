"""What an evaluation takes, before it starts: a batch is timed, and the rest is counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch

from lrputils.data.given import Text
from lrputils.data.texts import Texts, TextStream, load_texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.removal.packing import budget_on
from lrputils.removal.packing import evaluate as run_rows
from lrputils.removal.rows import Row, split
from lrputils.study.evaluation import REFERENCE, variants_of
from lrputils.study.supplied import Supplied
from lrputils.study.variants import LayerSweep, Variant, layer_sets

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
        shorter: what would take minutes where all does not: option → seconds.
    """

    seconds: Mapping[str, float]
    device: str
    texts: int
    tokens: int
    cut: int = 0
    shorter: Mapping[str, float] = field(default_factory=dict)
    copies: int = 0

    @property
    def total(self) -> float:
        """All parts together, in seconds."""
        return sum(self.seconds.values())

    def __str__(self) -> str:
        hours = self.total / 3600
        taken = f"{duration(self.total)} on one {self.device}"
        if self.total >= 1:  # below, what starts up is most of it
            shares = {name: f"{part / self.total:.0%}" for name, part in self.seconds.items()}
            told = ", ".join(f"{name} {share}" for name, share in shares.items() if share != "0%")
            taken = f"about {taken}: {told}"
        lines = {
            "texts": f"{self.texts:,}, {self.tokens:,} tokens, {self.cut:,} texts too long"
            + ", cut" * bool(self.cut)
            + _COPIES.format(self.copies) * bool(self.copies),
            "time": taken,
            "shorter": ", ".join(f"{duration(s)} with {way}" for way, s in self.shorter.items()),
            "cost": f"{hours:.3g} device hours" * (hours >= 0.01),
        }
        return "\n".join(f"{name:8}{line}" for name, line in lines.items() if line)


def forecast(
    classifier: Classifier,
    texts: Any,
    methods: Sequence[str | Variant | LayerSweep],
    *,
    chunk: int | None = None,
    max_length: int | None = None,
    batch_size: int = 16,
    units: str = "token",
    target: int | str | None = None,
    truncate: bool = True,
    known: bool = False,
) -> Forecast:
    """Forecast how long `lrputils.evaluate` with these arguments takes on the classifier's device.

    All texts are read and tokenized. Two batches are timed, of the text in which half of all
    leave-one-out is done when shorter texts come first: rows of leave-one-out, and gradient ×
    input. What they take a token, and a pass, is taken for that of all others, which are counted.
    Leave-one-out is a row a unit, of n − 1 tokens where units are tokens, two thirds of that in a
    decoder, whose rows run from the removed token on; a curve is a row a step. Every other method
    takes the passes of its price (see `lrputils.METHODS`). A model that answers the texts itself
    answers the first few here, and those answers stand for the others'.

    Args:
        classifier: `load_classifier`'s answer.
        texts: those of `load_texts` or `stream_texts`, or texts in any form that they take.
        methods: as `lrputils.evaluate` takes them, and so are the other arguments.
        known: whether leave-one-out's maps are there.

    Raises:
        ValueError: an unknown method, no texts, or a text that cannot be encoded.
    """
    asked: list[Any] = variants_of(methods, progress=False)
    others = [variant for variant in asked[1:] if not isinstance(variant, Supplied)]
    texts = texts if isinstance(texts, TextStream) else load_texts(texts)
    said: list[tuple[str, float]] = []
    if isinstance(texts, TextStream) and texts.each:
        texts = replace(texts, each=partial(_with_few_answers, classifier, said))
    encode = partial(classifier.encode, max_length=max_length, truncate=truncate)
    numbers, examples, cut, copies = _counted(texts, encode, units)
    ordered = np.sort(numbers[0])
    work = np.cumsum(ordered**2)
    typical = int(ordered[np.searchsorted(work, work[-1] / 2)])
    row_second = _row_second(classifier, encode([examples[typical]]))
    map_second = 0.0
    if others:
        rows = min(batch_size, numbers.shape[1])
        batch, gradient = encode([examples[typical]] * rows), Variant("", "grad-x-input")
        maps = partial(gradient.maps, classifier.model, batch, target, units)
        map_second = _token_second(classifier, maps, rows * typical * gradient.passes(typical))

    def seconds(first: int | None = None, cut_to: float = np.inf) -> dict[str, float]:
        """Return the seconds of each part, of the first texts, cut to so many tokens."""
        lengths, content, removed = np.minimum(numbers[:, :first], cut_to)
        rows = removed * (lengths - lengths / np.maximum(removed, 1))  # tokens of a text's rows
        if classifier.architecture.causal:
            rows = rows * _SHARED
        exact = row_second * float((rows + lengths).sum())
        parts = {} if known else {REFERENCE: exact}
        if said:
            parts["answers"] = len(lengths) * sum(took for _, took in said) / len(said)
        once, maps = map_second * lengths, 1
        for variant in others:
            name, count = "layers", 1
            if isinstance(variant, LayerSweep):
                # For each set of layers a backward pass, through half of them on average.
                sets = len(layer_sets(classifier.architecture.layers, variant.families))
                taken = float(once.sum()) * (1 + sets)
                count = sets * (1 if isinstance(variant.readout, str) else len(variant.readout))
            elif variant.method == REFERENCE:
                name, taken = variant.name, exact
            else:
                name = variant.name if variant.name not in parts else "other read-outs"
                taken = float(once @ [float(variant.passes(int(n))) for n in lengths])
            parts[name] = parts.get(name, 0.0) + taken
            maps += count
        if chunk is not None:
            # Tokens left at each step; the empty text, shared by all curves, is left out.
            own = zip(lengths, content, strict=True)
            steps = np.concatenate([np.arange(n - chunk, n - c, -chunk) for n, c in own])
            parts["curves"] = 2 * maps * row_second * float(steps.sum())
        return parts

    whole, ways = seconds(), {}
    if sum(whole.values()) > _MINUTES:
        shorter = [size for size in _SHORTER if size < ordered[-1]]
        cuts = {size: sum(seconds(cut_to=size).values()) for size in shorter}
        fits = [size for size, taken in cuts.items() if taken <= _MINUTES] or shorter[-1:]
        ways = {f"--max-length {size}": cuts[size] for size in fits[:1]}
        if numbers.shape[1] > _FEW:
            ways[f"--limit {_FEW}"] = sum(seconds(_FEW).values())
    return Forecast(
        whole,
        device=str(classifier.device),
        texts=numbers.shape[1],
        tokens=int(numbers[0].sum()),
        cut=cut,
        shorter=ways,
        copies=copies,
    )


def added(forecasts: Sequence[Forecast]) -> Forecast:
    """Return what several forecasts, of different texts, take together."""
    counts = {
        name: sum(getattr(each, name) for each in forecasts)
        for name in ("texts", "tokens", "cut", "copies")
    }
    seconds: Counter[str] = Counter()
    for each in forecasts:
        seconds.update(each.seconds)
    return Forecast(dict(seconds), forecasts[0].device, **counts)


def timed(device: torch.device, work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that `work` takes on this device, and its result."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    wait(device)
    started = time.perf_counter()
    result = work()
    wait(device)
    return time.perf_counter() - started, result


def _token_second(classifier: Classifier, work: Callable[[], Any], tokens: float) -> float:
    """Return the seconds a token of work on so many; the first, slower, time does not count."""
    timed(classifier.device, work)
    return timed(classifier.device, work)[0] / tokens


def _row_second(classifier: Classifier, inputs: Inputs) -> float:
    """Return the seconds a token of a batch of rows of a text, as leave-one-out packs them."""
    architecture = classifier.architecture
    text = split(architecture, inputs)
    length = len(text[0])
    budget = budget_on(classifier.device)
    rows = [Row(0, length)] * max(1, budget // length)
    work = partial(run_rows, architecture, text, rows, lambda x, _: x)
    return _token_second(classifier, work, len(rows) * length)


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


def duration(seconds: float) -> str:
    """Return a duration in words, in the largest unit that gives at least 1.5 of it."""
    if seconds < 1:
        return "under a second"
    units = {"years": 31_536_000, "days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
    unit = next((name for name, size in units.items() if seconds >= 1.5 * size), "seconds")
    count = seconds / units[unit]
    return f"{count:.1f} {unit}" if count < 9.95 else f"{float(f'{count:.2g}'):,.0f} {unit}"
