"""Maps that another tool made, laid on a model's tokens: they are judged as this package's are.

    lrp.audit(clf, texts, scores={"captum IG": frame, "shap": "shap.jsonl"})

A table has a row a text. Its columns are `id` or `text`; `scores`, a list; if it knows them, lists
of `tokens`, strings or ids, and of `begin` and `end`, characters from 0; `target`, the class that
was explained; `passes`, the price of a text in forward passes; and `method`, where a file has the
maps of several tools.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lrputils.attribution import METHODS
from lrputils.data import files
from lrputils.data.given import sides
from lrputils.data.texts import Texts, TextStream
from lrputils.mistakes import about, listed
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.units import Span
from lrputils.study.variants import Label

_LISTS = "scores", "tokens", "begin", "end"
# What tokenizers write in front of a piece, or behind a word, that no text has.
_MARK = re.compile("^(##|[▁Ġ]+|Ċ)|(</w>)$")
_SPECIAL = re.compile(r"[<\[(].*[>\])]|")  # as "[CLS]" or "</s>"
_INK = re.compile(r"\S+(?:\s+\S+)*")


class _Map(NamedTuple):
    """A text's map: a score per token, and what the tool says of the tokens and the class."""

    scores: list[float]
    tokens: list[Any] | None
    spans: list[Span] | None
    target: Any


@dataclass(frozen=True, repr=False)
class Supplied:
    """A tool's maps; `evaluate` takes it among its methods.

    Attributes:
        name: of the tool, in rows, tables and figures.
        maps: by `key` of a text.
        key: "id" or "text".
        price: forward passes of a text, NaN where the tool does not tell.
    """

    name: str
    maps: Mapping[str, _Map]
    key: str
    price: float

    @property
    def label(self) -> Label:
        """Its name; a tool's maps are read where the tool reads them."""
        return Label(self.name)

    @property
    def columns(self) -> tuple[str, str]:
        """Its name, and no options, as rows have them."""
        return self.name, ""

    def passes(self, tokens: int) -> float:
        """Return its price, which is no matter of tokens."""
        return self.price

    def __repr__(self) -> str:
        held = files.digest([repr([*self.maps.items()]).encode()])
        return f"Supplied({self.name}, {len(self.maps)} maps, {held})"

    def lay(
        self,
        classifier: Classifier,
        inputs: Inputs,
        texts: Texts,
        target: Tensor | None = None,
        units: str = "token",
    ) -> Tensor:
        """Return the scores of encoded texts, (batch, tokens), 0 where the tool has none.

        Special tokens may be missing; pieces are summed where a unit has several.

        Args:
            classifier: of the texts.
            inputs: the texts, encoded.
            texts: the same ones.
            target: the explained classes, which those of the maps must be, if they tell.
            units: what a score stands for in the end, see `Inputs.units`.

        Raises:
            ValueError: a text has no map, one of other tokens, or one of another class.
        """
        numbers = inputs.units(units)
        maps = torch.zeros(inputs["input_ids"].shape)
        for row, (text, identity) in enumerate(zip(texts, texts.ids, strict=True)):
            key = identity if self.key == "id" else sides(text)[0]
            where = f"the maps {self.name!r}: text {identity!r} ({sides(text)[0][:40]!r})"
            if key not in self.maps:
                raise ValueError(f"{where} has none; they are known by their column {self.key!r}")
            tool_map = self.maps[key]
            if target is not None and tool_map.target is not None:
                (explained,) = classifier.number_labels([tool_map.target])
                if explained != int(target[row].flatten()[0]):
                    raise ValueError(
                        f"{where} has one of class {tool_map.target!r}, and another class is "
                        f"explained here: " + about("target", tool_map.target)
                    )
            try:
                scores = _laid(tool_map, inputs, row, numbers.numbers[row].cpu().numpy())
            except ValueError as error:
                raise ValueError(f"{where} has one that does not fit: {error}") from None
            maps[row, : len(scores)] = torch.from_numpy(scores)
        return maps if units == "token" else numbers.sum(maps)


def _laid(tool_map: _Map, inputs: Inputs, row: int, units: np.ndarray) -> np.ndarray:
    """Return a score a token of a text, (tokens,); that of several tokens stands at the first."""
    scores = np.array(tool_map.scores, dtype=np.float32)
    if not np.isfinite(scores).all():
        raise ValueError(f"score {int(np.flatnonzero(~np.isfinite(scores))[0])} is not finite")
    names, ids = list(inputs.tokens[row]), inputs["input_ids"][row].tolist()
    content = inputs.content_mask[row].nonzero()[:, 0].tolist()
    laid = np.zeros(len(names), dtype=np.float32)
    spans, tokens = tool_map.spans, tool_map.tokens
    for places in ([*range(len(names))], content):
        spellings = [[side[place] for place in places] for side in (names, ids)]
        alike = len(scores) == len(places) if tokens is None else tokens in spellings
        if alike and spans is None:
            laid[places] = scores
            return laid
    if spans is None and tokens is None:
        raise ValueError(
            f"{len(scores)} scores are none for each of {len(names)} tokens, or of {len(content)} "
            "without special ones: say which tokens they are of"
        )
    if not inputs.sources:
        raise ValueError("its tokens are not the model's")
    source = inputs.sources[row]
    ink = {place: _INK.search(source.text, *source.spans[place]) for place in content}
    ink = {place: spelled.span() for place, spelled in ink.items() if spelled}
    if spans is None:
        first = min((begin for begin, _ in ink.values()), default=0)
        spans = _spelled(source.text, tokens or (), first)
    owners: set[int] = set()
    for score, span in zip(scores, spans, strict=True):
        touched = _INK.search(source.text, *span) if span else None
        if touched is None:  # a special token, or white space
            continue
        start, end = touched.span()
        pieces = [place for place, (b, e) in ink.items() if b < end and e > start]
        if not pieces:
            raise ValueError(f"the model does not read {touched[0]!r}: the text may be cut before")
        if len({*units[pieces]}) > 1:
            raise ValueError(
                f"{touched[0]!r} is {len(pieces)} tokens of the model, which have one score: "
                "compare words, " + about("units", "word")
            )
        laid[pieces[0]] += score
        owners |= {*pieces}
    if missed := ink.keys() - owners:
        begin, end = ink[min(missed)]
        raise ValueError(f"nothing scores {source.text[begin:end]!r}")
    return laid


