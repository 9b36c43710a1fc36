"""Finding a folder here or a repository of the Hugging Face hub, with an answer in seconds.

One request says whether the hub can be reached and which commit a revision means; the files then
come from the hub or, without a network, from the local cache. Modules above this one work on a
folder and never wait for a network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any, Literal

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

_PATIENCE = 6.0
_SETTINGS = ["config.json", "adapter_config.json"]
_WEIGHTS = ".safetensors", ".bin"
_SMALL_FILES = ".json", ".txt", ".model"
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?")


def is_path(name: str) -> bool:
    """Say whether `name` is meant as a file or folder rather than as a repository of the hub."""
    if Path(name).expanduser().exists() or not _NAME.fullmatch(name):
        return True
    first = name.split("/")[0]
    return first in ("", ".", "..", "~") or ("/" in name and Path(first).is_dir())


def find(
    name: str,
    *,
    kind: Literal["model", "dataset"],
    wanted: Callable[[Iterable[str]], list[str]],
    parameter: str,
    revision: str | None = None,
    local: bool = False,
) -> tuple[str, Path, str | None]:
    """Return the name of a file, folder or repository, where it is, and a repository's commit.

    The name is a path, or `owner/name` or `owner/name@revision` on the hub; with `local` a path
    alone. Of a repository's file names `wanted` chooses those to download; errors name the caller's
    `parameter`.

    Raises:
        FileNotFoundError: no such path, and no such repository on the hub.
        PermissionError: the repository asks for a log-in.
        ValueError: it has no such revision, or a path was given one.
        ConnectionError: the hub cannot be reached and the cache does not hold the repository.
    """
    if not (local or is_path(name)):
        return _fetched(name, kind, wanted, revision, f"`{parameter}` also takes a local folder")
    path = Path(name).expanduser()
    if revision is not None:
        raise ValueError(f"revision={revision!r} belongs to the hub, but {name!r} is a local path")
    if not path.exists():
        raise FileNotFoundError(
            f"{parameter}={name!r}: there is no such file or folder (looked in {Path.cwd()})"
        )
    return path.resolve().name, path, None


def find_model(
    name: str,
    revision: str | None = None,
    *,
    parameter: str = "name_or_folder",
    settings_alone: bool = False,
) -> tuple[str, Path, str | None]:
    """`find` a model; refuse a PEFT adapter, and a folder without a config.json."""
    wanted = (lambda _: _SETTINGS) if settings_alone else needed
    found = find(name, kind="model", wanted=wanted, parameter=parameter, revision=revision)
    if (found[1] / "adapter_config.json").is_file():
        raise ValueError(
            f"{parameter}={name!r} holds a PEFT adapter: load it with its base model, call "
            f"merge_and_unload(), and save that model and its tokenizer by `save_pretrained`"
        )
    if not (found[1] / "config.json").is_file():
        raise FileNotFoundError(
            f"{parameter}={name!r} holds no config.json: it is not a model folder as "
            f"`save_pretrained` writes it"
        )
    return found


def needed(names: Iterable[str]) -> list[str]:
    """Choose what to download of a model: small files, and the weights in one format."""
    top = [name for name in names if "/" not in name]
    for suffix in _WEIGHTS:
        weights = [name for name in top if name.endswith((suffix, f"{suffix}.index.json"))]
        if weights:
            break
    others = [name for name in top if name.endswith(_SMALL_FILES) and ".index." not in name]
    return sorted({*weights, *others})


def _fetched(
    name: str,
    kind: str,
    wanted: Callable[[Iterable[str]], list[str]],
    revision: str | None,
    instead: str,
) -> tuple[str, Path, str]:
    name, _, pinned = name.partition("@")
    if pinned and revision not in (None, pinned):
        raise ValueError(f"{name}@{pinned} and revision={revision!r} name two revisions: drop one")
    revision = revision or pinned or None
    api = HfApi()
    info = api.model_info if kind == "model" else api.dataset_info
    try:
        found = _within(_PATIENCE, lambda: info(name, revision=revision, timeout=_PATIENCE))
    except GatedRepoError as error:
        raise PermissionError(f"The hub's {kind} {name!r} asks for a log-in; {instead}") from error
    except RevisionNotFoundError as error:
        raise ValueError(f"The hub's {kind} {name!r} has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"{name!r} is neither a folder here nor a public {kind} on the hub; {instead}"
        ) from error
    except Exception as error:  # any error of the transport: the hub did not answer
        folder = _cached(name, kind, revision, f"{type(error).__name__}: {error}", instead)
        return name, folder, folder.name
    files = wanted(entry.rfilename for entry in found.siblings or ())
    folder = snapshot_download(name, repo_type=kind, revision=found.sha, allow_patterns=files)
    return name, Path(folder), found.sha


def _cached(name: str, kind: str, revision: str | None, reason: str, instead: str) -> Path:
    try:
        return Path(
            snapshot_download(name, repo_type=kind, revision=revision, local_files_only=True)
        )
    except LocalEntryNotFoundError:
        raise ConnectionError(
            f"{kind.capitalize()} {name!r} is not a folder here, is not in the local cache, and "
            f"the hub cannot be reached ({reason}); {instead}"
        ) from None


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Run `call`, and give up after `seconds`: name resolution has no time limit of its own."""
    outcome = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=work, daemon=True).start()
    try:
        return outcome.result(seconds)
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None
