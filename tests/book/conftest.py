"""A book of one short chapter, to execute, break and compare without touching the real one."""

import shutil
from pathlib import Path

import pytest

from lrputils.book.layout import Book

CHAPTER = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# A short chapter

```{code-cell} ipython3
:tags: [parameters]

factor = 2.0  # what one half is multiplied by
count = None  # type: int how many, or None
names = ["a"]  # labels
unused = "x"  # never read below
```

```{code-cell} ipython3
from lrputils.book.values import check_parameters

check_parameters()
print(f"value {factor * 0.5} of {count}, {names}")
```

```{code-cell} ipython3
1 / factor
```
"""


@pytest.fixture
def small_book(tmp_path: Path) -> Book:
    """A book in a folder of its own: one chapter, one profile."""
    root = tmp_path / "book"
    (root / "chapters").mkdir(parents=True)
    (root / "profiles").mkdir()
    (root / "_toc.yml").write_text("format: jb-book\nroot: chapters/01_short\n")
    (root / "chapters/01_short.md").write_text(CHAPTER)
    repository = Path(__file__).parents[2]
    shutil.copy(repository / "chapters/conftest.py", root / "chapters/conftest.py")
    (root / "profiles/offline.yml").write_text("# the defaults\n")
    return Book(root)
