"""The command line: `lrputils …` or `python -m lrputils …`. A verb is a function below."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from lrputils import __version__
from lrputils.book.layout import DEFAULT, Book, BookError, Execution, find_book
from lrputils.mistakes import about
from lrputils.progress import say, spell_out
from lrputils.runs.folders import RUN, writable
from lrputils.runs.options import FIELDS, Names, Words, application, call
from lrputils.runs.settings import Chosen, Drawn, Explained, Settings

_LONG = 2_000  # characters of a text that takes longer than a look
_MINUTE = 60  # seconds after which sentences are proposed
# What the package raises for input that it cannot take; the message names the way out.
_MISTAKES = (ValueError, TypeError, OSError, ImportError)
_SHORT = re.compile("map segment|out of memory|not enough memory|allocate memory")
_CRASHES = (MemoryError, SystemError, RuntimeError)  # what a lack of memory raises, besides

_PLAIN = (
    "lrputils: the text is read as it stands, without the model's chat template. A chat is JSON, "
    """'[{"role": "user", "content": "…"}]'; --template makes the model a classifier"""
)
_LOADING = "loading {} …"
_OWN = "the book's own model"
_NOTHING = "there is no text: give one in quotation marks, or - to read it from standard input"
_NOWHERE = "--out DIR says where the rows go; --dry-run needs none"


def explain(
    text: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    second: str | None = None,
    model: str | None = None,
    methods: Names = ("loo", "attnlrp"),
    target: str | None = None,
    units: str = "token",
    max_length: int | None = None,
    answer: str | None = None,
    removal: str = "attention-mask",
    device: str = "auto",
    template: str | None = None,
    verbalizers: str | None = None,
    dry_run: bool = False,
    out: Annotated[Path | None, Parameter(name=["--out", "--html"])] = None,
) -> Any:
    """Explain what a classifier makes of one text, or what a language model says to it.

    Show the words of a text in the colours of one or more attribution methods, with the prediction
    and how far each map tracks exact Leave-One-Out on this text:

        lrputils explain 'a film that is never dull' --out film.html

    Args:
        text: the text, or JSON of a chat's messages; - reads it from standard input
        second: the second text of a pair
        model: folder or hub name (default: embedded)
        methods: see lrputils.METHODS; with options: mask-gradient:groups=2
        target: number or label (default: the predicted)
        units: what is removed and scored: token, word, sentence or message; of a long text
            sentence,word: the words of the three sentences that LOO puts first
        max_length: explain the first N tokens
        answer: what a language model says, to be explained; own, to a chat the default:
            what it says itself
        removal: how LOO removes: attention-mask, delete, mask, pad, unk or zero
        device: auto (a GPU if there is one), cpu, cuda:1
        template: a prompt with {text}, by which a language model is a classifier
        verbalizers: the classes in such a model's own words, a token each, as ' bad, good'
        dry_run: say what it will take, and explain nothing
        out: write this file, .html, .svg or .png, instead
    """
    text = sys.stdin.read() if text == "-" else text
    if not text.strip():
        raise ValueError(_NOTHING)
    say(_LOADING.format(model or _OWN))
    from lrputils.attribution import METHODS
    from lrputils.data.given import as_chat
    from lrputils.model.classifier import load_classifier
    from lrputils.model.units import check_units
    from lrputils.report.explain import NARROWED
    from lrputils.report.explain import explain as explain_text
    from lrputils.report.heatmap import check_place

    for text_of in methods:  # a wrong one is refused before a model is loaded
        METHODS.setting(text_of)
    if units != NARROWED:
        check_units(units)
    if out:
        check_place(out)
    with suppress(UnicodeError):  # in locale C, UTF-8 arrives as bytes in disguise
        text = os.fsencode(text).decode()
    classifier = load_classifier(model, device=device, template=template, verbalizers=verbalizers)
    prompt = as_chat(text) if second is None else (text, second)
    chats = classifier.architecture.language_model and classifier.tokenizer.chat_template
    if chats and isinstance(prompt, str):
        print(_PLAIN, file=sys.stderr)
    asked = prompt, methods, units, max_length, target
    if dry_run:
        if chats:
            raise ValueError("--dry-run is of a classifier's text: an answer's cost depends on it")
        return _expected(classifier, *asked)
    if not chats and len(text) > _LONG:
        with suppress(ValueError):  # of a text that is too long, which is refused below
            print(_expected(classifier, *asked), file=sys.stderr)
    shown = explain_text(
        classifier,
        prompt,
        methods,
        target=target,
        units=units,
        max_length=max_length,
        answer=answer,
        removal=removal,
    )
    return shown.save(out) if out else shown


def _expected(
    classifier: Any,
    text: Any,
    methods: Sequence[str],
    units: str,
    max_length: int | None,
    target: str | None,
) -> Any:
    """Return what explaining one text takes; if that is minutes, also by sentences."""
    from lrputils.report.explain import NARROWED
    from lrputils.study.cost import forecast

    others = [name for name in methods if name != "loo"]
    how = {"max_length": max_length, "truncate": max_length is not None, "batch_size": 1}
    how["target"] = target
    first = "sentence" if units == NARROWED else units
    found = forecast(classifier, [text], others, units=first, **how)
    if units in ("token", "word") and found.total > _MINUTE:
        fewer = forecast(classifier, [text], others, units="sentence", **how)
        way = f"--units sentence (--units {NARROWED} adds the words of three)"
        found = replace(found, shorter={**found.shorter, way: fewer.total})
    return found


def execute(
    *chapters: str,
    how: Annotated[Execution, FIELDS] = Execution(),  # noqa: B008  (frozen)
    p: Annotated[Sequence[str], Parameter(name="-p")] = (),
    out: Path | None = None,
) -> str:
    """Execute chapters.

    Execute chapters (all, if none is named) in fresh kernels. Under the default profile and without
    -p the executed notebooks replace the twins beside the chapters' texts, once all cells ran;
    otherwise they go to --out, and the twins are left alone:

        lrputils execute 03_sst -p model=DIR -p dataset=FILE --out run

    Args:
        chapters: e.g. 03_sst, or 3
        p: NAME=VALUE, a parameter of the chapters; may be repeated
        out: the folder of the notebooks
    """
    from lrputils.book import execution, parameters

    book = find_book()
    if p and out is None:
        raise BookError("-p needs --out DIR: a run with other parameters does not replace twins")
    if out and out.resolve() == (book.root / "chapters").resolve():
        raise BookError("--out is where the committed twins are; name another folder")
    given = parameters.load_parameters(book, how.profile, chapters, p)
    twins = out is None and how.profile == DEFAULT
    if twins:
        writable(book.root / "chapters")
    executed = execution.execute(book, given, how, out)
    paths = execution.refresh_twins(book, executed) if twins else executed.values()
    return "\n".join(os.path.relpath(path) for path in paths)


def build(
    *,
    how: Annotated[Execution, FIELDS] = Execution(),  # noqa: B008  (frozen)
    no_execute: bool = False,
    single: bool = False,
    repository_url: str | None = None,
    out: Path | None = None,
) -> Path:
    """Build the book's pages.

    Execute what has changed under a profile and build _build/html/index.html. The committed twins
    are left alone.

    Args:
        no_execute: build from the committed twins as they are
        single: one page of everything, to print or to save as PDF
        repository_url: where edit buttons lead
        out: build in DIR/_build instead
    """
    from lrputils.book import build, execution, parameters

    book = Book(find_book().root, out)
    given = parameters.load_parameters(book, how.profile)
    twins = {name: text.with_suffix(".ipynb") for name, text in book.chapters().items()}
    executed = twins if no_execute else execution.execute(book, given, how)
    source = writable(book.build_folder) / "source"
    build.assemble(book, executed, source, profile=how.profile, repository=repository_url)
    print("building the pages …", file=sys.stderr)
    return build.build_html(source, book.build_folder.parent, single=single)


def audit(
    *,
    chosen: Annotated[Drawn, FIELDS] = Drawn(),  # noqa: B008  (frozen)
    explained: Annotated[Explained | None, FIELDS] = None,
    curves: int | None = None,
    dry_run: bool = False,
    out: Path | None = None,
    quiet: bool = False,
    command: Words = "",
) -> Any:
    """Does LRP track leave-one-out on a model and texts? One HTML page.

    Compare AttnLRP, CP-LRP and other methods with exact leave-one-out on some texts (200, drawn by
    seed 0, if --limit and --seed say nothing else), and write DIR/audit.html: the verdict with
    intervals, which method at which cost, the texts where they disagree, checks of the rules,
    layers, conventions, cost and origin. Of a model without rules gradients are judged in LRP's
    place. What was killed goes on by the same command; when all is there, it writes the page again:

        lrputils audit --model DIR --dataset reviews.csv --out my-audit

    Maps of other tools are judged beside, as --scores captum.parquet.

    Args:
        curves: also remove N tokens at once along every map, for the column Δ; layers are
            then left out
        dry_run: say what it will take, and write nothing
        out: where all goes
        quiet: no progress
    """
    if out is None and not dry_run:
        raise ValueError(_NOWHERE)
    say(_LOADING.format(chosen.model or _OWN), quiet)
    from lrputils.data.texts import stream_texts

    classifier, texts = chosen.load()
    from lrputils.report import audit as auditing
    from lrputils.report.audit_answers import FEWEST
    from lrputils.report.audit_plan import variants
    from lrputils.runs.datasets import forecast_dataset

    asked = Settings(methods=(), **vars(explained or Explained()), curves=curves)
    there = out is not None and (out / RUN).is_file()
    if dry_run or not (quiet or there):
        others = variants(classifier, asked)
        how = {"variants": others, "parameters": chosen.of_texts}
        foreseen = forecast_dataset(classifier, texts, out, asked, **how)
        told = str(foreseen)
        if not there and foreseen.texts < FEWEST:
            told += f"\nanswer  none: {FEWEST} texts are the least that decide"
        if dry_run:
            return told
        print(told, file=sys.stderr)
    plain = chosen.of_texts["answers"] is None and classifier.architecture.language_model
    if plain and classifier.tokenizer.chat_template:
        print(_PLAIN, file=sys.stderr)
    whole = stream_texts(chosen.dataset, **(chosen.of_texts | {"limit": None, "seed": None}))
    return auditing.write_audit(
        classifier,
        texts,
        out,
        asked,
        whole=replace(whole, each=texts.each),
        command=command,
        parameters=chosen.of_texts,
        quiet=quiet,
    )


def evaluate(
    *,
    chosen: Annotated[Chosen, FIELDS] = Chosen(),  # noqa: B008  (frozen)
    settings: Annotated[Settings | None, FIELDS] = None,
    engine: Literal["here", "ray"] = "here",
    address: str | None = None,
    dry_run: bool = False,
    out: Path | None = None,
    quiet: bool = False,
    command: Words = "",
) -> Any:
    """Measure methods on a data set of any size.

    Measure methods on every text of a data set, against exact leave-one-out. DIR/rows is a folder
    of Parquet files with a row per text and method: correlations (r, spearman), the prediction, and
    the map itself (scores, pieces: the tokens). DIR/run.json says what was measured, and by what.

    Texts are read as they are needed; their number does not matter. The same command goes on after
    a kill; one that asks for more adds methods, or texts by a higher --limit. Ray shares the work,
    over the cores or GPUs of this machine, or of a cluster, and the rows are the same:

        lrputils evaluate --engine ray --address auto --dataset D --out DIR

    Args:
        engine: who measures: this process, or workers of ray
        address: of ray's cluster, auto or ray://…; without one it is started here
        dry_run: say what is missing will take, and write nothing
        out: where the rows go
        quiet: no progress
    """
    if out is None and not dry_run:
        raise ValueError(_NOWHERE)
    if address and engine != "ray":
        raise ValueError(about("address", address) + " is of a cluster: add --engine ray")
    say(_LOADING.format(chosen.model or _OWN), quiet)
    cluster = None
    if engine == "ray":
        from lrputils.runs.cluster import Ray

        cluster = Ray(chosen.model, chosen.device, address)
    classifier, texts = chosen.load()
    from lrputils.runs.datasets import evaluate_dataset, forecast_dataset

    how = {"parameters": chosen.of_texts, "engine": cluster}
    if dry_run:
        return forecast_dataset(classifier, texts, out, settings, **how)
    return evaluate_dataset(classifier, texts, out, settings, command=command, quiet=quiet, **how)


def check(*, model: str | None = None, device: str = "auto") -> Any:
    """Prove the propagation rules on a model.

    Prove the rules of LRP on a model: print its operations and their rules, and how far CP-LRP's
    relevance is from the logit, without constants, at the words and at each layer.

    Args:
        model: a folder, a name on the hub, or nothing for the package's own
        device: auto, cpu, cuda, …
    """
    say(_LOADING.format(model or _OWN))
    from lrputils.model.classifier import load_classifier
    from lrputils.propagation.conservation import check as proved

    return proved(load_classifier(model, device=device))


def methods() -> Any:
    """List the methods.

    List the methods: name, label, price in passes, which models each takes, and what it is.
    """
    from lrputils.attribution import METHODS

    return METHODS


APP = application(
    "lrputils",
    help="Explain texts; execute and build the book, with any models and texts.",
    version=f"lrputils {__version__}",
)
for verb in (explain, execute, build, audit, evaluate, check, methods):
    APP.command(verb)


def _without_controls(text: str) -> str:
    """Return a text with the characters written out that would rearrange a terminal's others."""
    return "".join(c if c.isprintable() or c.isspace() else f"⟨{ord(c):04X}⟩" for c in text)


def _tell(message: Warning, *_: Any, **__: Any) -> None:
    """Print a warning as a sentence, without the line of the package that gave it."""
    print(f"lrputils: {_without_controls(str(message))}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    spell_out()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _tell
            said = call(APP, sys.argv[1:] if arguments is None else arguments)
        if said:
            print(said, flush=True)
    except BrokenPipeError:  # whoever read it has left, as `head -1` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (*_MISTAKES, *_CRASHES) as error:
        said = str(error)
        if isinstance(error, _CRASHES[:2]) or _SHORT.search(said):
            said = "not enough memory: take shorter or fewer texts, a smaller batch or model"
        elif isinstance(error, ModuleNotFoundError):
            said += "; in this repository's folder, pip install -e '.[test]' brings all it needs"
        elif not isinstance(error, _MISTAKES):
            raise
        print(f"lrputils: {_without_controls(said)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lrputils: interrupted; what had been written before stays as it was")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
