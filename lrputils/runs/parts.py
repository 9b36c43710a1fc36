"""A run is a folder of parts: whatever is missing is measured, by one process or by many.

`OUT/run.json` says of what and by what rows are measured; it is written once, before the first
rows, and never changed. `OUT/rows/part=00012/NAME.parquet` has the rows of some texts in a row and
one kind of measurement, such as a method's maps. It is written whole or not at all, and names the
run and the texts that it belongs to. A part that is there is done. So a killed run goes on by the
same command and loses the open part; methods and texts are added by the command that asks for more;
and `pandas.read_parquet(OUT / "rows")` reads all.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lrputils import __version__
from lrputils.data.texts import Texts, TextStream, unanswered
from lrputils.model.classifier import Classifier
from lrputils.progress import bar
from lrputils.runs.folders import (
    RUN,
    atomic_write,
    digest,
    disk_told,
    read_json,
    writable,
    write_json,
)

ROWS = "rows"
_PACKAGE = Path(__file__).parents[1]
_LIBRARIES = ("torch", "transformers", "tokenizers")
_TOLD = b"lrputils"  # of a part's own metadata


class Part(NamedTuple):
    """Texts in a row that are measured together.

    Attributes:
        number: of the part, from 0.
        start: position of its first text among all.
        texts: the texts; a language model's with their answers.
        missing: names of what is to be measured.
        known: rows of what is measured first, where they are there.
    """

    number: int
    start: int
    texts: Texts
    missing: tuple[str, ...]
    known: pd.DataFrame | None


# Given a classifier and a part, the rows of each missing name.
Measure = Callable[[Classifier, Part], Mapping[str, pd.DataFrame]]
Measured = Iterator[tuple[Part, Mapping[str, pd.DataFrame], float]]


class Here:
    """Measures parts in this process, one after the other; `lrputils.runs.cluster.Ray` shares."""

    def kind(self, classifier: Classifier) -> str:
        """Return the kind of device that measures: cpu, cuda, …"""
        return classifier.device.type

    def __call__(self, classifier: Classifier, measure: Measure, parts: Iterable[Part]) -> Measured:
        """Yield each part with its rows and the seconds that they took, in any order."""
        for part in parts:
            began = time.monotonic()
            rows = measure(classifier, part)
            yield part, rows, time.monotonic() - began


# Of what and by what rows are measured, as `run.json` says it. `model` and `data`: their `name`,
# and all that decides the rows (see `Classifier.parts`); `options`: what else does, as JSON can
# hold it; `versions`: of the code; `told`: what is kept for readers, the command, the date, …
Facts = Mapping[str, Mapping[str, Any]]


def describe(
    classifier: Classifier,
    texts: Texts | TextStream,
    options: Mapping[str, Any],
    kind: str,
    **told: str,
) -> Facts:
    """Return the facts of a run on a `kind` of device."""
    return {
        "model": {"name": classifier.name, **classifier.parts},
        "data": {"name": texts.name, "identity": texts.identity},
        "options": options,
        "versions": versions(kind),
        "told": told,
    }


def deciding(facts: Facts) -> dict[str, Any]:
    """Return all that must be the same in a run, by the name that a message calls it by."""
    model, data = dict(facts["model"]), dict(facts["data"])
    del model["name"], data["name"]
    model["weights"], data["texts"] = model.pop("identity"), data.pop("identity")
    return json.loads(json.dumps({**model, **data, **facts["options"], **facts["versions"]}))


@cache
def _sources() -> str:
    """Return the digest of the package's code."""
    code = {
        str(path.relative_to(_PACKAGE)): path.read_text("utf-8") for path in _PACKAGE.rglob("*.py")
    }
    return digest(code)[:16]


def versions(kind: str) -> dict[str, str]:
    """Return the versions of the code, and the kind of device, that rows are measured by."""
    own = {"lrputils": f"{__version__} {_sources()}", "device": kind}
    return own | {name: version(name) for name in _LIBRARIES}


