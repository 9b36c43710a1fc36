"""`lrputils bench`: groups of measurements, kept in one JSON file as each is done.

What each group measures is in `lrputils.study.bench`; the throughput of `lrputils evaluate`,
which runs in processes of its own, is measured here.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import BertForSequenceClassification

from lrputils.model.classifier import Classifier, load_classifier
from lrputils.runs import results
from lrputils.runs.folders import writable, write_json
from lrputils.study import sides
from lrputils.study.bench import GROUPS as _INSIDE
from lrputils.study.bench import Bench, untrained

FILE, MODEL = "bench.json", "6x384"
_FEW, _MANY = 16, 240  # texts of two runs of `evaluate`: their difference has no start in it
_TURNS = 2


def across_processes(bench: Bench) -> list[dict[str, Any]]:
    """Throughput of `lrputils evaluate` on sentences by one process and by two, start left out."""
    threads, seconds = torch.get_num_threads(), {1: [], 2: []}
    with TemporaryDirectory() as folder, _saved(bench.classifier, Path(folder)) as model:
        for turn in range(_TURNS):
            for processes, taken in seconds.items():
                outs = [Path(folder, f"{turn}-{processes}-{texts}") for texts in (_FEW, _MANY)]
                few, many = (
                    _evaluated(model, texts, out, processes, threads)
                    for texts, out in zip((_FEW, _MANY), outs, strict=True)
                )
                taken.append(many - few)
        one, two = (pd.read_parquet(Path(folder, f"0-{n}-{_MANY}", results.ROWS)) for n in (1, 2))
    pairs = list(zip(one.scores, two.scores, strict=True))
    largest = max(float(np.abs(first).max()) for first, _ in pairs)
    difference = max(float(np.abs(first - second).max()) for first, second in pairs) / largest
    rows = []
    for processes, taken in seconds.items():
        ratios = np.array(taken) / np.array(seconds[1])
        row = {"what": f"evaluate, {_MANY - _FEW} sentences", "seconds": float(np.median(taken))}
        row |= {"side": f"{processes} process{'es' if processes > 1 else ''}"}
        row |= {"ratio": float(np.median(ratios)), "low": ratios.min(), "high": ratios.max()}
        rows.append({**row, "difference": difference if processes > 1 else 0.0})
    return rows


@contextmanager
def _saved(classifier: Classifier, folder: Path) -> Iterator[Path]:
    """A folder that another process can load the classifier from."""
    if classifier.folder is None:
        classifier.model.save_pretrained(folder / "model")
        classifier.tokenizer.save_pretrained(folder / "model")
    yield classifier.folder or folder / "model"


def _evaluated(model: Path, texts: int, out: Path, processes: int, threads: int) -> float:
    """Seconds of `lrputils evaluate` by so many processes, which share so many threads."""
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
    command += ["-m", "lrputils", "evaluate", "--model", str(model), "--limit", str(texts)]
    command += ["--methods", "attnlrp", "--shard", "8", "--quiet", "--out", str(out)]
    own = {"OMP_NUM_THREADS": str(max(1, threads // processes))}
    began = time.perf_counter()
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"lrputils evaluate ended with {done.stderr[-300:]!r}")
    return time.perf_counter() - began


GROUPS = _INSIDE | {"evaluate": (across_processes, 60)}


def bench(
    model: str = MODEL,
    *,
    out: Path,
    only: Sequence[str] = (),
    repeats: int = 5,
    device: str = "cpu",
) -> Path:
    """Measure groups and keep them in `out/bench.json`; return its path.

    A group that is there already is left out, unless `only` names it. `model` is "LAYERSxWIDTH", an
    untrained BERT of that size; or a folder or name of a BERT. ValueError for an unknown group, or
    where what is kept was measured elsewhere, or on something else.
    """
    if unknown := [name for name in only if name not in GROUPS]:
        raise ValueError(f"no group(s) {unknown}; there are {list(GROUPS)}")
    size = re.fullmatch(r"(\d+)x(\d+)", model)
    if size and int(size[2]) % 12 and int(size[2]) % 64:
        raise ValueError(f"--model {model}: a width is a multiple of 12 or of 64")
    clf = untrained(*map(int, size.groups())) if size else load_classifier(model)
    clf.model.to(device)
    if not isinstance(clf.model, BertForSequenceClassification):
        raise ValueError(f"{clf.name} is no BERT, and the other sides are written for one")
    facts = _facts(clf, model, repeats)
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
    material = Bench.of(clf, repeats=repeats)
    for name in todo:
        began = time.perf_counter()
        rows = GROUPS[name][0](material)
        seconds = time.perf_counter() - began
        print(f"{name}: {seconds:.0f} seconds", file=sys.stderr)
        kept[name] = {
            "date": datetime.now(UTC).date().isoformat(),
            "seconds": round(seconds, 1),
            "libraries": {n: version(n) for n in sides.LIBRARIES if sides.installed(n)},
            "rows": [{key: plain(value) for key, value in row.items()} for row in rows],
        }
        write_json(path, {"provenance": facts, "groups": kept})
    return path


def plain(value: Any) -> Any:
    """As JSON holds it: numbers to five digits, no NaN."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return None if np.isnan(value) else float(f"{value:.5g}")
    return value


def _facts(classifier: Classifier, model: str, repeats: int) -> dict[str, Any]:
    facts = results.provenance(
        command=f"lrputils bench --model {Path(model).name} --repeats {repeats}",
        parameters={"repeats": repeats},
        seconds=0,
        device=classifier.device,
        model={"name": classifier.name, "identity": classifier.identity},
        processor=processor(),
    )
    return {name: fact for name, fact in facts.items() if name not in ("seconds", "date")}


def processor() -> dict[str, Any]:
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
    there = json.loads(path.read_text(encoding="utf-8"))
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
    there = json.loads(path.read_text(encoding="utf-8"))
    groups = {name: pd.DataFrame(group["rows"]) for name, group in there["groups"].items()}
    return groups, there["provenance"]


def contests(groups: Mapping[str, pd.DataFrame]) -> pd.DataFrame | None:
    """All rows that compare sides, of the groups that are there; None if there are none."""
    found = [rows for rows in groups.values() if "side" in rows]
    return pd.concat(found, ignore_index=True) if found else None
