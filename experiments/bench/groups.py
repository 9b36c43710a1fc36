"""`python -m experiments.bench`: groups of measurements, kept in one JSON file as each is done.

What each group measures is in `experiments.bench.timing` and, beside others, in `study.contests`.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import BertForSequenceClassification

from experiments.bench import contests, sides, timing
from experiments.bench.timing import Bench, Rows, untrained
from lrputils.model.classifier import load_classifier
from lrputils.runs import results
from lrputils.runs.folders import read_json, writable, write_json

FILE = "bench.json"

# Name → what measures it, and about how many seconds it takes on two cores at five repeats.
GROUPS: dict[str, tuple[Callable[[Bench], Rows], int]] = {
    "time": (timing.time_goes, 15),
    "model": (timing.model, 65),
    "methods": (timing.methods, 20),
    "loo-sentences": (partial(contests.loo, kind="sentences"), 55),
    "answers": (contests.answers, 400),
    "lrp": (contests.lrp, 15),
    "ablations": (contests.ablations, 40),
    "curves": (contests.curves, 10),
    "loo-review": (partial(contests.loo, kind="review"), 90),
}


def bench(
    model: str,
    *,
    out: Path,
    only: Sequence[str] = (),
    repeats: int = 5,
    device: str = "cpu",
) -> Path:
    """Measure groups and keep them in `out/bench.json`; return its path.

    A group that is there already is left out, unless `only` names it. `model` is "LAYERSxWIDTH", an
    untrained BERT of that size; or a folder or name of a BERT, for the group "answers" alone also
    of a language model. ValueError for an unknown group, or where what is kept was measured
    elsewhere, or on something else.
    """
    if unknown := [name for name in only if name not in GROUPS]:
        raise ValueError(f"no group(s) {unknown}; there are {list(GROUPS)}")
    size = re.fullmatch(r"(\d+)x(\d+)", model)
    if size and int(size[2]) % 12 and int(size[2]) % 64:
        raise ValueError(f"--model {model}: a width is a multiple of 12 or of 64")
    clf = untrained(*map(int, size.groups())) if size else load_classifier(model)
    clf.model.to(device)
    speaks = clf.architecture.language_model and list(only) == ["answers"]
    if not (speaks or isinstance(clf.model, BertForSequenceClassification)):
        raise ValueError(f"{clf.name} is no BERT, and the other sides are written for one")
    facts = results.provenance(
        command=f"python -m experiments.bench --model {Path(model).name} --repeats {repeats}",
        parameters={"repeats": repeats},
        seconds=0,
        device=clf.device,
        model={"name": clf.name, "identity": clf.identity},
        processor=_processor(),
    )
    del facts["seconds"], facts["date"]  # each group has its own
    path = writable(Path(out)) / FILE
    kept = _kept(path, facts)
    todo = list(only) or [name for name in GROUPS if name not in kept]
    minutes = sum(GROUPS[name][1] for name in todo) * repeats / 5 / 60
    print(
        f"{', '.join(todo) or 'nothing left'}: about {minutes:.1f} minutes on two cores; each is "
        f"kept in {path} when it is done",
        file=sys.stderr,
    )
    for name, use in sides.LIBRARIES.items():
        if not sides.installed(name):
            way = "pip install -e '.[bench]' brings it"
            print(f"{name} is not installed, and {use} is left out: {way}", file=sys.stderr)
    material = Bench(clf, {}, repeats) if speaks else Bench.of(clf, repeats=repeats)
    for name in todo:
        began = time.perf_counter()
        rows = GROUPS[name][0](material)
        seconds = time.perf_counter() - began
        print(f"{name}: {seconds:.0f} seconds", file=sys.stderr)
        kept[name] = {
            "date": datetime.now(UTC).date().isoformat(),
            "seconds": round(seconds, 1),
            "libraries": {n: version(n) for n in sides.LIBRARIES if sides.installed(n)},
            "rows": [{key: _plain(value) for key, value in row.items()} for row in rows],
        }
        write_json(path, {"provenance": facts, "groups": kept})
    return path


def _plain(value: Any) -> Any:
    """As JSON holds it: numbers to five digits, no NaN."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return None if np.isnan(value) else float(f"{value:.5g}")
    return value


def _processor() -> dict[str, Any]:
    """The kind of CPU: its name, the cores that this process may use, its vector instructions."""
    info = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.is_file() else None
    name = named[1].strip() if named else platform.processor() or platform.machine()
    vectors = torch.backends.cpu.get_cpu_capability()
    return {"name": name, "cores": os.cpu_count(), "vectors": vectors}


def _kept(path: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The groups that are there, if they were measured on the same things."""
    if not path.is_file():
        return {}
    there = read_json(path)
    for name in ("parameters", "model", "device", "processor", "versions"):
        if there["provenance"][name] != facts[name]:
            raise ValueError(
                f"{path} was measured with {name} = {there['provenance'][name]}, now it is "
                f"{facts[name]}: name another folder by --out, or remove that file"
            )
    return there["groups"]


def load(
    run: str | Path, folder: str | Path | None = None
) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """Return a kept bench: its groups by name, and its provenance.

    `run` is the path of a `bench.json`, or a name under `results/bench/`; `folder` as in
    `results.load`.
    """
    path = run if isinstance(run, Path) else results.find("bench", run, folder, FILE)
    there = read_json(path)
    groups = {name: pd.DataFrame(group["rows"]) for name, group in there["groups"].items()}
    return groups, there["provenance"]
