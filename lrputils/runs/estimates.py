"""What an evaluation of a data set will take, before it starts: `lrputils evaluate --dry-run`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from lrputils.data.texts import TextStream
from lrputils.model.classifier import Classifier
from lrputils.runs.datasets import Settings, Shelf, store
from lrputils.runs.folders import TEXTS
from lrputils.study.cost import Forecast, forecast, measured
from lrputils.study.evaluation import REFERENCE
from lrputils.study.variants import LayerSweep, Variant

_SAMPLED = 8  # shards


def estimate(
    classifier: Classifier,
    texts: TextStream,
    settings: Settings | None = None,
    variants: Sequence[Variant | LayerSweep] = (),
    *,
    price: float | None = None,
) -> Forecast:
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
        found = forecast(
            classifier,
            sample,
            step.methods,
            options=step.options,
            max_length=settings.max_length,
            truncate=True,
            batch_size=settings.batch_size,
            units=settings.units,
        )
    parts = [shelf.parts[number] for number in chosen]
    squares = shelf.cost / sum(part.cost for part in parts)
    tokens = shelf.tokens / sum(part.tokens for part in parts)
    seconds = {
        name: part * (squares if name == REFERENCE else tokens)
        for name, part in found.seconds.items()
    }
    return replace(
        found,
        seconds=seconds,
        texts=shelf.texts,
        tokens=shelf.tokens,
        cut=shelf.cut,
        peak_bytes=spent.peak_bytes,
        price=price,
    )