def _spelled(text: str, tokens: Sequence[Any], end: int) -> list[Span | None]:
    """Find tokens in a text, one after the other; None for special ones that are not in it."""
    spans: list[Span | None] = []
    for number, token in enumerate(tokens):
        if not isinstance(token, str):
            raise ValueError(f"token {number}, {token!r}, is not the model's")
        spellings = token.strip(), _MARK.sub("", token.strip())
        found = re.compile("|".join(map(re.escape, spellings)), re.IGNORECASE).search(text, end)
        if found:  # what stands between it and the one before has no score, and is refused
            end = found.end()
        elif not _SPECIAL.fullmatch(token):
            raise ValueError(f"token {number}, {token!r}, is not in {text[end:][:40]!r}")
        spans.append(found and found.span())
    return spans


def supplied(scores: Any, texts: Texts | TextStream | None = None) -> list[Supplied]:
    """Read the maps of other tools.

    Args:
        scores: name → table, path of a file of it, or a sequence of maps in the order of `texts`,
            each `(tokens,)` or a pair of tokens and scores; or paths alone, whose maps are called
            as their column `method` or the file; or None.
        texts: those that maps without an id or text are of.

    Raises:
        ValueError: a file or table that cannot be read, lacks a column or holds a text twice; a
            name of this package's own methods.
        FileNotFoundError: no such file.
    """
    if scores is None:
        return []
    if isinstance(scores, Mapping):
        named = [*scores.items()]
    else:
        paths = [scores] if isinstance(scores, str | Path) else scores
        named = [(files.unpacked(Path(path).stem), path) for path in paths]
    reserved = {each.lower() for method in METHODS.values() for each in (method.name, method.label)}
    tables = []
    for name, held in named:
        table = _table(held, texts)
        tables += table.groupby("method", sort=False) if "method" in table else [(name, table)]
    names = [str(name) for name, _ in tables]
    for name in names:
        ours = name.lower() in reserved
        if ours or names.count(name) > 1:
            taken = "one of this package's methods" if ours else "of several maps"
            raise ValueError(f"{name!r} is the name {taken}: give the tool's maps another")
    return [_read(name, table) for name, (_, table) in zip(names, tables, strict=True)]


def _table(held: Any, texts: Texts | TextStream | None) -> pd.DataFrame:
    """Return maps as a table, whatever holds them."""
    if isinstance(held, pd.DataFrame):
        return held
    if isinstance(held, str | Path):
        path = Path(held).expanduser()
        if not path.is_file():
            raise FileNotFoundError(about("scores", str(held)) + ": there is no such file")
        return pd.concat(files.tables(path, 2**20, ("id", "text")))
    ids, maps = texts.ids if isinstance(texts, Texts) else (), [*held]
    if len(maps) != len(ids):
        raise ValueError(
            f"{len(maps)} maps of {len(ids)} texts: give one a text, or a table with `id` or `text`"
        )
    if not all(isinstance(each, tuple) for each in maps):
        return pd.DataFrame({"id": ids, "scores": [*map(_values, maps)]})
    pairs = [(_values(tokens), _values(scores)) for tokens, scores in maps]
    return pd.DataFrame(pairs, columns=["tokens", "scores"]).assign(id=ids)


def _read(name: str, table: pd.DataFrame) -> Supplied:
    """Read a tool's table, with a row a text."""
    key = next((each for each in ("id", "text") if each in table), None)
    if key is None or "scores" not in table:
        raise ValueError(
            f"the maps {name!r} have the columns {listed([repr(each) for each in table])}: `id` or "
            "`text`, and `scores` are needed, a row a text"
        )
    table = table.assign(**{key: table[key].astype(str)})
    if (again := table[key].duplicated()).any():
        raise ValueError(f"the maps {name!r} have two of the text {table[key][again].iloc[0]!r}")
    maps = {}
    for row in table.to_dict("records"):
        lists = {column: _values(row[column]) for column in _LISTS if column in row}
        if not lists["scores"] or len({*map(len, lists.values())}) > 1:
            counts = listed([f"{len(values)} {column}" for column, values in lists.items()])
            raise ValueError(f"the maps {name!r}: text {row[key][:60]!r} has {counts}")
        spans = [*zip(lists["begin"], lists["end"], strict=True)] if "begin" in lists else None
        target = None if pd.isna(row.get("target")) else row["target"]
        maps[row[key]] = _Map(lists["scores"], lists.get("tokens"), spans, target)
    price = float(table["passes"].mean()) if "passes" in table else math.nan
    return Supplied(name, maps, key, price)


def _values(held: Any) -> list[Any]:
    """Return a list of a row, which a CSV file has as JSON; nothing of what is none."""
    with suppress(ValueError):
        held = json.loads(held) if isinstance(held, str) else held
    if isinstance(held, Tensor):  # on a GPU, or with a gradient, as it may be
        return held.detach().reshape(-1).tolist()
    return [] if isinstance(held, str) else np.asarray(held).reshape(-1).tolist()
