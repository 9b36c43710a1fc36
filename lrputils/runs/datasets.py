"""One run: what is measured of a data set of any size, alone or on every rank of `torchrun`.

`record` writes rows with provenance, whatever measures them; `evaluate_dataset` is `lrputils
evaluate`, the audit calls it too, and the book's recordings are kinds of `recipes/recordings`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from pyarrow.dataset import dataset

from lrputils import stats
from lrputils.attribution import METHODS
from lrputils.data.texts import Texts, TextStream
from lrputils.mistakes import about
from lrputils.model.classifier import Classifier
from lrputils.runs import results
from lrputils.runs.engines import Engine, Shard, in_shards, rank, recover
from lrputils.runs.folders import TEXTS, atomic_write
from lrputils.runs.results import key
from lrputils.runs.settings import Settings
from lrputils.runs.shelf import Shelf, store
from lrputils.study.evaluation import REFERENCE, evaluate
from lrputils.study.variants import Label, LayerSweep, Variant

_GROWING = ("methods", "limit")  # what a call may add to a finished run


def evaluate_dataset(
    classifier: Classifier,
    texts: Texts | TextStream,
    out: str | Path,
    settings: Settings | None = None,
    *,
    variants: Sequence[Variant | LayerSweep] = (),
    command: str = "",
    parameters: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    quiet: bool = False,
) -> Path:
    """Evaluate methods on texts into `out`: `rows.parquet`, and `provenance.json`.

    A row a text and method, in the texts' order: the columns of `measure`, maps among them. A run
    is a set of texts and methods, and what is missing is measured: a killed one goes on by the same
    call, and to a finished one a call adds methods, with the exact maps that are there, or texts,
    by a higher limit. Under `torchrun` every rank makes the same call.

    Args:
        classifier: `load_classifier`'s answer.
        texts: `stream_texts`' answer.
        out: the run's folder.
        settings: see `Settings`.
        variants: what else is measured; `parameters` tell runs of other variants apart.
        command: what to call to get the same rows; for the provenance.
        parameters: how the texts were chosen; they decide the rows too.
        engine: who measures: `lrputils.runs.cluster.Ray`, or this process and `torchrun`'s.
        quiet: no progress.

    Raises:
        ValueError: a run of something else lies in `out`, or another one works there; methods to
            add to fewer texts than it has; a text cannot be encoded, or is too long and not to be
            cut; the model returns NaN; a shard is damaged.
        OSError: the disk is full.
    """
    out, settings = Path(out), settings or Settings()
    options = {**(parameters or {}), **asdict(settings)}
    before = _before(out, _plan(classifier, texts, options), _GROWING)
    if before:
        there, held = before["data"]["texts"], before["parameters"]
        methods = tuple(dict.fromkeys((*held["methods"], *settings.methods)))
        settings, limit = replace(settings, methods=methods), options.get("limit")
        if limit and limit <= there:
            if limit < there and len(methods) > len(held["methods"]):
                raise ValueError(
                    f"{out} has {there} texts, and methods are added to all of them: "
                    + about("limit", there)
                )
            options["limit"] = held["limit"]
        options["methods"] = methods
    asked = settings.asked(classifier, variants)

    def rows(loaded: Classifier, some: Texts, known: pd.DataFrame | None) -> pd.DataFrame:
        return compact(measure(loaded, some, asked, known))

    how = {"options": options, "command": command, "engine": engine, "quiet": quiet}
    return record(rows, classifier, texts, out, settings, before=before, **how)


def measure(
    classifier: Classifier,
    texts: Texts,
    asked: Mapping[str, Any],
    known: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Evaluate texts as `Settings.asked` says. A row a text and method.

    Of the methods that have `known` rows of these texts none is measured again.

    Returns:
        The columns of `lrputils.study.evaluation.Evaluation.rows` but `position`, and `spearman`
        (with leave-one-out, over all tokens or units), `scores` (tokens,), `pieces` (the tokens'
        strings), `content` (false at special tokens; of words or sentences true at first tokens)
        and `cut` (the text was longer); an ablation has no map. Where variants have options, such
        as "groups=2", also `options`.

    Raises:
        ValueError: a text that cannot be encoded, or a model that returns NaN.
    """
    reference = None
    if known is not None:
        lacking = {*METHODS} - {*known.method[known.family == ""]}
        missing = [m for m in asked["methods"] if _name(m) in lacking]
        if not missing:
            return known
        reference = [*map(np.array, known.scores[known.method == REFERENCE])]
        asked = {**asked, "methods": missing}
    found = evaluate(classifier, texts, **asked, reference=reference, progress=False)
    cut = set(classifier.encode(texts, asked["max_length"], truncate=True).truncated)
    kept = []
    for text, *parts in found.rows[["position", *Label._fields]].itertuples(index=False):
        label = Label(*parts)
        scores, content = found.maps[label][text], found.content[text]
        where = None if asked["units"] == "token" else content
        own = (None, None, None) if label.family else (scores, list(found.tokens[text]), content)
        row = dict(zip(("scores", "pieces", "content"), own, strict=True))
        r = stats.spearman(scores, found.maps[REFERENCE][text], where=where)
        kept.append({"spearman": float(r[0]), **row, "cut": text in cut})
    rows = found.rows.join(pd.DataFrame(kept))
    if known is not None:
        known = known.assign(position=(known.method == REFERENCE).cumsum() - 1)
        rows = pd.concat([known, rows[rows.method != REFERENCE]])
        rows = rows.sort_values("position", kind="stable", ignore_index=True)
    parts = rows.method.str.partition(" ")
    if parts[2].any():
        rows = rows.assign(method=parts[0], options=parts[2])
    return rows.drop(columns="position")


