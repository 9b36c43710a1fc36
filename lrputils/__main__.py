"""The command line: `lrputils …` or `python -m lrputils …`."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from lrputils.book.layout import DEFAULT, Book, BookError, find_book
from lrputils.runs import folders
from lrputils.runs import options as recording
from lrputils.training import recipe as training

# What the package raises for input that it cannot take; the message names the way out.
_MISTAKES = (ValueError, TypeError, OSError, ImportError)
_CRASHES = (MemoryError, SystemError, RuntimeError)  # what a lack of memory raises, besides

_RECORD = (
    "`record` is gone: `lrputils evaluate …` measures methods on a data set, and in the book's "
    "repository `python -m recipes.recordings KIND …` records what the book quotes"
)
_EVALUATE = """\
Measure methods on every text of a data set, against exact leave-one-out. DIR/rows.parquet gets a
row a text and method: correlations (r, spearman), the prediction, and the map itself (scores,
pieces: the tokens). DIR/provenance.json says where they come from.

Texts are read as they are needed; their number does not matter. What was killed goes on by the same
command. Several processes share the work, and give the same rows:

    torchrun --nproc-per-node=4 --max-restarts=3 -m lrputils evaluate --dataset D --out DIR

With several nodes DIR is a folder that all of them see. For Ray Data, see
lrputils.study.batches."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lrputils",
        description="Explain texts; execute and build the book, with any models and texts.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_explain(verbs)
    verb = verbs.add_parser(
        "execute",
        help="execute chapters",
        description=(
            "Execute chapters (all, if none is named) in fresh kernels. Under the default profile "
            "and without -p the executed notebooks replace the twins beside the chapters' texts, "
            "once all cells ran; otherwise they go to --out, and the twins are left alone."
        ),
        epilog="example: lrputils execute 03_sst -p model=DIR -p dataset=FILE --out run",
    )
    verb.add_argument("chapters", nargs="*", metavar="CHAPTER", help="e.g. 03_sst, or 3")
    verb.add_argument("-p", dest="given", action="append", default=[], metavar="NAME=VALUE")
    verb.add_argument("--out", type=Path, metavar="DIR", help="write the notebooks into DIR")
    _add_profile(verb)
    verb.set_defaults(run=_execute)

    verb = verbs.add_parser(
        "build",
        help="build the book's pages",
        description=(
            "Execute what has changed under a profile and build _build/html/index.html. The "
            "committed twins are left alone."
        ),
    )
    verb.add_argument(
        "--no-execute", action="store_true", help="build from the committed twins as they are"
    )
    verb.add_argument(
        "--single", action="store_true", help="one page of everything, to print or to save as PDF"
    )
    verb.add_argument("--repository-url", metavar="URL", help="where edit buttons lead")
    verb.add_argument("--out", type=Path, metavar="DIR", help="build in DIR/_build instead")
    _add_profile(verb)
    verb.set_defaults(run=_build)

    verb = verbs.add_parser(
        "bench",
        help="measure speed, side by side",
        description=(
            "Time this package against plain loops and other libraries, in turn, with the outputs "
            "compared, and keep each group of measurements in DIR/bench.json when it is done. A "
            "ratio is the other side's time over ours; its interval holds the median of all turns."
        ),
    )
    verb.add_argument(
        "--model", metavar="NAME", help="LAYERSxWIDTH, or a BERT's folder or name (default: 6x384)"
    )
    verb.add_argument("--only", metavar="A,B", help="groups, measured (again) even if kept")
    verb.add_argument("--repeats", type=int, default=5, metavar="N", help="turns (default: 5)")
    verb.add_argument(
        "--out", type=Path, default=Path("_build/bench"), metavar="DIR", help="(%(default)s)"
    )
    verb.add_argument("--device", default="cpu", help="cpu (the default), cuda:1")
    verb.set_defaults(run=_bench)
    verb = verbs.add_parser(
        "audit",
        help="does LRP track leave-one-out on a model and texts? one HTML page",
        description=(
            "Compare AttnLRP, CP-LRP and other methods with exact leave-one-out on some texts (50, "
            "drawn by seed 0, if --limit and --seed say nothing else), and "
            "write DIR/audit.html: the verdict with intervals, which method at which cost, the "
            "texts where they disagree, checks of the rules, layers, conventions, cost and origin. "
            "What was killed goes on by the same command; when all is there, it writes the page "
            "again."
        ),
        epilog="example: lrputils audit --model DIR --dataset reviews.csv --out my-audit",
    )
    recording.choice(verb)
    verb.add_argument("--out", type=Path, metavar="DIR", required=True, help="where all goes")
    verb.add_argument("--quiet", action="store_true", help="no progress")
    verb.set_defaults(run=_audit, limit=50, seed=0)
    training.add_verb(verbs).set_defaults(run=_train)
    _add_evaluate(verbs)
    return parser