def measure_parts(
    out: Path,
    facts: Facts,
    texts: Texts | TextStream,
    names: Sequence[str],
    measure: Measure,
    classifier: Classifier,
    *,
    size: int,
    count: int | None = None,
    first: str = "",
    engine: Here | None = None,
    schema: pa.Schema | None = None,
    quiet: bool = False,
) -> int:
    """Measure what is missing in a run's folder; return how many parts were measured.

    Args:
        out: the folder.
        facts: of the run.
        texts: all of them, those that are measured among them.
        names: of the files that each part has in the end.
        measure: returns the rows of what is missing of a part.
        classifier: that `measure` is given.
        size: texts a part.
        count: of texts, where it is known: for the bar.
        first: the name whose rows `measure` is given where they are there.
        engine: who measures; this process if not given.
        schema: of the rows, if all files have the same.
        quiet: no progress.

    Raises:
        ValueError: the folder holds a run of something else, or of more texts.
        OSError: the folder cannot be written, or was moved away.
    """
    signed, done = agree(out, facts), 0
    how: dict[str, Any] = {"total": count, "unit": " texts", "desc": "measured", "log": True}
    with bar(not quiet, **how) as shown:
        todo = missing(out, facts, texts, names, size, first, shown.update)
        for part, rows, seconds in (engine or Here())(classifier, measure, todo):
            if not agree(out, facts):  # `run.json` is there before the first rows
                if signed:
                    raise OSError(
                        f"{out} was moved or removed while it was written: give the command again"
                    )
                with disk_told(out):
                    write_json(out / RUN, facts)
            signed = True
            for name in part.missing:
                told = _label(facts, part.texts) | {"seconds": seconds / len(part.missing)}
                keep(_path(out, part.number, name), rows[name], told, schema)
            shown.update(len(part.texts))
            done += 1
    return done


def missing(
    out: Path,
    facts: Facts,
    texts: Texts | TextStream,
    names: Sequence[str],
    size: int,
    first: str,
    there: Callable[[int], Any] = int,
) -> Iterator[Part]:
    """Yield the parts of which something is missing; tell `there` of texts that are done."""
    answered, start = getattr(texts, "each", None), 0
    for number, some in enumerate(unanswered(texts).parts(size)):
        # What a model says itself is asked of it only where it is explained.
        given = _label(facts, some)
        paths = {name: _path(out, number, name) for name in names}
        lacking = tuple(name for name, path in paths.items() if not whole(path, given))
        if lacking:
            known = None
            if first and first not in lacking:
                known = pd.read_parquet(paths[first])
            yield Part(number, start, answered(some) if answered else some, lacking, known)
        else:
            there(len(some))
        start += len(some)


def stated(out: Path) -> Mapping[str, Any]:
    """Return the options of the run in a folder; {} where there is none."""
    with suppress(FileNotFoundError, NotADirectoryError, KeyError, TypeError):
        return read_json(out / RUN)["options"]
    return {}


def _path(out: Path, number: int, name: str) -> Path:
    return out / ROWS / f"part={number:05d}" / f"{name}.parquet"


def _label(facts: Facts, texts: Texts) -> dict[str, Any]:
    """Return what a file of a part is known by: its run and its texts, answers left out."""
    asked = [getattr(text, "prompt", text) for text in texts]
    held = [asked, texts.ids, texts.labels]
    return {"run": digest(deciding(facts)), "texts": digest(held), "count": len(texts)}


def agree(out: Path, facts: Facts) -> bool:
    """Return whether `out` holds this run; false if it holds none.

    Raises:
        ValueError: it holds another one, or is a file.
        OSError: it cannot be written.
    """
    if out.is_file():
        raise ValueError(f"{out} is a file: name a folder")
    try:
        there = read_json(writable(out) / RUN)
        old, new = deciding(there), deciding(facts)
    except FileNotFoundError:
        if any(out.glob(f"{ROWS}/*/*.parquet")):
            raise ValueError(
                f"{out} holds rows without the {RUN} that says of what: name another folder, or "
                f"remove {out / ROWS}"
            ) from None
        return False
    except (KeyError, TypeError):
        raise ValueError(f"{out / RUN} is of another program: name another folder") from None
    if other := [name for name in {**old, **new} if old.get(name) != new.get(name)]:
        told = ", ".join(map(_changed, other, map(old.get, other), map(new.get, other)))
        model, data = there["model"]["name"], there["data"]["name"]
        raise ValueError(
            f"{out} holds a run of {model!r} on {data!r} with other {told}: name another folder"
        )
    return True


