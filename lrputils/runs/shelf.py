"""The texts of a run, read once: an Arrow batch a shard, beside the shards while it is unfinished.

So memory does not grow with their number, every process reads the shards it takes, and what a shard
costs is known before it is measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pyarrow as pa

from lrputils.data.files import digest
from lrputils.data.given import Exchange, sides
from lrputils.data.texts import Texts, TextStream
from lrputils.model.classifier import Classifier
from lrputils.progress import bar
from lrputils.runs.settings import Settings

# Most work of a shard, in tokens read times weights: about two minutes on a core; a GPU does a
# thousand times as much.
_WORK = {"cpu": 8e12, "cuda": 8e15}
_SCHEMA = pa.schema(
    {"id": pa.string(), "text": pa.string(), "second": pa.string(), "label": pa.int64()}
    | {"exchange": pa.string(), "tokens": pa.int32(), "cut": pa.bool_()}
)


class Shelf:
    """The stored texts, a shard's at a time; they stay on the disk.

    `parts` has a row a shard: its number of `texts`, their `tokens`, the `cost` (the squares of
    their lengths), how many are `cut`, and the `digest` of all that is stored of them; `whole` is
    the sum of all numbers.
    """

    def __init__(self, path: Path) -> None:
        self._file = pa.ipc.open_file(pa.memory_map(str(path)))
        rows = []
        for number in range(self._file.num_record_batches):
            batch = self._file.get_batch(number)
            tokens = batch["tokens"].to_numpy().astype(int)
            sums = len(batch), tokens.sum(), (tokens**2).sum(), batch["cut"].true_count
            rows.append((*sums, digest([batch.serialize()])))
        self.parts = pd.DataFrame(rows, columns=["texts", "tokens", "cost", "cut", "digest"])
        self.whole = self.parts.drop(columns="digest").sum()

    def take(self, number: int) -> Texts:
        """Return the texts of a shard, their labels as numbers of the model's classes.

        ValueError if they are not what they were when the shelf was opened.
        """
        batch = self._file.get_batch(number)
        if digest([batch.serialize()]) != self.parts.digest[number]:
            raise ValueError("the stored texts were changed: the same command reads them again")
        columns = batch.to_pydict()
        texts, labels, ids = (tuple(columns[name]) for name in ("text", "label", "id"))
        if None not in columns["second"]:
            texts = tuple(zip(texts, columns["second"], strict=True))
        if None not in columns["exchange"]:
            texts = tuple(Exchange(**json.loads(each)) for each in columns["exchange"])
        return Texts(texts, labels, ids, "a shard", "")


def store(
    classifier: Classifier,
    texts: TextStream,
    path: Path,
    settings: Settings,
    *,
    quiet: bool = False,
) -> None:
    """Read all texts and write them into a file for `Shelf`; refuse what cannot be encoded."""
    labels, numbers = [], []
    weights = sum(p.numel() for p in classifier.model.parameters())
    weights -= classifier.architecture.word_embeddings.weight.numel()
    most = _WORK["cpu" if classifier.device.type == "cpu" else "cuda"] / weights
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, _SCHEMA) as sink:
        for part in bar(
            not quiet, iterable=texts.parts(settings.shard), desc="reading", unit=" shards"
        ):
            try:
                inputs = classifier.encode(part, settings.max_length, truncate=True)
            except ValueError as error:
                raise ValueError(f"texts {part.ids[0]!r} to {part.ids[-1]!r}: {error}") from error
            if inputs.truncated and settings.long == "refuse":
                row = inputs.truncated[0]
                raise ValueError(
                    f"text {part.ids[row]!r} ({sides(part[row])[0][:40]!r}…) has more than "
                    f"{inputs.lengths[row]} tokens: leave it out, or cut such texts (--long cut)"
                )
            given = part.labels or [None] * len(part)
            known = classifier.number_labels(given, settings.labels)
            labels += given
            numbers += known
            columns = {
                "id": part.ids,
                "text": [sides(text)[0] for text in part],
                "second": [text[1] if isinstance(text, tuple) else None for text in part],
                "label": known,
                "exchange": [
                    json.dumps(asdict(text)) if isinstance(text, Exchange) else None
                    for text in part
                ],
                "tokens": inputs.lengths.cpu().numpy(),
                "cut": [row in inputs.truncated for row in range(len(part))],
            }
            batch = pa.record_batch(columns, schema=_SCHEMA)
            spent = [settings.work(length) for length in inputs.lengths.tolist()]
            for start, size in _cuts(spent, most):
                sink.write_batch(batch.slice(start, size))
    classifier.warn_of_labels(labels, numbers)


def _cuts(work: Sequence[float], most: float) -> Iterator[tuple[int, int]]:
    """Yield where a shard begins and how many texts it has: together at most so much work."""
    start, spent = 0, 0.0
    for number, each in enumerate(work):
        spent += each
        if spent > most and number > start:
            yield start, number - start
            start, spent = number, each
    yield start, len(work) - start
