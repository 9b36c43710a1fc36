"""Evaluating a data set of any size into a folder: `lrputils evaluate`; the audit calls it too.

What a run's folder holds, and how a killed one goes on, is in `lrputils.runs.parts`.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from lrputils.attribution import METHODS
from lrputils.data.texts import Texts, TextStream, unanswered
from lrputils.mistakes import about
from lrputils.model.classifier import Classifier
from lrputils.model.readout import READOUTS
from lrputils.runs import parts
from lrputils.runs.parts import Here, Part
from lrputils.runs.results import Recording, compact, hardware, revision
from lrputils.runs.settings import Settings
from lrputils.study.cost import Forecast, added, forecast
from lrputils.study.evaluation import REFERENCE, evaluate, variants_of
from lrputils.study.supplied import Supplied
from lrputils.study.variants import LayerSweep, Variant

Measured = Variant | LayerSweep | Supplied

_GROWING = ("methods", "scores", "limit")  # what a call may add to a run
_CURVES = ("morf", "lerf", "delta", "morf_curve", "lerf_curve")
_SCHEMA = pa.schema(
    {"id": pa.string(), "position": pa.int64(), "method": pa.string(), "options": pa.string()}
    | {"readout": pa.string(), "family": pa.string(), "layer": pa.int32(), "tokens": pa.int32()}
    | {"target": pa.int64(), "label": pa.int64(), "logit": pa.float32(), "r": pa.float32()}
    | {"r_content": pa.float32(), "r_normalised": pa.float32(), "flipped": pa.bool_()}
    | {"spearman": pa.float32()}
    | {name: pa.float32() for name in _CURVES[:3]}
    | {name: pa.list_(pa.float32()) for name in (*_CURVES[3:], "scores")}
    | {"pieces": pa.list_(pa.string()), "content": pa.list_(pa.bool_()), "cut": pa.bool_()}
    | {"passes": pa.float32()}
)


def evaluate_dataset(
    classifier: Classifier,
    texts: Texts | TextStream,
    out: str | Path,
    settings: Settings | None = None,
    *,
    variants: Sequence[Variant | LayerSweep] = (),
    command: str = "",
    parameters: Mapping[str, Any] | None = None,
    engine: Here | None = None,
    quiet: bool = False,
) -> Path:
    """Evaluate methods on texts into the folder `out`, which `read` reads.

    What is missing is measured: a killed run goes on by the same call, and a call adds methods,
    with the exact maps that are there, or texts, by a higher limit.

    Args:
        classifier: `load_classifier`'s answer.
        texts: `stream_texts`' answer.
        out: the run's folder.
        settings: see `Settings`.
        variants: what else is measured.
        command: what to call to get the same rows; for readers.
        parameters: how the texts were chosen.
        engine: who measures: `lrputils.runs.cluster.Ray`, or this process.
        quiet: no progress.

    Raises:
        ValueError: a run of something else, or of more texts, lies in `out`; a text cannot be
            encoded; the model returns NaN.
        OSError: the folder cannot be written, or the disk is full.
    """
    out, engine = Path(out), engine or Here()
    asked, settings, count, facts = _planned(
        classifier, texts, out, settings or Settings(), variants, parameters, engine, command
    )
    named = files(asked)
    measured = parts.measure_parts(
        out,
        facts,
        texts,
        [*named],
        partial(measure_part, asked, named, settings.labels),
        classifier,
        size=settings.part_size,
        count=count or _survey(classifier, texts, settings, [*named.values()]),
        first=next(iter(named)),
        engine=engine,
        schema=_SCHEMA,
        quiet=quiet,
    )
    if not measured:
        print(f"{out} is complete: nothing to do", file=sys.stderr)
    return out


def forecast_dataset(
    classifier: Classifier,
    texts: Texts | TextStream,
    out: str | Path | None = None,
    settings: Settings | None = None,
    *,
    variants: Sequence[Variant | LayerSweep] = (),
    parameters: Mapping[str, Any] | None = None,
    engine: Here | None = None,
) -> Forecast | str:
    """Forecast what `evaluate_dataset` with these arguments takes, of what a folder lacks.

    Errors are those of `evaluate_dataset`, and of `lrputils.study.cost.forecast`.
    """
    settings = settings or Settings()
    if out is None or not parts.stated(Path(out)):
        return forecast(classifier, texts, **settings.asked(classifier, variants))
    out = Path(out)
    asked, settings, _, facts = _planned(
        classifier, texts, out, settings, variants, parameters, engine or Here(), ""
    )
    named, groups = files(asked), {}
    first, plain = next(iter(named)), unanswered(texts)
    for part in parts.missing(out, facts, plain, [*named], settings.part_size, first):
        groups.setdefault(part.missing, []).append(part.texts)
    found = [
        forecast(
            classifier,
            _joined(some, texts),
            **{**asked, "methods": [named[name] for name in missing]},
            known=first not in missing,
        )
        for missing, some in groups.items()
    ]
    return added(found) if found else f"{out} is complete: nothing to do"


def _planned(
    classifier: Classifier,
    texts: Texts | TextStream,
    out: Path,
    settings: Settings,
    variants: Sequence[Variant | LayerSweep],
    parameters: Mapping[str, Any] | None,
    engine: Here,
    command: str,
) -> tuple[dict[str, Any], Settings, int | None, parts.Facts]:
    """Return what `lrputils.evaluate` is asked for, the settings with the size of parts, how many
    texts there are if that was counted, and the facts of the run, which agree with the folder's.
    """
    asked = settings.asked(classifier, variants)
    named = files(asked)
    size, count = settings.part_size or parts.stated(out).get("part_size"), None
    if size is None:
        count = _survey(classifier, texts, settings, [*named.values()])
        size = min(64, -(-count // 10))  # what a kill loses is a tenth
    settings = replace(settings, part_size=size)
    options = {**(parameters or {}), **asdict(settings)}
    told = {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "revision": revision(),
        "hardware": hardware(classifier.device),
    }
    decided = {name: value for name, value in options.items() if name not in _GROWING}
    facts = parts.describe(classifier, texts, decided, engine.kind(classifier), **told)
    there = parts.count(out) if parts.agree(out, facts) else 0
    for name, variant in named.items():
        others = {path.stem for path in out.glob(f"{parts.ROWS}/*/{name[:-9]}-*.parquet")}
        if isinstance(variant, Supplied) and others - {name}:
            raise ValueError(
                f"{out} has other maps called {variant.name!r}: give these another name, or name "
                "another folder"
            )
    if (options.get("limit") or there) < there:
        raise ValueError(f"{out} has {there} texts: " + about("limit", there) + " or more goes on")
    return asked, settings, count, facts


def _joined(some: Sequence[Texts], texts: Texts | TextStream) -> TextStream:
    """Return parts of texts one after the other, which a model answers as it does all."""
    rows = [
        row
        for part in some
        for row in zip(part.ids, part.texts, part.labels or [None] * len(part), strict=True)
    ]
    each = getattr(texts, "each", None)
    return TextStream(texts.name, texts.identity, lambda _: iter(rows), each)


def files(asked: Mapping[str, Any]) -> dict[str, Measured]:
    """Return what is measured by the names of its files, leave-one-out first."""
    by_name = {}
    for variant in variants_of(asked["methods"], progress=False):
        name = "layers" if isinstance(variant, LayerSweep) else variant.name.split()[0]
        if isinstance(variant, Supplied):  # a tool's name may hold what no file's does
            name = f"scores-{hashlib.sha256(variant.name.encode()).hexdigest()[:8]}"
        digest = hashlib.sha256(repr(variant).encode()).hexdigest()
        by_name[f"{name}-{digest[:8]}"] = variant
    return by_name


def measure_part(
    asked: Mapping[str, Any],
    named: Mapping[str, Measured],
    labels: Mapping[str, str] | None,
    loaded: Classifier,
    part: Part,
) -> dict[str, pd.DataFrame]:
    """Return the rows of what is missing of a part, by name.

    The exact maps are taken from the part where they are there.

    Raises:
        ValueError: a text that cannot be encoded, or a model that returns NaN.
    """
    missing = {name: named[name] for name in part.missing}
    texts, reference = part.texts, None
    if texts.labels:  # those that name no class were said of all texts
        texts = replace(texts, labels=tuple(loaded.number_labels(texts.labels, labels)))
    if part.known is not None:
        reference = [*map(np.array, part.known.scores)]
    options = {**asked, "methods": [*missing.values()]}
    rows = evaluate(loaded, texts, **options, reference=reference, progress=False).rows
    pieces = rows.drop_duplicates("position").pieces
    if part.known is not None and [*map(list, part.known.pieces)] != [*pieces]:
        raise ValueError(
            f"the exact maps of texts {texts.ids[0]!r} to {texts.ids[-1]!r} are of other tokens, "
            "or of another answer of the model's own: name another folder"
        )
    rows["position"] += part.start
    absent = [name for name in _SCHEMA.names if name not in rows]
    rows = compact(rows.assign(**dict.fromkeys(absent)))[_SCHEMA.names]
    by_name = {}
    for name, variant in missing.items():
        if isinstance(variant, LayerSweep):
            by_name[name] = rows[rows.family != ""].assign(options="")
            continue
        maps = rows[(rows.family == "") & (rows.method == variant.name)]
        method, options = variant.columns
        maps = maps[maps.readout == variant.label.readout]
        by_name[name] = maps.assign(method=method, options=options)
    return by_name


def read(out: str | Path) -> Recording:
    """Read a run's folder: a row a text and method, in the texts' order, the exact map first.

    Returns:
        The rows of `measure` without columns that no row has, and what `run.json` says with, of the
        rows, `texts`, how many are `cut`, `accuracy` (the share that is classified right, None
        where one has no label) and `seconds`.

    Raises:
        FileNotFoundError: there is no run.
        ValueError: a part is damaged, of another run, or not finished.
    """
    facts, files_ = parts.read(Path(out))
    rows = pd.concat(files_, ignore_index=True)
    methods = (REFERENCE, *METHODS, *rows.method.unique())
    order = rows[["position"]].assign(
        method=pd.Categorical(rows.method, dict.fromkeys(methods)),
        options=rows.options,
        family=rows.family,
        readout=pd.Categorical(rows.readout, READOUTS),
    )
    rows = rows.loc[order.sort_values([*order], kind="stable").index]
    rows = rows.dropna(axis=1, how="all").reset_index(drop=True)
    once = rows.drop_duplicates("position")
    right = None
    if "label" in rows and once.label.notna().all():
        right = float((once.target == once.label).mean())
    counts = {"texts": len(once), "cut": int(once.cut.sum()), "accuracy": right}
    return Recording(rows, {**facts, **counts, "methods": [*rows.method.unique()]})


def _survey(
    classifier: Classifier,
    texts: Texts | TextStream,
    settings: Settings,
    measured: Sequence[Measured],
) -> int:
    """Read all texts once, before hours of work; return how many there are.

    Labels that the model does not have, and texts that are cut, are said.

    Raises:
        ValueError: a text cannot be encoded, or has no map of another tool that fits.
    """
    count = cut = 0
    labels: list[Any] = []
    for part in unanswered(texts).parts(1_024):
        try:
            inputs = classifier.encode(part, settings.max_length, truncate=True)
        except ValueError as error:
            raise ValueError(f"texts {part.ids[0]!r} to {part.ids[-1]!r}: {error}") from error
        for maps in measured:
            if isinstance(maps, Supplied) and not getattr(texts, "each", None):
                maps.lay(classifier, inputs, part, units=settings.units)
        count, cut = count + len(part), cut + len(inputs.truncated)
        labels += part.labels or [None] * len(part)
    if cut and settings.max_length is None:  # else it was asked for
        message = f"{cut} of {count} texts are too long, and cut"
        print(f"{message}: see `cut` in the rows of `evaluate`", file=sys.stderr)
    classifier.warn_of_labels(labels, classifier.number_labels(labels, settings.labels))
    return count
