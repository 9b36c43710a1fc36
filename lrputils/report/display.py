"""What a chapter shows: tables, rounded, with their full values beside them, and facts in prose."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lrputils.report.words import visible

# The values in full precision travel beside the rounded HTML under this MIME type, so that the
# comparison of a chapter's outputs does not depend on how a last digit was rounded.
TABLE = "application/vnd.lrputils.table+json"
# Of an answer, as an output and in its metadata.
ANSWER = "application/vnd.lrputils.answer+json"
# Columns of differences that are kept beside a table, and not shown.
_KEPT = ("share_low", "share_high", "median")


@dataclass
class _ShownTable:
    """A data frame that a notebook shows rounded; `frame` holds the values."""

    frame: pd.DataFrame
    digits: int
    intervals: Mapping[str, tuple[str, str]]

    def rounded(self, *, between: str = "{} {}", lead: str = "{}*") -> pd.DataFrame:
        """Return the table as texts; `between` joins a value and its interval, `lead` marks one."""
        shown = self.frame.map(self._text)
        marks = {f"{column} lead": column for column in shown} | {"lead": "value"}
        marks = {mark: column for mark, column in marks.items() if mark in shown}
        for mark, column in marks.items():
            led = self.frame[mark].fillna(0) != 0
            shown[column] = shown[column].mask(led, shown[column].map(lead.format))
        for column, (low, high) in self.intervals.items():
            ends = zip(shown[column], shown[low], shown[high], strict=True)
            shown[column] = [between.format(v, f"[{a}, {b}]") if a else v for v, a, b in ends]
        ends = [c for pair in self.intervals.values() for c in pair]
        return shown.drop(columns=[*ends, *marks, *(c for c in _KEPT if c in shown)])

    def _text(self, value: Any) -> str:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        return f"{value:z.{self.digits}f}" if isinstance(value, float) else str(value)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        # Characters that need no escaping stand for the tags until the rest is escaped.
        tags = {"\x02": "<br><small>", "\x03": "</small>", "\x04": "<b>", "\x05": "</b>"}
        shown = self.rounded(between="{}\x02{}\x03", lead="\x04{}\x05")
        corner = shown.index.name if shown.index.nlevels == 1 else None
        shown = shown.rename_axis(index=[None] * shown.index.nlevels, columns=corner)
        with pd.option_context("display.max_colwidth", None):
            page = shown.to_html(border=0, classes="lrp-table")
        return {
            # An interval in a second line, a lead in bold, the rows' name in the corner.
            "text/html": page.translate(str.maketrans(tags)),
            "text/plain": self.rounded().to_string(),
            TABLE: as_json(self.frame),
        }


def as_json(frame: pd.DataFrame) -> dict[str, Any]:
    """Return what travels under `TABLE`: the rows' names, and each column's values by its name."""
    return {
        "index": [str(label) for label in frame.index],
        "columns": {str(name): [*map(_plain, frame[name])] for name in frame},
    }


def _plain(value: Any) -> Any:
    """As JSON holds it; what is not finite as a text."""
    value = value.item() if hasattr(value, "item") else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def show(
    table: pd.DataFrame, *, digits: int = 3, intervals: Mapping[str, tuple[str, str]] | None = None
) -> _ShownTable:
    """Return `table` as a chapter's cell shows it, rounded; NaN and None are shown as nothing.

    `intervals`, `{column: (low, high)}`, are shown as `value [low, high]` in one column, in HTML
    the interval in a second line. They are added to those that the table itself names, in
    `table.attrs["intervals"]`, if it still has their columns. A value whose column `NAME lead` (or
    `lead`, for `value`) is not zero is a lead (`lrputils.stats.leads`): bold, in plain text with a
    star.

    Raises:
        ValueError: `intervals` names a column that the table does not have.
    """
    known = {k: v for k, v in table.attrs.get("intervals", {}).items() if {k, *v} <= {*table}}
    known |= intervals or {}
    if missing := [c for k, pair in known.items() for c in (k, *pair) if c not in table]:
        raise ValueError(f"no column(s) {missing} in the table; it has {list(table.columns)}")
    return _ShownTable(table, digits, known)


def side_by_side(parts: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Put tables of `value`, `low` and `high` into one: columns NAME, `NAME low` and `NAME high`.

    Differences also have `NAME share`, of the texts in which the first is ahead, and `NAME lead`.
    `show` knows which are intervals and which are leads.
    """
    intervals = {name: (f"{name} low", f"{name} high") for name in parts}
    columns = []
    for name, part in parts.items():
        names = dict(zip(("value", "low", "high"), (name, *intervals[name]), strict=True))
        names |= {c: f"{name} {c}" for c in ("share", "lead") if c in part}
        columns.append(part[[*names]].rename(columns=names))
    frame = pd.concat(columns, axis=1)
    frame.attrs["intervals"] = intervals
    return frame


class Answer:
    """A chapter's answer: shown on its first screen, written there by the cell that computes it.

    So an executed notebook carries its numbers wherever it is opened. `show` is for a first cell,
    `write` for the later one.
    """

    def __init__(self) -> None:
        self._place = {"display_id": "answer"}

    def show(self) -> None:
        """Display where the answer will stand."""
        self._publish("**Answer.** The last cells compute it.", {}, update=False)

    def write(self, text: str, own: str = "", **facts: Any) -> None:
        """Write the answer, in Markdown, to where it stands.

        Args:
            text: with {name} or {name:.2f} where a fact goes; line breaks are blanks, an empty line
                begins a paragraph.
            own: what the chapter says of a reader's own run, its first paragraph; "" if nothing.
            facts: as of `bind`; texts are shown as they are written.
        """
        known = dict(_flat(facts))
        shown = {k: escaped(v) if isinstance(v, str) else v for k, v in known.items()}
        paragraphs = [" ".join(part.split()) for part in text.format(**shown).split("\n\n")]
        whole = "\n\n".join([own, *paragraphs]).strip()
        self._publish(whole, {"own": own}, update=True)
        # The tests of outputs compare it here: they cannot see what an earlier cell shows now.
        _publish({ANSWER: {"text": whole, "facts": known}})

    def _publish(self, text: str, facts: dict[str, str], *, update: bool) -> None:
        data, metadata = {"text/markdown": text, "text/plain": text}, {ANSWER: facts}
        _publish(data, metadata, transient=self._place, update=update)


def _publish(*parts: dict[str, Any], **options: Any) -> None:
    from IPython.display import publish_display_data  # only a notebook has one

    publish_display_data(*parts, **options)


def escaped(text: str) -> str:
    """Return a text of a reader's, as the name of a model, so that Markdown shows it as it is."""
    return re.sub(r"([\\`*_\[\]{}<>$|~])", r"\\\1", visible(text))


def bind(**facts: Any) -> None:
    """Bind facts to names, for ``{glue:text}`NAME` `` in the prose; nothing is shown.

    A fact is a number or a text; an `Estimate`, or any tuple that begins with value, low and high,
    which binds NAME, NAME_low and NAME_high; or a mapping or a Series, which binds NAME_KEY for
    each of its keys.
    """
    from myst_nb import glue

    for name, value in _flat(facts):
        glue(name, value, display=False)


def _flat(facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each fact's name and value, of one of several parts each part's."""
    for name, value in facts.items():
        if isinstance(value, tuple):
            names = name, f"{name}_low", f"{name}_high"
            yield from _flat(dict(zip(names, value[:3], strict=True)))
        elif isinstance(value, (Mapping, pd.Series)):
            yield from _flat({f"{name}_{key}": part for key, part in value.items()})
        else:
            yield name, value.item() if hasattr(value, "item") else value
