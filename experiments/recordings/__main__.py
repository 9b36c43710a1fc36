"""`python -m experiments.recordings KIND --model DIR --dataset FILE --limit N --seed 0 --out DIR`.

`mnist`, which trains networks, is a command of its own: `python -m experiments.recordings.mnist`.
"""

from __future__ import annotations

import inspect
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pandas as pd
import yaml
from cyclopts import Parameter

from experiments.command import main
from lrputils.runs.options import FIELDS, Words
from lrputils.runs.settings import Chosen

if TYPE_CHECKING:  # the help needs no torch
    from lrputils.data.texts import Texts, TextStream
    from lrputils.model.classifier import Classifier
    from lrputils.runs import parts

# Kind → module and function that measures it.
KINDS = {
    "texts": "experiments.recordings.evaluations:texts",
    "maps": "experiments.conventions:maps",
    "remedy": "experiments.recordings.remedy:remedy",
    "yardstick": "experiments.conventions:yardstick",
    "softmax": "experiments.softmax:measure",
    "refactored": "experiments.attention_forms:through_forms",
    "curves": "experiments.recordings.evaluations:curves",
    "baselines": "experiments.recordings.evaluations:baselines",
    "deltas": "experiments.recordings.evaluations:deltas",
    "epsilon": "experiments.recordings.epsilon:measure",
    "patching": "experiments.recordings.patching:measure",
    "layer_pairs": "experiments.recordings.layers:layer_pairs",
    "random_weights": "experiments.controls:random_weights",
    "uniform": "experiments.recordings.layers:uniform",
    "prompted": "experiments.recordings.language:prompted",
    "answers": "experiments.recordings.language:answers",
    "factorial": "experiments.recordings.factorial:measure",
    "saturation": "experiments.recordings.saturation:measure",
}
Kind = Literal[*KINDS]
_FILE = "rows"  # of a part


def record(
    kind: Kind,
    /,
    *,
    chosen: Annotated[Chosen, FIELDS] = Chosen(),  # noqa: B008  (frozen)
    o: Annotated[Sequence[str], Parameter(name=["-o", "--option"])] = (),
    max_length: int | None = None,
    batch_size: int = 16,
    longest: int | None = None,
    part_size: int = 16,
    out: Path,
    quiet: bool = False,
    command: Words = "",
) -> Path:
    """Record what the book quotes: rows of texts, with their provenance.

    What was killed goes on by the same command. The kinds:

        texts           r and perturbation curves of the methods and layer ablations
        maps            maps under each convention: rules, read-out, removal
        remedy          the mask gradient's maps at a cost, under each setting
        yardstick       maps beside Shapley values and exact leave-two-out
        softmax         how far rules for attention are from an exact removal
        refactored      AttnLRP's maps through other forms of attention
        curves          r and curves at every read-out, also under [MASK]
        baselines       Integrated Gradients from three baselines, rollout, the mask gradient
        deltas          the curves of half-removal alone, of long texts
        epsilon         LRP with ε > 0
        patching        patches, and each backward pass's estimates of them
        layer_pairs     exact leave-two-out, hidden from a layer on
        random_weights  agreement with LOO as the weights are randomised
        uniform         predictions with uniform attention in some layers
        prompted        a language model's maps of the label that it says next
        answers         a language model's maps of its answers to chats, by sentences
        factorial       agreement with each of LRP's four rules on or off, on a run's texts
        saturation      what is lost while a token is hidden by degrees

    Args:
        kind: what is recorded
        o: NAME=VALUE of the kind's `measure`, in YAML: chunk=16, removals=[mask]; may be repeated
        max_length: cut texts to N tokens
        batch_size: texts a batch
        longest: leave out texts of more words
        part_size: texts a part; a kill loses the part that is open
        out: where the rows go
        quiet: no progress
    """
    measure = resolve_name(KINDS[kind])
    sizes = {"max_length": max_length, "batch_size": batch_size}
    own = _own(kind, measure, o, sizes)
    classifier, texts = chosen.load()
    return record_texts(
        partial(measure, **own),
        classifier,
        _take_short(texts, longest),
        out,
        options={**chosen.of_texts, **own, "longest": longest, "part_size": part_size},
        command=command,
        quiet=quiet,
    )