def _changed(name: str, old: Any, new: Any) -> str:
    long = max(len(str(old)), len(str(new))) > 40
    return name if long else f"{name} ({old}, now {new})"


def keep(
    path: Path, rows: pd.DataFrame, told: Mapping[str, Any], schema: pa.Schema | None = None
) -> None:
    """Write rows whole, with what they are known by.

    Raises:
        OSError: the disk is full or closed.
    """
    table = pa.Table.from_pandas(rows, schema, preserve_index=False)
    known = json.dumps({**told, "file": f"{path.parent.name}/{path.name}"}).encode()
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), _TOLD: known})
    with disk_told(path.parent), atomic_write(path) as partial:
        pq.write_table(table, partial, compression="zstd", write_page_checksum=True)


def whole(path: Path, known: Mapping[str, Any]) -> bool:
    """Return whether rows of these facts lie in a file; that it has others is said."""
    if not path.is_file():
        return False
    try:
        _read_part(path, known)
    except ValueError as reason:
        print(f"{path} is {reason}, and measured again", file=sys.stderr)
        return False
    return True


def _read_part(path: Path, known: Mapping[str, Any]) -> tuple[pa.Table, dict[str, Any]]:
    """Return the rows of a part, and what they are known by.

    Raises:
        ValueError: what it is instead: damaged, of other facts, or a copy of another part.
    """
    try:
        table = pq.read_table(path, page_checksum_verification=True, partitioning=None)
        told = _known(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ValueError(f"damaged ({str(error).splitlines()[0]})") from error
    if other := [name for name, value in known.items() if told.get(name) != value]:
        raise ValueError(f"of other {' and '.join(other)}")
    if told["file"] != f"{path.parent.name}/{path.name}":
        raise ValueError(f"a copy of {told['file']}")
    return table, told


def _known(path: Path) -> dict[str, Any]:
    """Return what a file of rows is known by; {} where nothing is told."""
    return json.loads((pq.read_schema(path).metadata or {}).get(_TOLD, b"{}"))


def count(out: Path) -> int:
    """Return how many texts the parts of a run have."""
    texts = dict.fromkeys(out.glob(f"{ROWS}/part=*"), 0)
    for path in out.glob(f"{ROWS}/part=*/*.parquet"):
        with suppress(OSError, ValueError, pa.ArrowException):  # it is measured again
            texts[path.parent] = max(texts[path.parent], _known(path).get("count", 0))
    return sum(texts.values())


def read(out: Path) -> tuple[dict[str, Any], list[pd.DataFrame]]:
    """Return what `run.json` says, with the `seconds` that were measured, and the rows by file.

    Raises:
        FileNotFoundError: there is no run.
        ValueError: a part is damaged, of another run, or lacks what another part has.
    """
    told = read_json(out / RUN)
    run, seconds, found, names = digest(deciding(told)), 0.0, [], None
    for folder in sorted(out.glob(f"{ROWS}/part=*")):
        paths = sorted(folder.glob("*.parquet"))
        names = names or {path.name for path in paths}
        if {path.name for path in paths} != names:
            raise ValueError(f"the run in {out} is not finished: the same command goes on")
        for path in paths:
            try:
                table, own = _read_part(path, {"run": run})
            except ValueError as reason:
                raise ValueError(
                    f"{path} is {reason}: the same command measures it again"
                ) from reason
            seconds += own["seconds"]
            found.append(table.to_pandas())
    if not found:
        raise ValueError(f"the run in {out} has no rows yet: the same command goes on")
    return {**told.pop("told"), **told, "seconds": seconds}, found
