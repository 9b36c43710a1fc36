"""The paper's claims as numbers: printed, recorded under its convention, and recorded raw.

One row a claim, for the introduction; each chapter derives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from lrputils import linear_attention, paper, stats
from lrputils.linear_attention import Setting
from lrputils.report.tables import CANNOT_TELL, verdict
from lrputils.runs.results import Recording
from lrputils.study import softmax_errors

# The paper divides every map by its sum before it correlates; nothing requires it.
_COLUMNS = ("r_normalised", "r")
HOLDS, OPPOSITE = "holds", "opposite"
_FIRST, _SECOND = "attnlrp", "cp-lrp"
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
        rows += [*_methods(data, recording), _layers(data, recording)]
    frame = pd.DataFrame(rows).set_index("claim")
    frame.attrs["intervals"] = _INTERVALS
    return frame


def _by_margin(low: float, high: float, printed: float) -> str:
    """Judge a correlation by its distance from the printed one."""
    return verdict(low - printed, high - printed)


def _by_sign(low: float, high: float, printed: float) -> str:
    """Judge a difference by its sign: a margin as large as the printed value tells nothing."""
    if not low <= 0 <= high:
        return HOLDS if (low > 0) == (printed > 0) else OPPOSITE
    return CANNOT_TELL


def _row(
    chapter: int,
    data: str,
    claim: str,
    printed: float,
    own: Sequence,
    raw: Sequence,
    judge: Callable[[float, float, float], str] = _by_margin,
) -> dict[str, object]:
    """Return one row; `own` and `raw` begin with value, low and high."""
    return {
        "claim": claim,
        "chapter": chapter,
        "data": data,
        "paper": printed,
        **dict(zip(("recorded", "low", "high"), own, strict=False)),
        "verdict": judge(*own[1:3], printed),
        **dict(zip(("raw", "raw low", "raw high"), raw, strict=False)),
    }


def _linear_attention(mnist: Recording, setting: Setting, removal: str) -> list[dict]:
    readings = linear_attention.specifications(mnist.rows)
    own, raw = (linear_attention.of_reading(readings, setting, removal, c) for c in _COLUMNS)
    printed = paper.table1().drop_duplicates("pair").set_index("pair")["r"]
    lrp = [pair for pair in printed.index if pair in own and not pair.startswith("IG")]
    return [_row(2, "MNIST", f"MNIST: {p}", float(printed[p]), own[p], raw[p]) for p in lrp]


def _methods(data: str, recording: Recording) -> list[dict]:
    """AttnLRP and CP-LRP against LOO, and their difference, paired by text."""
    printed = paper.table2().loc[data].r
    maps = [recording.per_text(column, [_FIRST, _SECOND]) for column in _COLUMNS]
    chapter, name = {"sst": 3, "imdb": 4}[data], data.upper()
    rows = [
        _row(
            chapter,
            name,
            f"{name}: {paper.METHODS[method]} vs LOO",
            float(printed[method]),
            *(stats.estimate(wide[method]) for wide in maps),
        )
        for method in (_FIRST, _SECOND)
    ]
    gaps = [stats.paired_difference(wide[_FIRST], wide[_SECOND]) for wide in maps]
    claim = f"{name}: AttnLRP − CP-LRP"
    difference = float(printed[_FIRST] - printed[_SECOND])
    return [*rows, _row(chapter, name, claim, difference, *gaps, judge=_by_sign)]


def _layers(data: str, recording: Recording) -> dict:
    """How much more one bypassed layer of the later half raises r than one of the earlier half."""
    estimates = [
        softmax_errors.late_minus_early(softmax_errors.single_layer_gains(recording, column))
        for column in _COLUMNS
    ]
    claim = f"{data.upper()}: later − earlier layers"
    difference = softmax_errors.published_late_minus_early(data)
    return _row(5, data.upper(), claim, difference, *estimates, judge=_by_sign)