def _name(asked: str | Variant | LayerSweep) -> str:
    """The method's name, or its variant's; layers have none."""
    return asked if isinstance(asked, str) else getattr(asked, "name", "")


def variant_name(method: str, options: Mapping[str, Any]) -> str:
    """Return a variant's name, a method with options; rows have them in columns of their own."""
    told = (f"{name}={value}" for name, value in options.items() if name != "progress")
    return " ".join([method, ", ".join(told)]).strip()


def record(
    rows_of: Callable[[Classifier, Texts, pd.DataFrame | None], pd.DataFrame],
    classifier: Classifier,
    texts: Texts | TextStream,
    out: str | Path,
    settings: Settings,
    *,
    options: Mapping[str, Any],
    command: str,
    before: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    quiet: bool = False,
) -> Path:
    """Write what `rows_of` returns of some texts at a time, with provenance, into `out`.

    It is given the classifier, the texts, and the rows that are known of them or None. Of the
    `settings` those of texts and shards are read. `options`, as JSON can hold them, decide the rows
    beside model and texts; `before` is the provenance of a run to which they add; the rest is as in
    `evaluate_dataset`.
    """
    out = Path(out)
    plan = _plan(classifier, texts, options)
    before = before or _before(out, plan) or {}
    if before.get("plan") == key(plan):
        _say(f"{out} is finished: nothing to do")
        return out
    known = before["data"]["texts"] if before else 0

    def cut(work: Path) -> dict[str, Shard]:
        if not rank():
            if before != (_found(out) or {}):
                raise ValueError(f"another process wrote into {out}: give the same command again")
            if not (work / TEXTS).is_file():
                with atomic_write(work / TEXTS) as draft:
                    store(classifier, texts, draft, settings, quiet=quiet)
        shelf = Shelf(work / TEXTS)
        if shelf.whole.cut and settings.max_length is None:  # else it was asked for
            share = f"{shelf.whole.cut} of {shelf.whole.texts}"
            _say(f"{share} texts are too long, and cut: see `cut` in the rows of `evaluate`")
        each = before["rows"]["count"] // known if before else 0
        return {
            f"{part.Index:08d}": Shard(
                partial(_measure, rows_of),
                partial(_given, shelf, part.Index, out, known, each),
                part.texts,
                part.cost,
                part.digest,
            )
            for part in shelf.parts.itertuples()
        }

    def finish(paths: Sequence[Path], seconds: float) -> tuple[Sequence[Path], dict[str, Any]]:
        whole = Shelf(paths[0].parent / TEXTS).whole
        facts = results.provenance(
            command=" && ".join(filter(None, (before.get("command"), command))),
            parameters=options,
            seconds=seconds + before.get("seconds", 0),
            device=classifier.device,
            model={"name": classifier.name, **classifier.parts},
            data={"name": texts.name, "identity": texts.identity, "texts": int(whole.texts)},
        )
        share = accuracy(paths) if settings.target is None else None
        return paths, {**facts, "accuracy": share, "cut": int(whole.cut)}

    how = {"shared": (classifier,), "engine": engine, "quiet": quiet}
    return in_shards(out, plan, cut, finish, **how)


