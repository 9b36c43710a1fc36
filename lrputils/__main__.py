"""The command line: `lrputils …` or `python -m lrputils …`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from lrputils.book.layout import DEFAULT, Book, BookError, find_book
from lrputils.runs import options as recording
from lrputils.training import recipe as training

# What the package raises for input that it cannot take; the message names the way out.
_MISTAKES = (ValueError, TypeError, OSError, ImportError)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lrputils",
        description="Execute and build the book, with any parameters, models and texts.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_execute(verbs)
    _add_build(verbs)
    _add_bench(verbs)
    _add_train(verbs)
    recording.add_verb(verbs)
    return parser


def _add_profile(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--profile",
        default=DEFAULT,
        metavar="NAME",
        help="a name from profiles/ or the path of a YAML file (default: %(default)s)",
    )
    verb.add_argument("--force", action="store_true", help="execute also what has not changed")
    verb.add_argument("--quiet", action="store_true", help="no progress bars")
    verb.add_argument("--verbose", action="store_true", help="show a failed cell and its frames")


def _add_execute(verbs: argparse._SubParsersAction) -> None:
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


def _add_build(verbs: argparse._SubParsersAction) -> None:
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
    verb.add_argument("--repository-url", metavar="URL", help="where edit buttons lead")
    _add_profile(verb)
    verb.set_defaults(run=_build)


def _add_bench(verbs: argparse._SubParsersAction) -> None:
    verb = verbs.add_parser(
        "bench",
        help="measure speed, side by side",
        description=(
            "Time each claim against its alternative, in turn, in one process, with the outputs "
            "compared. A ratio below 1 means less time than the alternative."
        ),
    )
    verb.add_argument("--model", metavar="NAME", help="folder or hub name (default: embedded)")
    verb.add_argument(
        "--dataset", default="reviews-long", metavar="NAME", help="texts (default: %(default)s)"
    )
    verb.add_argument("--texts", type=int, default=4, metavar="N", help="texts in the batch")
    verb.add_argument("--repeats", type=int, default=7, metavar="N", help="pairs of runs")
    verb.set_defaults(run=_bench)


def _add_train(verbs: argparse._SubParsersAction) -> None:
    verb = verbs.add_parser(
        "train",
        help="train a text classifier",
        description=training.DESCRIPTION,
        epilog=training.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    training.add_options(verb)
    verb.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    verb.add_argument(
        "--checkpoint-minutes",
        type=float,
        default=2.0,
        metavar="N",
        help="what a killed run loses at most (default: %(default)s)",
    )
    verb.add_argument(
        "--device", choices=("auto", "cpu"), default="auto", help="auto takes a GPU if there is one"
    )
    verb.add_argument("--quiet", action="store_true", help="no progress")
    verb.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> None:
    from lrputils.training.run import train
    from lrputils.training.trainer import Conditions

    conditions = Conditions(options.device, options.checkpoint_minutes, options.quiet)
    print(train(training.recipe_of(options), options.out, conditions))


def _bench(options: argparse.Namespace) -> None:
    from lrputils.study.cost.bench import bench

    recording.check_numbers(options)
    rows = bench(
        options.model, dataset=options.dataset, texts=options.texts, repeats=options.repeats
    )
    print(rows.to_string(float_format="{:.3g}".format))


def _execute(options: argparse.Namespace) -> None:
    from lrputils.book import execution, profiles

    book = find_book()
    chapters = [book.chapter(name) for name in options.chapters] or book.chapters()
    parameters = profiles.load_profile(book, options.profile)
    if options.given or options.out:
        _execute_apart(book, chapters, parameters, options)
        return
    executed = execution.execute_profile(
        book,
        chapters,
        parameters,
        options.profile,
        force=options.force,
        progress=not options.quiet,
    )
    if options.profile == DEFAULT:
        executed = {path.stem: path for path in execution.refresh_twins(book, executed)}
    for path in executed.values():
        print(os.path.relpath(path))


def _execute_apart(book: Book, chapters: list, parameters: dict, options) -> None:
    from lrputils.book.beforehand import check_folder, check_inputs
    from lrputils.book.execution import run_chapter
    from lrputils.book.pairing import read_text
    from lrputils.book.parameters import checked, declared, from_command_line

    if options.out is None:
        raise BookError("-p needs --out DIR: a run with other parameters does not replace twins")
    given = {}
    for chapter in chapters:
        notebook = read_text(chapter.text)
        values = from_command_line(options.given, declared(notebook, chapter.name))
        values = checked(notebook, chapter.name, values)
        given[chapter.name] = parameters[chapter.name] | values
        check_inputs(notebook, chapter.name, given[chapter.name])
    check_folder(options.out, book)
    for chapter in chapters:
        output = options.out / f"{chapter.name}.ipynb"
        failed = output.with_suffix(".failed.ipynb")
        progress = not options.quiet
        run_chapter(chapter, given[chapter.name], output, failed=failed, progress=progress)
        print(output)


def _build(options: argparse.Namespace) -> None:
    from lrputils.book import build, execution, profiles

    book = find_book()
    chapters = book.chapters()
    if options.no_execute:
        executed = {chapter.name: chapter.notebook for chapter in chapters}
    else:
        executed = execution.execute_profile(
            book,
            chapters,
            profiles.load_profile(book, options.profile),
            options.profile,
            force=options.force,
            progress=not options.quiet,
        )
    source = book.build_folder / "source"
    build.assemble(
        book, executed, source, profile=options.profile, repository=options.repository_url
    )
    print("building the pages …", file=sys.stderr)
    print(build.build_html(source, book.root))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except ModuleNotFoundError as error:
        if (error.name or "lrputils").startswith("lrputils"):
            raise
        way = "in this repository's folder, pip install -e '.[test]' brings all that it needs"
        print(f"lrputils: {error}; {way}", file=sys.stderr)
        return 1
    except _MISTAKES as error:
        print(f"lrputils: {error}", file=sys.stderr)
        if getattr(options, "verbose", False) and (details := getattr(error, "details", "")):
            print(details, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lrputils: interrupted; what had been written before stays as it was")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
