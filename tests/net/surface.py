"""What a user of the package and a reader of the book meet, as the net keeps it in `surface/`.

`python -m tests.net.surface` writes those files anew: an explicit step, and a commit that does
nothing else and says why.
"""

from __future__ import annotations

import inspect
import io
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache, partial
from pathlib import Path
from unittest import mock

import lrputils as lrp
from experiments.bench import bench
from experiments.command import run_alone
from experiments.fine_tune import make
from experiments.recordings.__main__ import record
from lrputils.__main__ import main
from lrputils.book import execution
from lrputils.book.notebooks import read_text
from lrputils.report import audit_answers, audit_sentences
from tests import tiny

import pyarrow.parquet as pq  # isort: skip

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).with_name("surface")
TEXTS = FOLDER / "texts.csv"
KINDS = ["texts", "maps", "remedy", "yardstick", "softmax", "refactored"]
VERBS = ["", "explain", "execute", "build", "audit", "evaluate", "methods"]


def said(arguments: list[str]) -> tuple[int, str, str]:
    """Run a command in this process; return its status, and what it printed to either stream."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            status = main(arguments)
        except SystemExit as stop:
            status = stop.code
    return status, out.getvalue(), errors.getvalue()


def alone(function: Callable, arguments: list[str]) -> tuple[int, str, str]:
    """The same of a command line of a function's own, in `experiments`."""
    try:
        return 0, str(run_alone(function, arguments, prog="…")), ""
    except (OSError, ValueError) as error:
        return 1, "", str(error)


def names() -> Iterator[str]:
    """Public names with their signatures, public methods of classes, methods and their options."""
    for name in lrp.__all__:
        value = getattr(lrp, name)
        if callable(value):
            yield re.sub(r"<function (\w+) at \w+>", r"\1", f"{name}{inspect.signature(value)}")
        else:
            yield f"{name}: {type(value).__name__}"
        if inspect.isclass(value):
            for member, given in sorted(vars(value).items()):
                if not member.startswith("_") and inspect.isfunction(given):
                    yield f"    .{member}{inspect.signature(given)}"
                elif not member.startswith("_"):
                    yield f"    .{member}"
    yield ""
    for name, method in sorted(lrp.METHODS.items()):
        known = ", ".join(f"{k}={option.default!r}" for k, option in method.options.items())
        yield f"{name}: {method.label}; {known or 'no options'}"
    yield ""
    yield f"{lrp.ATTN_LRP}"
    yield f"{lrp.CP_LRP}"


def helps() -> Iterator[str]:
    """`--help` of every verb, 80 columns wide."""
    with mock.patch.dict(os.environ, COLUMNS="80"):
        for verb in VERBS:
            status, out, errors = said([*verb.split(), "--help"])
            yield f"$ lrputils {verb} --help".replace("  ", " ")
            yield from (out + errors).rstrip().splitlines()
            yield f"status {status}"
            yield ""


# Who refuses, by the first word of a command.
PROGRAMS = {
    "lrputils": said,
    "bench": partial(alone, bench),
    "fine_tune": partial(alone, make),
    "recordings": partial(alone, record),
}


def refusals() -> Iterator[str]:
    """Each command of the file, in an empty folder with some files; its status, its sentence.

    A new one is written there behind "$", with "…" for the folder; the book is where it is.
    """
    kept = (FOLDER / "refusals.txt").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        _prepare(Path(folder))
        prepared = {path.name for path in Path(folder).iterdir()}
        for command in re.findall(r"^\$ (.+)$", kept, re.M):
            program, *words = shlex.split(command.replace("…", folder))
            at = ROOT if words[0] in ("execute", "build") else folder
            with chdir(at), mock.patch.dict(os.environ, COLUMNS="80"), _no_kernel, _read_once:
                status, out, errors = PROGRAMS[program](words)
            yield f"$ {command}"
            told = (out + errors).strip().replace(folder, "…").replace(str(ROOT), "…")
            yield f"{status}: {re.sub(_OTHERS_WORDS, '…', told)}"
        left = {path.name for path in Path(folder).iterdir()}
        yield f"files that a refused command left: {sorted(left - prepared) or 'none'}"


_read_once = mock.patch("lrputils.book.parameters.read_text", cache(read_text))
_no_kernel = mock.patch.object(execution, "ProcessPoolExecutor", side_effect=AssertionError)
_OTHERS_WORDS = r"(?<=cannot be used here: ).*|(?<=the hub cannot be reached ).*"


