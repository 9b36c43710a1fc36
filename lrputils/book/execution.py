"""Running chapters: by papermill, two at once, in fresh kernels, only when needed."""

from __future__ import annotations

import hashlib
import logging
import os
import resource
import sys
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat
import papermill
from nbclient.exceptions import DeadKernelError
from nbformat import ValidationError
from papermill.exceptions import PapermillExecutionError

import lrputils
from lrputils.book.layout import Book, BookError, Execution
from lrputils.book.notebooks import (
    missing_figures,
    read_text,
    without_roles,
    without_traces,
    write_notebook,
)
from lrputils.book.parameters import check_inputs
from lrputils.book.processes import end_with_parent
from lrputils.book.results_page import write_tables
from lrputils.runs.folders import digest, writable

# Another version of one of these makes an executed chapter stale, as a change of its text does.
_ENGINES = ("torch", "transformers", "numpy", "matplotlib")
# A kernel's environment: this interpreter's own kernel, figures drawn into the page whatever the
# user's own setting is, no progress bars among the outputs, and threads that sleep while they wait
# (spinning, they slow a shared machine down up to thirtyfold).
KERNEL_ENVIRONMENT = {
    "JUPYTER_PATH": str(Path(sys.prefix, "share/jupyter")),
    "JUPYTER_PREFER_ENV_PATH": "1",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}