def _add_explain(verbs: argparse._SubParsersAction) -> None:
    verb = verbs.add_parser(
        "explain",
        help="explain what a classifier makes of one text",
        description=(
            "Show the words of a text in the colours of one or more attribution methods, with the "
            "prediction and how far each map tracks exact Leave-One-Out on this text."
        ),
        epilog="example: lrputils explain 'a film that is never dull' --out film.html",
    )
    verb.add_argument("text", metavar="TEXT", help="the text; - reads it from standard input")
    verb.add_argument("--second", metavar="TEXT", help="the second text of a pair")
    verb.add_argument("--model", metavar="NAME", help="folder or hub name (default: embedded)")
    verb.add_argument("--methods", metavar="A,B", help="default: loo,attnlrp; see lrputils.METHODS")
    verb.add_argument("--target", metavar="CLASS", help="number or label (default: the predicted)")
    verb.add_argument("--max-length", type=int, metavar="N", help="explain the first N tokens")
    verb.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda:1")
    verb.add_argument(
        "--out", "--html", type=Path, metavar="FILE", help="write FILE.html, .svg or .png instead"
    )
    verb.set_defaults(run=_explain)


def _add_evaluate(verbs: argparse._SubParsersAction) -> None:
    verb = verbs.add_parser(
        "evaluate",
        help="measure methods on a data set of any size",
        description=_EVALUATE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    recording.choice(verb)
    verb.add_argument(
        "--methods",
        metavar="A,B",
        help="beside loo (default: attnlrp,cp-lrp); see lrputils.METHODS",
    )
    verb.add_argument(
        "--long", default="cut", metavar="HOW", help="cut (the default) or refuse longer texts"
    )
    verb.add_argument(
        "--precision",
        default="float32",
        metavar="P",
        help="of loo: float32 (exact), bf16, on a GPU tf32; checked on rows that run in both",
    )
    verb.add_argument(
        "--tolerance",
        type=float,
        default=0.002,
        metavar="X",
        help="run a text again in float32 where r with float32's loo may be 1 - X (default: .002)",
    )
    verb.add_argument(
        "--shard", type=int, default=64, metavar="N", help="texts a shard (default: %(default)s)"
    )
    verb.add_argument(
        "--dry-run", action="store_true", help="say what it will take, and write nothing"
    )
    verb.add_argument("--price", type=float, metavar="X", help="of a device hour, for --dry-run")
    verb.add_argument("--out", type=Path, metavar="DIR", help="where the rows go")
    verb.add_argument("--quiet", action="store_true", help="no progress")
    verb.set_defaults(run=_evaluate)


def _add_profile(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--profile",
        default=DEFAULT,
        metavar="NAME",
        help="a name from profiles/ or the path of a YAML file (default: %(default)s)",
    )
    verb.add_argument("--force", action="store_true", help="execute also what has not changed")
    verb.add_argument(
        "--processes", type=int, metavar="N", help="chapters at once (default: 2, of two cores)"
    )
    verb.add_argument("--quiet", action="store_true", help="no progress bars")
    verb.add_argument("--verbose", action="store_true", help="show a failed cell and its frames")


def _explain(options: argparse.Namespace) -> Any:
    from lrputils.model.classifier import load_classifier
    from lrputils.report import explain
    from lrputils.report.heatmap import check_place

    if options.out:
        check_place(options.out)
    text = sys.stdin.read() if options.text == "-" else options.text
    with suppress(UnicodeError):  # in locale C, UTF-8 arrives as bytes in disguise
        text = os.fsencode(text).decode()
    methods = explain.check_methods(options.methods or explain.DEFAULT)
    target = options.target
    shown = explain.explain(
        load_classifier(options.model, device=options.device),
        text if options.second is None else (text, options.second),
        methods,
        target=int(target) if target and target.isdecimal() else target,
        max_length=options.max_length,
    )
    return shown.save(options.out) if options.out else shown


def _train(options: argparse.Namespace) -> Path:
    from lrputils.training.run import train

    recipe = training.recipe_of(options)
    return train(recipe, options.out, device=options.device, quiet=options.quiet)


def _audit(options: argparse.Namespace) -> Path:
    from lrputils.data.texts import stream_texts
    from lrputils.report.audit import audit
    from lrputils.report.audit_plan import settings

    parts = {name: getattr(options, name) for name in ("split", "text_column", "label_column")}
    whole = stream_texts(options.dataset, **parts)
    how = settings(**recording.sizes(options))
    return audit(**recording.chosen(options), whole=whole, settings=how)


def _evaluate(options: argparse.Namespace) -> Any:
    from lrputils.runs.datasets import Settings, evaluate_dataset
    from lrputils.runs.estimates import estimate
    from lrputils.runs.shards import rank

    if options.out is None and not options.dry_run:
        raise ValueError("--out DIR says where the rows go; --dry-run needs none")
    asked = {} if options.methods is None else {"methods": recording.listed(options.methods)}
    asked |= {name: getattr(options, name) for name in ("long", "shard", "precision", "tolerance")}
    settings = Settings(**asked, **recording.sizes(options))
    given = recording.chosen(options)
    if options.dry_run:
        return estimate(given["classifier"], given["texts"], settings, price=options.price)
    out = evaluate_dataset(**given, settings=settings)
    return None if rank() else out


def _bench(options: argparse.Namespace) -> str:
    from lrputils.report.figures.cost import ratios
    from lrputils.runs import bench

    how = {name: getattr(options, name) for name in ("out", "repeats", "device")}
    only = recording.listed(options.only) or ()
    path = bench.bench(options.model or bench.MODEL, only=only, **how)
    groups, _ = bench.load(path)
    if (contests := bench.contests(groups)) is not None:
        path.with_name("ratios.svg").write_text(ratios(contests).svg(), encoding="utf-8")
    return "\n\n".join(
        rows.to_string(index=False, float_format="{:.3g}".format) for rows in groups.values()
    )


def _under_profile(book: Book, options: argparse.Namespace, names: list[str]) -> Any:
    """Return what executes the named chapters, or all, as a profile says; mistakes come first."""
    from lrputils.book.execution import execute_profile
    from lrputils.book.parameters import load_profile

    chapters = [book.chapter(name) for name in names] or book.chapters()
    given = load_profile(book, options.profile)
    how = {"force": options.force, "progress": not options.quiet, "processes": options.processes}
    return partial(execute_profile, book, chapters, given, options.profile, **how)


def _execute(options: argparse.Namespace) -> str | None:
    from lrputils.book.execution import refresh_twins

    book = find_book()
    if options.given or options.out:
        return _execute_apart(book, options)
    execute = _under_profile(book, options, options.chapters)
    with folders.alone(folders.writable(book.build_folder), "executing"):
        if options.profile == DEFAULT:
            folders.writable(book.chapters_folder)
        executed = execute()
        paths = refresh_twins(book, executed) if options.profile == DEFAULT else executed.values()
    return "\n".join(os.path.relpath(path) for path in paths)


def _execute_apart(book: Book, options: argparse.Namespace) -> None:
    from lrputils.book.execution import run_chapter
    from lrputils.book.notebooks import read_text
    from lrputils.book.parameters import (
        check_inputs,
        checked,
        declared,
        from_command_line,
        load_profile,
    )

    chapters = [book.chapter(name) for name in options.chapters] or book.chapters()
    given = load_profile(book, options.profile)
    if options.out is None:
        raise BookError("-p needs --out DIR: a run with other parameters does not replace twins")
    for chapter in chapters:
        notebook = read_text(chapter.text)
        values = from_command_line(options.given, declared(notebook, chapter.name))
        given[chapter.name] |= checked(notebook, chapter.name, values)
        check_inputs(notebook, chapter.name, given[chapter.name])
    if options.out.resolve() == book.chapters_folder.resolve():
        raise BookError("--out is where the committed twins are; name another folder")
    folders.writable(options.out)
    for chapter in chapters:
        output = options.out / f"{chapter.name}.ipynb"
        failed, progress = output.with_suffix(".failed.ipynb"), not options.quiet
        print(run_chapter(chapter, given[chapter.name], output, failed=failed, progress=progress))


def _build(options: argparse.Namespace) -> Path:
    from lrputils.book import build

    book = Book(find_book().root, options.out)
    execute = _under_profile(book, options, [])
    with folders.alone(folders.writable(book.build_folder), "building"):
        executed = {chapter.name: chapter.notebook for chapter in book.chapters()}
        if not options.no_execute:
            executed = execute()
        source, url = book.build_folder / "source", options.repository_url
        build.assemble(book, executed, source, profile=options.profile, repository=url)
        print("building the pages …", file=sys.stderr)
        return build.build_html(source, book.build_folder.parent, single=options.single)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a letter that a terminal lacks stops nothing
            stream.reconfigure(errors="backslashreplace")
    if (sys.argv[1:] if arguments is None else arguments)[:1] == ["record"]:
        print(f"lrputils: {_RECORD}", file=sys.stderr)
        return 2
    options = _parser().parse_args(arguments)
    try:
        recording.check_numbers(vars(options), "{flag} {value}")
        if said := options.run(options):
            print(said, flush=True)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        if (error.name or "lrputils").startswith("lrputils"):
            raise
        way = "in this repository's folder, pip install -e '.[test]' brings all that it needs"
        print(f"lrputils: {error}; {way}", file=sys.stderr)
        return 1
    except (*_MISTAKES, *_CRASHES) as error:
        said = str(error)
        short = re.search("map segment|out of memory|not enough memory|allocate memory", said)
        if short or isinstance(error, _CRASHES[:2]):
            said = "not enough memory: take shorter or fewer texts, a smaller batch or model"
        elif not isinstance(error, _MISTAKES):
            raise
        print(f"lrputils: {said}", file=sys.stderr)
        if getattr(options, "verbose", False) and (details := getattr(error, "details", "")):
            print(details, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lrputils: interrupted; what had been written before stays as it was")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