def _prepare(folder: Path) -> None:
    for name in ("adapter", "empty", "full", "speaks"):
        (folder / name).mkdir()
    for name, content in {
        "adapter/adapter_config.json": "{}",
        "empty.csv": "text,label\n",
        "file": "",
        "full/notes.txt": "mine",
        "gap.csv": "text,label\na film,1\n,0\n",
        "mine.yml": "03_sst: {limit: 0}\n",
        "plain.csv": "text\na film\nanother\n",
        "speaks/config.json": '{"architectures": ["GPT2LMHeadModel"]}',
        "words.csv": "words,stars\ngood,1\n",
    }.items():
        (folder / name).write_text(content)


def rows() -> Iterator[str]:
    """Columns and types of every kind of rows, measured on a tiny model."""
    with tempfile.TemporaryDirectory() as folder:
        model = tiny.save(tiny.classifier(), Path(folder) / "tiny")
        short = ["--model", str(model), "--dataset", str(TEXTS), "--limit", "2", "--quiet"]
        runs = {f"record {kind}": short for kind in KINDS}
        runs["record yardstick"] = [*short, "-o", "permutations=4"]
        runs["evaluate"] = runs["audit"] = short
        for verb, arguments in runs.items():
            out = Path(folder) / verb.replace(" ", "-")
            asked = [*verb.split(), *arguments, "--out", str(out)]
            if asked[0] == "record":
                run_alone(record, asked[1:], prog="recordings")
            else:
                status, _, errors = said(asked)
                assert status == 0, (verb, errors)
            yield f"{verb}: {', '.join(sorted(path.name for path in out.iterdir()))}"
            schema = pq.read_schema(next(out.rglob("*.parquet")))
            yield from (
                f"    {name}: {kind}" for name, kind in zip(schema.names, schema.types, strict=True)
            )
        found = lrp.evaluate(
            lrp.load_classifier(model), lrp.load_texts(TEXTS, limit=2), ["attnlrp"]
        )
        yield "lrp.evaluate(…).rows"
        yield from (f"    {name}: {kind}" for name, kind in found.rows.dtypes.items())
    schema = pq.read_schema(ROOT / "results/mnist/linear-attention/rows.parquet")
    yield "record mnist, as recorded"
    yield from (
        f"    {name}: {kind}" for name, kind in zip(schema.names, schema.types, strict=True)
    )


def pages() -> Iterator[str]:
    """Pages in the order of the table of contents, their headings, and what can be linked to."""
    toc = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    for file in re.findall(r"^(?:root| +- file): (.+)$", toc, re.M):
        yield file
        text = (ROOT / f"{file}.md").read_text(encoding="utf-8")
        yield "  " + re.search(r"^# .+$", text, re.M)[0]
        for line in text.splitlines():
            if re.match(r"##+ ", line):
                yield f"  {line}"
            elif label := re.search(_LABEL, line):
                yield f"    {next(filter(None, label.groups()))}"
        yield ""


# (label)=, :label: label, name: fig-label, $$ (label)
_LABEL = r"^\(([\w-]+)\)=$|^:(?:label|name): (\S+)$|^\s+name: (fig-\S+)$|\$\$ \(([\w-]+)\)$"


def audit() -> Iterator[str]:
    """What the audit answers about the embedded model on ten texts."""
    run = lrp.audit(lrp.load_classifier(), lrp.load_texts(TEXTS)).run
    verdict = audit_answers.verdict(run)
    yield f"{verdict.answer}: {audit_sentences.of_verdict(verdict)}"
    for passes, lead in audit_answers.at_budgets(audit_answers.r_by_text(run, "word")).items():
        yield f"up to {passes} passes: {audit_sentences.of_lead(lead)}"
    sensitivity = audit_answers.sensitivity(run.maps())
    yield audit_sentences.of_conventions(sensitivity)
    yield from sensitivity.one[["AttnLRP", "CP-LRP"]].round(3).to_string().splitlines()


GOLDEN: dict[str, Callable[[], Iterator[str]]] = {
    "names.txt": names,
    "help.txt": helps,
    "refusals.txt": refusals,
    "rows.txt": rows,
    "pages.txt": pages,
    "audit.txt": audit,
}


def write() -> None:
    """Write every file of `surface/` as this version of the package has it."""
    for name, lines in GOLDEN.items():
        (FOLDER / name).write_text("\n".join(lines()).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