def _code(book: Book) -> str:
    """Return a digest of all that chapters may read: the package, `experiments`, recorded rows."""
    rooms = Path(lrputils.__file__).parent, book.root / "experiments", book.root / "results"
    files = {
        str(path.relative_to(room.parent)): hashlib.sha256(path.read_bytes()).hexdigest()
        for room in rooms
        for path in room.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    return digest(files)


def _fingerprint(text: Path, parameters: Mapping[str, Any], code: str) -> str:
    """Return a digest of everything that decides what executing the chapter gives."""
    engines = {name: version(name) for name in _ENGINES}
    return digest([text.read_text("utf-8"), parameters, code, engines, sys.version])


def _stamp_of(path: Path) -> dict[str, Any]:
    """What a finished notebook says of its run; nothing where it is not as it was written."""
    with suppress(OSError, ValueError, KeyError, AttributeError, ValidationError):
        notebook = nbformat.read(path, 4)
        if notebook.metadata["lrputils"]["digest"] == digest(notebook.cells):
            return notebook.metadata["lrputils"]
    return {}


def execute(
    book: Book,
    given: Mapping[str, Mapping[str, Any]],
    how: Execution = Execution(),  # noqa: B008  (frozen)
    out: Path | None = None,
) -> dict[str, Path]:
    """Execute chapters, each only if its text, its parameters, code or recorded rows have changed.

    The notebooks are kept in `_build/executed/<profile>`; return them by the chapter's name. Into
    another folder `out` all are executed, since a model or data at the same path may be others now,
    and written in plain Markdown.
    The working directory is the caller's, so that relative paths mean what the caller means.

    Args:
        book: where the chapters are.
        given: the parameters of each chapter to execute: `load_parameters`' answer.
        how: see `Execution`; two chapters are at work at once where there are two cores, the later
            ones first, which are longer. One at a time they go in the order of `given`.
        out: where the notebooks go instead.

    Raises:
        BookError: a model or data that a chapter is given are not there, and none is executed; or
            chapters failed, each with its reason: the others are executed and kept.
    """
    folder = out or book.build_folder / "executed" / Path(how.profile).stem
    code, executed, jobs = _code(book), {}, []
    for name, parameters in given.items():
        check_inputs(read_text(book.chapter(name)), name, parameters)
    writable(folder).mkdir(parents=True, exist_ok=True)
    for name, parameters in given.items():
        text, output = book.chapter(name), folder / f"{name}.ipynb"
        executed[name] = output
        stamp = {"profile": how.profile, "fingerprint": _fingerprint(text, parameters, code)}
        if how.force or out or not stamp.items() <= _stamp_of(output).items():
            run = text, parameters, output, stamp, how.quiet
            jobs.append(partial(_run_chapter, *run, alone=out is not None))
        elif not how.quiet:
            print(f"{name}: unchanged", file=sys.stderr)
    cores = os.cpu_count() or 1
    processes = max(1, min(how.processes or min(2, cores), len(jobs)))
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, cores // processes)))
    # A process a chapter, so that the peak memory of its children is that of one kernel.
    pool = ProcessPoolExecutor(
        processes, get_context("spawn"), end_with_parent, max_tasks_per_child=1
    )
    with patch.dict(os.environ, OMP_NUM_THREADS=threads), pool:
        left = iter(jobs if processes == 1 else jobs[::-1])
        running = {pool.submit(job) for job in islice(left, processes)}
        failed: list[str] = []
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    told = future.result()
                except BookError as error:  # what is no mistake of a chapter's is raised
                    told = str(error)
                    failed.append(told)
                if not how.quiet:
                    print(told, file=sys.stderr)
            running |= {pool.submit(job) for job in islice(left, len(done))}
    if failed:
        rest = f"; the other {len(given) - len(failed)} are there" if failed[1:] else ""
        raise BookError("; ".join(failed) + rest)
    return executed


def _run_chapter(
    text: Path,
    parameters: Mapping[str, Any],
    output: Path,
    stamp: Mapping[str, Any],
    quiet: bool,
    *,
    alone: bool,
) -> str:
    """Execute the chapter's text with `parameters`, write the notebook; say how long it took.

    What its tables and figures show goes into a folder of its name beside it, as CSV. A run
    that goes on, or failed, is beside `output` under another name; a success removes both. The
    `stamp` goes into the metadata, with time and memory. Read `alone`, outside of the book, it has
    no roles.

    Raises:
        BookError: a cell raised, the kernel died, or a figure is missing; the message says where
            the run is.
    """
    os.environ.update(KERNEL_ENVIRONMENT)
    logging.getLogger("asyncio").disabled = True  # what nbclient leaves there on Ctrl-C
    if not (quiet or sys.stderr.isatty()):  # there a bar says so
        print(f"{text.stem}: executing …", file=sys.stderr)
    running, failed = (output.with_suffix(f".{way}.ipynb") for way in ("running", "failed"))
    began, problem = time.perf_counter(), ""
    try:
        papermill.execute_notebook(
            read_text(text),
            str(running),
            dict(parameters),
            kernel_name="python3",
            progress_bar={"desc": text.stem, "leave": False, "disable": quiet or None},
            extra_arguments=["--log-level=CRITICAL"],
        )
    except PapermillExecutionError as error:
        said = next((line for line in error.evalue.splitlines() if line.strip()), "")
        problem = f"code cell {error.exec_count} failed: {error.ename}: {said}"
    except DeadKernelError:
        problem = "the kernel died, often for want of memory"
    notebook = without_traces(nbformat.read(running, 4))
    notebook = without_roles(notebook) if alone else notebook
    running.unlink()
    problem = problem or next(missing_figures(notebook), "")
    unit = 2**20 if sys.platform == "darwin" else 2**10
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    spent = {"seconds": time.perf_counter() - began, "megabytes": peak / unit}
    notebook.metadata["lrputils"] = {**stamp, **spent, "digest": digest(notebook.cells)}
    if problem:
        write_notebook(notebook, failed)
        run = f"the run as far as it got: {os.path.relpath(failed)}"
        raise BookError(f"{text.stem}: {problem}; {run}")
    write_notebook(notebook, output)
    write_tables(notebook, output.with_suffix(""))
    failed.unlink(missing_ok=True)
    return f"{text.stem}: {spent['seconds']:.0f} s"


def refresh_twins(book: Book, executed: Mapping[str, Path]) -> list[Path]:
    """Put executed notebooks beside their texts, without the run's stamp; return their paths."""
    twins = [book.chapter(name).with_suffix(".ipynb") for name in executed]
    for path, twin in zip(executed.values(), twins, strict=True):
        notebook = nbformat.read(path, 4)
        del notebook.metadata["lrputils"]
        write_notebook(notebook, twin)
    return twins
