"""What measures a batch of texts measures any number of them: rows, in the order of the texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from lrputils.data.given import Text
from lrputils.data.texts import Texts, load_texts
from lrputils.model.classifier import Classifier
from lrputils.study.by_text import predicted

# Which map a row has, in every recording of maps; "" where there is no choice.
MAP = {"method": "", "options": "", "readout": "", "removal": "", "units": "token"}


def in_batches(*facts: str) -> Callable[[Callable[..., Iterable[Mapping[str, Any]]]], Any]:
    """Turn what measures a batch into what measures texts and returns their rows as a table.

    What is decorated takes a classifier, `Inputs`, the predicted classes and options by name. It
    yields mappings of columns, each of them a value of all texts of the batch, or a tensor, array
    or list with one a text, None where a text has no such row; of a tensor `(batch, tokens)` each
    text keeps its own tokens.

    Args:
        facts: of each text, as `predicted` names them; the first columns.

    Returns:
        a decorator; its result takes a classifier, texts, `batch_size`, `max_length` (longer
        texts are cut) and the options.
    """

    def decorate(measure: Callable[..., Iterable[Mapping[str, Any]]]) -> Any:
        @wraps(measure)
        def measure_texts(
            classifier: Classifier,
            texts: Sequence[Text] | Texts,
            *,
            batch_size: int = 16,
            max_length: int | None = None,
            **options: Any,
        ) -> pd.DataFrame:
            rows, how = [], (batch_size, max_length)
            for inputs, target, of_texts in predicted(classifier, load_texts(texts), *how):
                lengths = inputs.lengths.tolist()
                for columns in measure(classifier, inputs, target, **options):
                    each = {name: _one_a_text(value, lengths) for name, value in columns.items()}
                    rows += [
                        {name: row[name] for name in ("position", *facts)}
                        | {name: values[number] for name, values in each.items()}
                        for number, row in enumerate(of_texts)
                        if not any(values[number] is None for values in each.values())
                    ]
            return in_order(rows)

        return measure_texts

    return decorate


def _one_a_text(value: Any, lengths: Sequence[int]) -> Sequence[Any]:
    """Return a column's values of a batch."""
    if isinstance(value, Tensor):
        values = value.cpu().numpy()
        cut = values.ndim > 1
        return [row[:n] for row, n in zip(values, lengths, strict=True)] if cut else values.tolist()
    return value if isinstance(value, np.ndarray | list) else [value] * len(lengths)


def in_order(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table in the order of the texts, `position` left out."""
    ordered = sorted(rows, key=lambda row: row["position"])
    return pd.DataFrame(ordered).drop(columns="position")
