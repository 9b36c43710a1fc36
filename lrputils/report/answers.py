"""What this run answers, in a sentence: who is ahead, or that its texts are too few."""

from __future__ import annotations

import pandas as pd

from lrputils.attribution import METHODS
from lrputils.report.audit_answers import FEWEST
from lrputils.report.display import escaped
from lrputils.stats import Difference


def ahead(first: str, second: str, gap: Difference) -> str:
    """Say which of two is ahead: `gap` is `first − second`, or such a row of a table."""
    if not gap.used:
        return f"{first} and {second} cannot be compared: a text of one token has no correlation"
    size = f"{gap.value:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]"
    if gap.used < FEWEST:
        told = "too few texts to say which leads"
    else:
        neither = f"neither leads, since {why_no_lead(gap)}"
        told = {1: f"{first} leads", -1: f"{second} leads"}.get(gap.lead, neither)
    return f"{first} − {second} is {size}: {told}"


def why_no_lead(gap: Difference) -> str:
    """Why neither of two leads, although the mean of one is higher; "" for too few texts."""
    if gap.used < FEWEST:
        return ""
    if gap.low <= 0 <= gap.high:
        return "the interval holds zero"
    if gap.share_low <= 0.5 <= gap.share_high:
        share = max(gap.share, 1 - gap.share)
        return f"{share:.0%} of {gap.used} texts agree, too few to be sure of most"
    return "one text more against it would put zero into the interval"


def levels(means: pd.Series) -> str:
    """Say the mean r with leave-one-out of methods, by their names or labels."""
    labels = {name: method.label for name, method in METHODS.items()}
    told = [f"{mean:.2f} for {labels.get(name, name)}" for name, mean in means.dropna().items()]
    return f"mean r with LOO over own tokens is {', '.join(told) or 'undefined'}"


def about_run(name: str, texts: int, *parts: str, own: bool) -> str:
    """Return a reader's `own` run's answer in Markdown, of parts like `ahead`'s; "" of ours."""
    if not own:
        return ""
    few = f" {FEWEST} texts are the least that decide." if texts < FEWEST else ""
    return f"On {escaped(name)}, {texts} text{'s' * (texts != 1)}: {'; '.join(parts)}.{few}"
