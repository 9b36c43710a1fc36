"""What a run of now answers, in a sentence: who is ahead, or that its texts are too few."""

from __future__ import annotations

from lrputils.report.audit_answers import FEWEST
from lrputils.stats import Estimate

_NO_EVIDENCE = "Here it is the book's own small model on its own few texts, and no evidence."


def ahead(first: str, second: str, gap: Estimate) -> str:
    """Say which of two is ahead: `gap` is `first − second`, or a row of a table of estimates."""
    value, low, high = gap.value, gap.low, gap.high
    if high < 0:
        first, second, (value, low, high) = second, first, (-value, -high, -low)
    size = f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"
    if gap.used >= FEWEST and low > 0:
        return f"{first} is ahead of {second} by {size}"
    few = "" if gap.used >= FEWEST else ", too few texts to put one ahead"
    return f"{first} less {second} is {size}{few or ', neither is ahead'}"


def answer(name: str, texts: int, *parts: str, own: bool) -> str:
    """Return this run's answer, of parts like `ahead`'s; that there is none if it is not `own`."""
    if not own:
        return _NO_EVIDENCE
    few = f" {FEWEST} texts are the least that decide." if texts < FEWEST else ""
    return f"On {name}, {texts} texts: {'; '.join(parts)}.{few}"
