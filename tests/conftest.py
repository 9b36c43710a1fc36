"""Shared fixtures: where real data and models are, if they are."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples each time, on a machine of any speed.
settings.register_profile("book", derandomize=True, deadline=None)
settings.load_profile("book")

# Before torch is imported, which a process that only shares the tests out never does: workers of a
# parallel test run would fight for the cores.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import lrputils  # noqa: E402  (before transformers: it keeps torchvision importable)

_BESIDE = Path(__file__).resolve().parents[2] / "shared"


def _folder(variable: str, name: str) -> Path:
    """The folder that an environment variable names, or the one beside the repository."""
    stated = os.environ.get(variable)
    folder = Path(stated) if stated else _BESIDE / name
    if not folder.is_dir():
        pytest.skip(f"real {name} are not at hand: set {variable} to their folder")
    return folder


# Files and chapters that take longest, first: two processes that share them then end together.
_LONGEST = (
    "tests/book/test_own_run.py",
    "tests/book/test_pages.py",
    "chapters/08_yardstick.ipynb",
    "chapters/07_remedy.ipynb",
    "chapters/04_imdb.ipynb",
    "chapters/06_specifications.ipynb",
    "chapters/02_linear_attention.ipynb",
    "tests/runs/test_datasets.py",
    "chapters/03_sst.ipynb",
    "chapters/12_language_models.ipynb",
    "tests/book/test_command_line.py",
    "tests/report/test_audit.py",
    "tests/book/test_regression.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files; `--no-loadscope-reorder` keeps that order among processes."""
    root = Path(__file__).parents[1]
    places = {root / name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder with `sst2/validation.parquet`, `imdb/test.parquet`, `mnist/…`."""
    return _folder("LRPUTILS_TEST_DATA", "data")


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """Folder with the fine-tuned classifiers `minilm-sst2` and `minilm-imdb`."""
    return _folder("LRPUTILS_TEST_MODELS", "models")


@pytest.fixture(scope="session")
def browser():
    """A running Chromium, where one is installed."""
    from tests.book.browser import EXECUTABLE, Browser

    if EXECUTABLE is None:
        pytest.skip("no Chromium is installed")
    with Browser() as running:
        yield running


@pytest.fixture(scope="session")
def clf():
    """The package's own classifier, on this machine's processor."""
    return lrputils.load_classifier(device="cpu")


@pytest.fixture(scope="session")
def classifier():
    """A small untrained one of two layers, the same bits on every machine."""
    from tests import tiny

    return tiny.classifier()


@pytest.fixture
def no_hub(monkeypatch, tmp_path):
    """The hub cannot be reached, and nothing of it is on this machine."""
    import huggingface_hub

    def unreachable(*_, **__):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
