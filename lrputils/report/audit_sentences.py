"""What an audit says: the numbers of `lrputils.report.audit_answers` in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lrputils.report.answers import ahead, why_no_lead
from lrputils.report.audit_answers import (
    ALIKE,
    CANNOT_TELL,
    CLEAR,
    FEWEST,
    FORECAST,
    MARGIN,
    MOST,
    TRACKS,
    Lead,
    Sensitivity,
    Tool,
    Verdict,
)
from lrputils.report.audit_plan import LRP, label
from lrputils.report.figures.style import NAMES


def headline(verdict: Verdict, *, ruled: bool, sound: bool) -> str:
    """The answer in a sentence, of a model with rules or without, if its checks are `sound`."""
    if not sound:
        return "Do not use these numbers: a check fails on this model."
    subject = "LRP" if ruled else "a gradient map"
    no = "No: LRP does not track LOO." if ruled else "No: no gradient map tracks LOO."
    said = {"yes": f"Yes: {subject} tracks LOO.", "no": no}
    return said.get(verdict.answer, f"Cannot tell whether {subject} tracks LOO.")


def of_verdict(verdict: Verdict) -> str:
    """Which map comes closest to LOO, on which side of the bound, and which of the two leads."""
    half = f"{TRACKS:.2f}, where a map explains half of LOO's variance"
    said = {"yes": f"It lies above {half}.", "no": f"It lies below {half}."}
    value, low, high = verdict.r[:3]
    decided = verdict.r.used >= FEWEST and not low <= TRACKS <= high
    undone = " (one more text against what the interval says could undo it)" if decided else ""
    enough = _about(verdict.texts, verdict.r.used)
    open_ = f"Whether it lies above {half}, is open{undone}: {enough}."
    interval = f" [{low:.2f}, {high:.2f}]" if low <= high else ""  # one text has none
    return (
        f"{_where(verdict)} comes closest to LOO: mean r {value:.2f}"
        f"{interval}, n = {verdict.r.used}. {said.get(verdict.answer, open_)}"
        f" On {verdict.below:.0%} of the texts r stays below. "
        f"{_order(verdict)}"
    )


def _order(verdict: Verdict) -> str:
    """Which of the two judged methods is ahead, at each read-out if there are several."""
    if verdict.r.used < FEWEST:
        names = " and ".join(verdict.table.index.unique(0)[:2])
        return f"Which of {names} leads, {verdict.r.used} texts do not say: {FEWEST} are the least."
    first, second, _ = verdict.table.index.unique(0)
    gaps = verdict.table.loc["difference"]
    said = {1: f"{first} leads {second}", -1: f"{second} leads {first}"}
    sides = gaps["lead"].map(said | {0: f"neither {first} nor {second} leads"})
    reasons = {why_no_lead(gap) for gap in gaps[gaps["lead"] == 0].itertuples()}
    because = f": {'; or '.join(sorted(reasons))}" if reasons else ""
    if len(gaps) == 1:
        return _capital(sides.iloc[0]) + because + "."
    places = {name: map(_named, part.index) for name, part in sides.groupby(sides, sort=False)}
    if len(places) == 1:
        return f"{_capital(sides.iloc[0])}, wherever relevance is read{because}."
    parts = [f"{name} at the {', '.join(there)}" for name, there in places.items()]
    return _capital("; ".join(parts)) + because + "."


def _where(verdict: Verdict) -> str:
    """The map that is judged, and where it is read if it could be read elsewhere."""
    read = f", read at the {_named(verdict.readout)}," if verdict.method in LRP else ""
    return label(verdict.method) + read


def next_step(leads: Mapping[float, Lead], loo: str, texts: int) -> str:
    """What to do in any case: LOO itself if its time, `loo`, is affordable, else the cheapest."""
    told = f"LOO itself takes {loo} for all {texts:,} texts on this device."
    if not leads:
        return told
    budget, lead = next(iter(leads.items()))
    return (
        f"{told} If that is too long: of what costs at most {budget:g} passes per text, "
        f"{lead.best} has the highest mean r, {lead.mean.value:.2f}."
    )


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def of_lead(lead: Lead) -> str:
    """What to use, or that this cannot be told, and by how much it is ahead."""
    if lead.difference is None:
        return f"{lead.best}: nothing else costs as little."
    value, low, high = lead.difference[:3]
    gap = f"{value:.3f} [{low:.3f}, {high:.3f}]"
    reason = why_no_lead(lead.difference)
    enough = _about(lead.texts, lead.mean.used, ", so take the cheaper one, if one is")
    told = {
        CLEAR: f"{lead.best} leads all others. The closest call is {lead.rival}, lower by {gap}.",
        ALIKE: f"{lead.best} and {lead.rival} are alike within {MARGIN} ({gap}).",
        CANNOT_TELL: f"Cannot tell {lead.best} from {lead.rival}: the first is higher by {gap} "
        f"in mean{reason and f', but {reason}'}; {enough}.",
    }
    return told[lead.outcome]


def of_tool(name: str, tool: Tool) -> str:
    """Whether a tool's maps track LOO, and which maps of one pass are ahead of them."""
    verdict, r = tool.verdict, tool.verdict.r
    if not r.used:
        return f"{name}: each map is constant, and has no r."
    told = {"yes": "tracks LOO", "no": "does not track LOO"}
    open_ = f"may track LOO or not: {_about(verdict.texts, r.used)}"
    constant = f", {r.dropped} constant maps left out" if r.dropped else ""
    parts = [
        f"{name} {told.get(verdict.answer, open_)}. Mean r {r.value:.2f} "
        f"[{r.low:.2f}, {r.high:.2f}], n = {r.used}{constant}; below {TRACKS:.2f} on "
        f"{verdict.below:.0%} of the texts."
    ]
    parts += [f"{ahead(other, name, gap)}." for other, gap in tool.gaps.items()]
    return " ".join(parts)


def of_conventions(found: Sensitivity) -> str:
    """How often each of the two leads, and which choice alone reverses their order."""
    first, second = found.names
    signs = found.every["lead"]
    turning = []
    for choice in signs.index.names:  # the others being the same
        alone = signs.unstack(choice)
        if ((alone.min(axis=1) < 0) & (alone.max(axis=1) > 0)).any():
            turning.append(choice)
    if not signs.any():
        return f"Under none of {len(signs)} combinations of conventions does either lead."
    told = "No choice alone can reverse the order"
    if turning:
        told = f"Reversed by one choice alone: {', '.join(turning)}"
    return (
        f"Over {len(signs)} combinations of conventions {first} leads in "
        f"{(signs > 0).mean():.0%} and {second} in {(signs < 0).mean():.0%}; the rest is "
        f"undecided. {told}."
    )


def _about(texts: float, used: int, otherwise: str = "") -> str:
    """How many texts would tell, in two digits, as `used` ones estimate it."""
    if used < FEWEST:
        return f"too few texts to say how many would tell; {FEWEST} are the least"
    if math.isinf(texts) and used < FORECAST:
        return f"{used} texts are too few to say how many would tell: take {FORECAST} or more"
    if math.isinf(texts):
        return f"{MOST:,} texts would hardly tell{otherwise}"
    if texts <= used:  # as if spread evenly; a few texts far away widen the interval
        return f"more than these {used:,} texts would tell"
    step = 10 ** max(0, math.floor(math.log10(texts)) - 1)
    return f"about {math.ceil(texts / step) * step:,} texts would tell"


def _named(place: str) -> str:
    return NAMES.get(place, place)
