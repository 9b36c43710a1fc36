"""What an evaluation of a data set will take, before it starts: `lrputils evaluate --dry-run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from lrputils.data.texts import TextStream
from lrputils.model.classifier import Classifier
from lrputils.runs.datasets import Settings, Shelf, store
from lrputils.runs.folders import TEXTS
from lrputils.study.cost import Forecast, duration, forecast, measured
from lrputils.study.evaluation import REFERENCE
from lrputils.study.variants import LayerSweep, Variant

_SAMPLED = 8  # shards


@dataclass(frozen=True)
class Estimate:
    """What one process on one device will take.

    Attributes:
        texts: how many there are.
        tokens: of all texts, as far as they are not cut.
        cut: texts that are too long.
        seconds: part → seconds.
        device: where it was timed.
        peak_bytes: most memory, as `lrputils.study.cost.Spent` counts it.
        price: of an hour of the device.
    """

    texts: int
    tokens: int
    cut: int
    seconds: Mapping[str, float]
    device: str
    peak_bytes: float
    price: float | None = None

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
        lines = {
            "texts": f"{self.texts:,}, {self.tokens:,} tokens, {self.cut:,} texts too long",
            "time": f"{duration(self.total)} on one {self.device}: {', '.join(shares)}",
            "memory": f"{self.peak_bytes / 2**30:.2f} GiB a process",
            "cost": cost,
        }
        return "\n".join(f"{name:8}{line}" for name, line in lines.items())


def estimate(
    classifier: Classifier,
    texts: TextStream,
    settings: Settings | None = None,
    variants: Sequence[Variant | LayerSweep] = (),
    *,
    price: float | None = None,
) -> Estimate:
    """Estimate what `evaluate_dataset` with these arguments takes, without writing anything there.

    All texts are read and tokenized, so that what would stop the run shows here. A few shards from
    all over the data set are forecast (see `lrputils.study.cost.forecast`), and scaled to all: of
    leave-one-out with the squares of the lengths, of the other methods with the tokens. Memory is
    the peak over the largest batch of these shards.

    Raises:
        ValueError: see `evaluate_dataset`.
    """
    settings = settings or Settings()
    step = settings.step(classifier, variants)
    with TemporaryDirectory() as folder:
        store(classifier, texts, Path(folder) / TEXTS, settings, quiet=True)
        shelf = Shelf(Path(folder) / TEXTS)
        spread = np.linspace(0, len(shelf.parts) - 1, _SAMPLED).astype(int)
        chosen = sorted({int(number) for number in spread})
        sample = [text for number in chosen for text in shelf.take(number)]
    with measured(classifier.device) as spent:
        found: Forecast = forecast(
            classifier,
            sample,
            step.methods,
            options=step.options,
            max_length=settings.max_length,
            truncate=True,
            batch_size=settings.batch_size,
        )
    parts = [shelf.parts[number] for number in chosen]
    squares = shelf.cost / sum(part.cost for part in parts)
    tokens = shelf.tokens / sum(part.tokens for part in parts)
    seconds = {
        name: part * (squares if name == REFERENCE else tokens)
        for name, part in found.seconds.items()
    }
    device = str(classifier.device)
    facts = (shelf.texts, shelf.tokens, shelf.cut, seconds, device, spent.peak_bytes, price)
    return Estimate(*facts)