def _given(
    shelf: Shelf, number: int, out: Path, known: int, each: int
) -> tuple[tuple[Texts, pd.DataFrame | None], ...]:
    """Return a shard's texts: those with rows in `out`, `each` many, with them, and the others."""
    texts, first = shelf.take(number), int(shelf.parts.texts[:number].sum())
    there, pieces = min(max(known - first, 0), len(texts)), []
    if there:
        places = np.arange(first * each, (first + there) * each)
        old = dataset(out / results.ROWS).take(places).to_pandas()
        pieces.append((texts.take(range(there)), old))
    if there < len(texts):
        pieces.append((texts.take(range(there, len(texts))), None))
    return tuple(pieces)


def _measure(
    rows_of: Callable[[Classifier, Texts, pd.DataFrame | None], pd.DataFrame],
    classifier: Classifier,
    *pieces: tuple[Texts, pd.DataFrame | None],
) -> pd.DataFrame:
    return pd.concat([rows_of(classifier, *piece) for piece in pieces], ignore_index=True)


def compact(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep four decimals of measured values: a tenth of what another processor moves them by."""
    floats = rows.select_dtypes("float").columns
    rows[floats] = rows[floats].astype("float32").round(4)
    return rows


def accuracy(paths: Sequence[Path]) -> float | None:
    """Return the share of texts that are classified right, None where one has no label."""
    columns = ["id", "target", "label"]
    if not {*columns} <= {*pq.read_schema(paths[0]).names}:
        return None
    parts = [pd.read_parquet(path, columns=columns).drop_duplicates("id") for path in paths]
    texts = pd.concat(parts)
    return float((texts.target == texts.label).mean()) if texts.label.notna().all() else None


def _plan(
    classifier: Classifier, texts: Texts | TextStream, options: Mapping[str, Any]
) -> dict[str, Any]:
    model = classifier.parts
    return {"model": model.pop("identity"), **model, "texts": texts.identity, **options}


def _found(out: Path) -> dict[str, Any] | None:
    """Return the provenance in `out`; the first rank sees that it is that of the rows."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return results.facts(out, checked=not rank())


def _before(
    out: Path, plan: Mapping[str, Any], growing: Collection[str] = ()
) -> dict[str, Any] | None:
    """Return the provenance of a finished run in `out` that differs in what may grow, at most."""
    if not rank():
        recover(out)
    if (facts := _found(out)) and facts.get("plan") != key(plan):
        model = facts.get("model", {})
        told = {**model, "model": model.get("identity"), "texts": facts["data"]["identity"]}
        told = {name: value for name, value in told.items() if name not in ("name", "identity")}
        told, now = {**told, **facts["parameters"]}, json.loads(json.dumps(plan))
        other = [name for name in {**now, **told} if told.get(name) != now.get(name)]
        if other := [name for name in other if name not in growing]:
            raise ValueError(
                f"{out} holds a finished run of {model.get('name')!r} on "
                f"{facts['data']['name']!r} with other {', '.join(other)}: name another folder"
            )
    return facts


def _say(sentence: str) -> None:
    if not rank():
        print(sentence, file=sys.stderr)
