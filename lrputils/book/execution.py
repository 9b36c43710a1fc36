"""Running chapters: by Papermill, two at once, in fresh kernels, only when needed."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import partial
from importlib.metadata import version
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import papermill
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError, strip_color
from tqdm import tqdm

import lrputils
from lrputils.book.layout import DEFAULT, Book, BookError, Chapter
from lrputils.book.notebooks import (
    missing_figures,
    read_notebook,
    read_text,
    without_traces,
    write_notebook,
)
from lrputils.book.parameters import check_inputs
from lrputils.runs.folders import writable

# Another version of one of these makes an executed chapter stale, as a change of its text does.
_ENGINES = ("torch", "transformers", "numpy", "matplotlib")
# A kernel's environment: this interpreter's own kernel, figures drawn into the page whatever the
# user's own setting is, no progress bars among the outputs, and threads that sleep while they wait
# (spinning, they slow a shared machine down up to thirtyfold).
KERNEL_ENVIRONMENT = {
    "JUPYTER_PREFER_ENV_PATH": "1",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}

# The kernel's last act is to note its peak memory, in kilobytes (on macOS in bytes; Windows: none).
_NOTE_PEAK = (
    "__import__('atexit').register(lambda: open({place!r}, 'w').write("
    "str(__import__('resource').getrusage(0).ru_maxrss)));"
)


def _sources_digest(book: Book) -> str:
    """Return a digest of what chapters read: the package, its assets, and the recorded runs."""
    digest = hashlib.sha256()
    for folder in (Path(lrputils.__file__).parent, book.root / "results"):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.relative_to(folder).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def fingerprint(chapter: Chapter, parameters: Mapping[str, Any], sources: str) -> str:
    """Return a digest of everything that decides what executing the chapter gives."""
    engines = {name: version(name) for name in _ENGINES}
    decides = [chapter.text.read_text(encoding="utf-8"), parameters, sources, engines, sys.version]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def run_chapter(
    chapter: Chapter,
    parameters: Mapping[str, Any],
    output: Path,
    *,
    failed: Path,
    stamp: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Path:
    """Execute the chapter's text with `parameters` and write the notebook to `output`.

    The working directory is the caller's, so that relative paths mean what the caller means. A run
    that failed goes to `failed`, whose old one is removed by a success. A `stamp` goes into the
    metadata, with time and memory.

    Raises:
        BookError: a cell raised (the frames are in a note), the kernel died, a figure is missing,
            or `output` cannot be written; the message says where the run is.
    """
    notebook, spent = _executed(chapter, parameters, failed, progress)
    if stamp is not None:
        notebook.metadata["lrputils"] = {**stamp, **spent}
    try:
        write_notebook(notebook, output)
    except OSError as error:
        kept = Path(tempfile.mkdtemp()) / output.name
        write_notebook(notebook, kept)
        reason = f"{output} cannot be written: {error.strerror}"
        raise BookError(f"{reason}; the finished run is {kept}") from None
    failed.unlink(missing_ok=True)  # an earlier run's, if there was one
    return output


def _executed(
    chapter: Chapter, parameters: Mapping[str, Any], failed: Path, progress: bool
) -> tuple[NotebookNode, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, KERNEL_ENVIRONMENT):
        draft, peak = Path(folder) / f"{chapter.name}.ipynb", Path(folder) / "peak"
        note = _NOTE_PEAK.format(place=str(peak)) if sys.platform != "win32" else ""
        write_notebook(read_text(chapter.text), draft)
        try:
            papermill.execute_notebook(
                str(draft),
                str(draft),
                dict(parameters),
                kernel_name="python3",
                progress_bar={"desc": chapter.name, "disable": None if progress else True},
                cwd=str(Path.cwd()),
                extra_arguments=["--log-level=CRITICAL", f"--IPKernelApp.exec_lines={note}"],
                stderr_file=sys.stderr,  # what a cell warns of is told before the run ends
            )
            problem, details = next(missing_figures(read_notebook(draft)), None), ""
        except PapermillExecutionError as error:
            said = next((line for line in str(error.evalue).splitlines() if line.strip()), "")
            problem = f"code cell {error.exec_count} failed: {error.ename}: {said}"
            details = strip_color("\n".join([error.source, "", *error.traceback]))
        except DeadKernelError:
            problem, details = "the kernel died, often for want of memory", ""
        notebook = read_notebook(draft)
        spent = {"seconds": notebook.metadata.get("papermill", {}).get("duration")}
        if peak.is_file():
            unit = 2**20 if sys.platform == "darwin" else 2**10
            spent["megabytes"] = int(peak.read_text()) / unit
    notebook = without_traces(notebook)
    if problem:
        write_notebook(notebook, failed)
        shown = os.path.relpath(failed) if failed.is_relative_to(Path.cwd()) else failed
        said = f"{chapter.name}: {problem}; the run as far as it got: {shown}"
        failure = BookError(said)
        failure.add_note(details)
        raise failure
    return notebook, spent


def execute_profile(
    book: Book,
    chapters: Sequence[Chapter],
    parameters: Mapping[str, Mapping[str, Any]],
    profile: str = DEFAULT,
    *,
    out: Path | None = None,
    force: bool = False,
    progress: bool = True,
    processes: int | None = None,
) -> dict[str, Path]:
    """Execute the chapters under a profile, each only if something that decides it has changed.

    The notebooks are kept in `_build/executed/<profile>`; return them by the chapter's name.
    `parameters` is `load_profile`'s answer; `force` runs also what has not changed. Into another
    folder `out` all are executed, since a model or data at the same path may be others now.
    `processes` are at work at once: two where there are two cores. What took longest the last time
    begins.

    Raises:
        BookError: a chapter failed, or a model or data that one is given are not there. No other
            chapter begins then; one that had begun ends, and is kept.
    """
    folder = out or book.build_folder / "executed" / Path(profile).stem
    sources, jobs = _sources_digest(book), {}
    executed = {chapter.name: folder / f"{chapter.name}.ipynb" for chapter in chapters}
    for chapter in chapters:
        check_inputs(read_text(chapter.text), chapter.name, parameters[chapter.name])
    writable(folder)
    for place, chapter in enumerate(chapters):
        output, given = executed[chapter.name], parameters[chapter.name]
        stamp = {"profile": profile, "fingerprint": fingerprint(chapter, given, sources)}
        before = _stamp(output)
        if force or out or not stamp.items() <= before.items():
            kept = book.build_folder / "failed" / output.name
            failed = output.with_suffix(".failed.ipynb") if out else kept
            # In a fresh clone no time is known: the later chapters are the longer ones.
            expected = (before.get("seconds") or 0.0, place)
            jobs[expected] = partial(
                run_chapter, chapter, given, output, failed=failed, stamp=stamp
            )
        elif progress:
            print(f"{chapter.name}: unchanged", file=sys.stderr)
    longest_first = [jobs[expected] for expected in sorted(jobs, reverse=True)]
    for path in _finished(longest_first, processes or min(2, os.cpu_count() or 1), progress):
        if progress:
            tqdm.write(f"{path.stem}: {_stamp(path)['seconds']:.0f} s", file=sys.stderr)
    return executed


def _finished(
    jobs: Sequence[Callable[..., Path]], processes: int, progress: bool
) -> Iterator[Path]:
    """Do the jobs, so many at once, and yield what each returns when it is done.

    After a failure no other job begins, and those at work are waited for.
    """
    if min(processes, len(jobs)) < 2:
        yield from (job(progress=progress) for job in jobs)
        return
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // processes))
    left = iter(jobs)
    with (
        patch.dict(os.environ, OMP_NUM_THREADS=threads),
        ProcessPoolExecutor(processes, get_context("spawn")) as pool,
        tqdm(total=len(jobs), unit="chapter", disable=None if progress else True) as bar,
    ):
        running = {pool.submit(job, progress=False) for job in islice(left, processes)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
                bar.update()
            running |= {pool.submit(job, progress=False) for job in islice(left, len(done))}


def _stamp(path: Path) -> Mapping[str, Any]:
    try:
        return read_notebook(path).metadata.get("lrputils", {})
    except (OSError, ValueError, TypeError):
        return {}


def refresh_twins(book: Book, executed: Mapping[str, Path]) -> list[Path]:
    """Put executed notebooks beside their texts, without the run's stamp; return their paths."""
    twins = {book.chapter(name).notebook: read_notebook(path) for name, path in executed.items()}
    for twin, notebook in twins.items():
        notebook.metadata.pop("lrputils", None)
        write_notebook(notebook, twin)
    return list(twins)