def record_texts(
    measure: Callable[[Classifier, Texts], pd.DataFrame],
    classifier: Classifier,
    texts: Texts | TextStream,
    out: Path,
    *,
    options: Mapping[str, Any],
    command: str,
    quiet: bool = False,
) -> Path:
    """Write what `measure` returns of texts, part by part, and its provenance, into `out`.

    A killed recording goes on by the same call.

    Raises:
        FileExistsError: `out` holds a recording.
    """
    from experiments.recordings.provenance import provenance, write
    from lrputils.runs import parts, results

    if (out / results.PROVENANCE).exists():
        raise FileExistsError(f"{out} holds a recording: remove it, or name another folder")

    def rows_of(loaded: Classifier, part: parts.Part) -> dict[str, pd.DataFrame]:
        return {_FILE: rounded(measure(loaded, part.texts))}

    facts = parts.describe(classifier, texts, options, classifier.device.type)
    how = {"size": options["part_size"], "quiet": quiet}
    work = out / "unfinished"
    parts.measure_parts(work, facts, texts, [_FILE], rows_of, classifier, **how)
    told, rows = parts.read(work)
    rows = pd.concat(rows, ignore_index=True)
    once = rows.drop_duplicates("id")
    labelled = {"target", "label"} <= {*rows} and once.label.notna().all()
    write(
        out,
        rows,
        provenance(
            command=command,
            parameters=options,
            seconds=told["seconds"],
            device=classifier.device,
            model=facts["model"],
            data={**facts["data"], "texts": len(once)},
            accuracy=float((once.target == once.label).mean()) if labelled else None,
        ),
    )
    shutil.rmtree(work)
    return out


def rounded(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep four decimals of what was measured, and of a map 14 bits: more would not be squeezed."""
    from lrputils.runs.results import compact

    rows = rows.reset_index(drop=True)
    if "scores" in rows:
        return rows.assign(scores=rows.scores.map(_shortened))
    if "form" in rows and "moved" in rows:  # differences down to the last bits
        return rows
    settings = rows[["epsilon"]] if "epsilon" in rows else rows[[]]
    return compact(rows.drop(columns=settings.columns)).join(settings)


def _shortened(scores: np.ndarray) -> np.ndarray:
    mantissa, exponent = np.frexp(scores)
    return np.ldexp(np.round(mantissa * 2**14) / 2**14, exponent).astype(np.float32)


def _take_short(texts: TextStream | Texts, longest: int | None) -> TextStream | Texts:
    """Return the texts of at most `longest` words, all for None; ValueError if none is left."""
    if longest is None:
        return texts
    whole = next(iter(texts.parts(sys.maxsize)))
    short = [i for i, text in enumerate(whole) if len(text.split()) <= longest]
    if not short:
        raise ValueError(f"--longest {longest}: each of the {len(whole)} texts has more words")
    return whole.take(short)


def _own(
    kind: str, measure: Callable[..., Any], given: Sequence[str], sizes: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of `measure`, its defaults included; ValueError for one that it lacks."""
    own: dict[str, Any] = {}
    for follow in (True, False):  # what is measured in batches takes their size, too
        signature = inspect.signature(measure, follow_wrapped=follow)
        named = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
        own |= {p.name: p.default for p in named if not isinstance(p.default, Mapping)}
    own |= {name: value for name, value in sizes.items() if name in own}
    for one in given:
        name, _, value = one.partition("=")
        if name not in own:
            raise ValueError(f"-o {one}: {kind} has the options {[*own]}")
        own[name] = yaml.safe_load(value)
    return own


if __name__ == "__main__":
    main(record, "python -m experiments.recordings")
