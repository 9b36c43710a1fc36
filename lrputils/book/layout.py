"""Where the book's parts are: its root, its chapters and their twins, its profiles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import lrputils

DEFAULT = "offline"  # the profile whose values the chapters themselves state


class BookError(ValueError):
    """A mistake that the user can correct; the message names the place and the way out."""


@dataclass(frozen=True)
class Execution:
    """How chapters are executed.

    Attributes:
        profile: a name from profiles/ or the path of a YAML file
        force: execute also what has not changed
        processes: chapters at once (default: 2, of two cores)
        quiet: no progress
    """

    profile: str = DEFAULT
    force: bool = False
    processes: int | None = None
    quiet: bool = False


@dataclass(frozen=True)
class Book:
    """The repository seen as a book.

    Attributes:
        root: the repository.
        out: where `_build` goes; the repository, if not given.
    """

    root: Path
    out: Path | None = None

    @property
    def build_folder(self) -> Path:
        """Everything generated and not committed."""
        return (self.out or self.root) / "_build"

    def chapters(self) -> dict[str, Path]:
        """Return the texts of what is executed, by name, in reading order: front, chapters, claims.

        A text is the truth, and its twin, the notebook executed from it, lies beside it.
        """
        numbered = sorted(path.stem for path in self.root.glob("chapters/[0-9][0-9]*_*.md"))
        names = ("intro", "quickstart", *numbered, "claims")
        texts = {name: self.root / f"chapters/{name}.md" for name in names}
        return {name: text for name, text in texts.items() if text.is_file()}

    def chapter(self, name: str) -> Path:
        """Return the text of this name, number or file; refuse others, with a list of all."""
        wanted = Path(name).stem if name.endswith((".md", ".ipynb")) else name
        for known, text in self.chapters().items():
            number = known.split("_")[0]
            if wanted in (known, number, number.lstrip("0")):
                return text
        raise BookError(f"no chapter {name!r}; the chapters are: {', '.join(self.chapters())}")


def find_book(start: Path | None = None) -> Book:
    """Return the book that contains `start` (default: the working directory).

    Outside of any book, the one that the package was installed from in editable mode is taken.

    Raises:
        BookError: neither is there.
    """
    start = (start or Path.cwd()).resolve()
    beside_package = Path(lrputils.__file__).resolve().parent.parent
    for folder in (start, *start.parents, beside_package):
        if (folder / "_toc.yml").is_file() and (folder / "chapters").is_dir():
            return Book(folder)
    raise BookError(
        f"no book found in {start} or above it: run this inside a clone of the book's repository"
    )
