"""The folder of a training: whose it is, and what is kept on the way.

That is in `training/` inside the folder, so that the same call goes on where an earlier one was
killed. At the end `training/` is removed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORK = "training"


def check_free(out: Path) -> Path:
    """Return the folder below `out` for what is kept on the way.

    `out` may be new, empty or hold a training that was interrupted.

    Raises:
        FileExistsError: it holds something else.
    """
    new = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    if not new and not (out / WORK / "recipe.json").is_file():
        what = "a model" if (out / "config.json").is_file() else "something else"
        raise FileExistsError(f"--out {out} already holds {what}: name a new folder")
    return out / WORK


def claim(work: Path, facts: dict[str, Any]) -> None:
    """Write down whose folder this is; refuse one of another recipe or of other texts.

    Raises:
        ValueError: it is another's.
    """
    path, new = work / "recipe.json", json.loads(json.dumps(facts))
    if path.is_file():
        old = json.loads(path.read_text())
        for key in {**old, **new}:
            if old.get(key) != new.get(key):
                raise ValueError(
                    f"--out {work.parent} holds a training with {key} = {old.get(key)}, now it is "
                    f"{new.get(key)}: repeat the old command, or name a new folder"
                )
        return
    work.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(new, indent=1))
    partial.replace(path)


def once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return `folder`, written by `write` unless it is there; it is there only when whole."""
    if not folder.is_dir():
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        partial.replace(folder)
    return folder


def finish(work: Path) -> None:
    """Remove what was kept on the way."""
    os.replace(work, done := work.with_name(f"{WORK}.done"))  # half removed, it would be gone on
    shutil.rmtree(done)
