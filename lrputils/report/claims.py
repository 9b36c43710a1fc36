"""The paper's claims as numbers: printed, recorded under its convention, and recorded raw.

One row a claim, for the introduction; each chapter derives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from lrputils import linear_attention, paper, stats
from lrputils.linear_attention import Setting
from lrputils.report.tables import CANNOT_TELL, verdict
from lrputils.runs.results import Recording
from lrputils.study import softmax_errors

# The paper divides every map by its sum before it correlates; nothing requires it.
_COLUMNS = ("r_normalised", "r")
_FIRST, _SECOND = "attnlrp", "cp-lrp"
_HEAD = ["claim", "chapter", "data", "paper", "recorded", "low", "high", "verdict"]
_HEAD += ["raw", "raw low", "raw high"]
_INTERVALS = {"recorded": ("low", "high"), "raw": ("raw low", "raw high")}


def claims(
    mnist: Recording, texts: dict[str, Recording], setting: Setting, removal: str = "zero"
) -> pd.DataFrame:
    """Return the numbers that sum up chapters 2 to 5.

    Args:
        mnist: the recorded run of chapter 2.
        texts: recorded runs of text classifiers by the paper's data: "sst", "imdb".
        setting: the network of chapter 2 to quote.
        removal: how that network's pixels are removed.

    Returns:
        Rows indexed by claim, with columns `chapter`, `data`, `paper`, `recorded`, `low`, `high`
        (r after dividing every map by its sum, as the paper does), `verdict`, and `raw`, `raw
        low`, `raw high` (nothing divided). The verdict on a correlation is that of
        `lrputils.report.tables.verdict`; of a difference only the sign is judged: "holds",
        "opposite" or "cannot tell".
    """
    rows = _linear_attention(mnist, setting, removal)
    for data, recording in texts.items():
        rows += _texts(data, recording)
    frame = pd.DataFrame(rows, columns=_HEAD).set_index("claim")
    frame.attrs["intervals"] = _INTERVALS
    return frame


def _row(
    chapter: int,
    data: str,
    claim: str,
    printed: float,
    estimates: Iterable[Sequence],
    *,
    sign: bool = False,
) -> tuple:
    """One row of `_HEAD`; the two `estimates`, of `_COLUMNS`, begin with value, low and high.

    With `sign`, of a difference, the sign alone is judged: a margin as large as the printed value
    tells nothing.
    """
    own, raw = (estimate[:3] for estimate in estimates)
    _, low, high = own
    if not sign:
        judged = verdict(low - printed, high - printed)
    elif low <= 0 <= high:
        judged = CANNOT_TELL
    else:
        judged = "holds" if (low > 0) == (printed > 0) else "opposite"
    return f"{data}: {claim}", chapter, data, float(printed), *own, judged, *raw


def _linear_attention(mnist: Recording, setting: Setting, removal: str) -> list[tuple]:
    readings = linear_attention.specifications(mnist.rows)
    own, raw = (linear_attention.of_reading(readings, setting, removal, c) for c in _COLUMNS)
    printed = paper.table1().drop_duplicates("pair").set_index("pair")["r"]
    lrp = [pair for pair in printed.index if pair in own and not pair.startswith("IG")]
    return [_row(2, "MNIST", pair, printed[pair], (own[pair], raw[pair])) for pair in lrp]


def _texts(data: str, recording: Recording) -> list[tuple]:
    """AttnLRP and CP-LRP against LOO, their difference by text, and the gain of later layers."""
    printed = paper.table2().loc[data].r
    maps = [recording.per_text(column, [_FIRST, _SECOND]) for column in _COLUMNS]
    task = {"sst": 3, "imdb": 4}[data], data.upper()
    rows = [
        _row(
            *task,
            f"{paper.METHODS[method]} vs LOO",
            printed[method],
            [stats.estimate(r[method]) for r in maps],
        )
        for method in (_FIRST, _SECOND)
    ]
    gaps = [stats.paired_difference(wide[_FIRST], wide[_SECOND]) for wide in maps]
    gap = printed[_FIRST] - printed[_SECOND]
    rows.append(_row(*task, "AttnLRP − CP-LRP", gap, gaps, sign=True))
    gains = [softmax_errors.single_layer_gains(recording, column) for column in _COLUMNS]
    late = map(softmax_errors.late_minus_early, gains)
    theirs = softmax_errors.published_late_minus_early(data)
    return [*rows, _row(5, data.upper(), "later − earlier layers", theirs, late, sign=True)]
