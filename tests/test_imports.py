"""Files import one way; what is imported is declared, and nothing heavy before it is needed."""

import ast
import hashlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import numpy as np
import pytest
import yaml
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


def test_no_files_import_each_other_in_a_circle():
    graph = grimp.build_graph("lrputils", cache_dir=None)
    files = sorted(graph.modules)
    pairs = [
        (files.index(file), files.index(other))
        for file in files
        for other in graph.find_modules_directly_imported_by(file)
    ]
    edges = coo_array((np.ones(len(pairs)), tuple(zip(*pairs, strict=True))), (len(files),) * 2)
    _, groups = connected_components(edges, connection="strong")
    circles = [np.array(files)[groups == group].tolist() for group in np.unique(groups)]
    assert [circle for circle in circles if len(circle) > 1] == []


ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL = PROJECT["optional-dependencies"]


def imported(file, *, when_loaded):
    """The packages that a file imports, all of them or those that it imports when it is loaded."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body if when_loaded else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


def plain(name):
    return name.lower().replace("_", "-")


def undeclared(files, declared, *, when_loaded):
    names = {plain(re.match(r"[\w-]+", one)[0]) for one in declared}
    found = {name for file in files for name in imported(file, when_loaded=when_loaded)}
    found -= {*sys.stdlib_module_names, "lrputils"}
    of = packages_distributions()
    # What is not installed here, as the libraries that are timed, goes by its own name.
    return {one for one in found if not {*map(plain, of.get(one, [one]))} & names}


def test_what_is_imported_is_declared():
    files = [*(ROOT / "lrputils").rglob("*.py")]
    installed = [file for file in files if "book" not in file.relative_to(ROOT).parts]
    assert not undeclared(installed, PROJECT["dependencies"], when_loaded=True)
    everything = [*PROJECT["dependencies"], *(one for extra in OPTIONAL.values() for one in extra)]
    assert not undeclared(files, everything, when_loaded=False)
    assert undeclared(files, ["torch"], when_loaded=True) >= {"markupsafe"}


def test_what_is_installed_is_pinned_and_what_is_carried_is_as_it_was_published():
    declared = [*PROJECT["dependencies"], *OPTIONAL["book"], *OPTIONAL["test"]]
    names = {plain(re.match(r"[\w-]+", one)[0]) for one in declared} - {"lrputils"}
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "requirements.txt").read_text(), re.M)
    assert names <= set(map(plain, pinned))
    sums = (ROOT / ".ci/vendored.sha256").read_text()
    for digest, place in re.findall(r"^(\w{64})  (.+)$", sums, re.M):
        assert hashlib.sha256((ROOT / place).read_bytes()).hexdigest() == digest
    scripts = {*ROOT.glob("vendor/**/*.js"), *ROOT.glob("tests/**/*.min.js")}
    assert all(str(script.relative_to(ROOT)) in sums for script in scripts)


def test_workflows_run_pinned_actions_and_only_what_publishes_may_write():
    for path in ROOT.glob(".github/workflows/*.yml"):
        jobs = yaml.safe_load(path.read_text())
        assert jobs["permissions"] == {"contents": "read"}
        uses = [
            step["uses"] for job in jobs["jobs"].values() for step in job["steps"] if "uses" in step
        ]
        assert all(re.search(r"@[0-9a-f]{40}$", action) for action in uses)
        assert {name for name, job in jobs["jobs"].items() if "permissions" in job} <= {"deploy"}


def test_the_licences_of_what_is_carried_are_told():
    cards = [
        *ROOT.glob("lrputils/assets/*/README.md"),
        *ROOT.glob("experiments/assets/*/README.md"),
    ]
    told = [re.search(r"licen[cs]e\W+(mit|cc-by-4\.0)\b", card.read_text(), re.I) for card in cards]
    assert sorted({found[1].upper() for found in told}) == ["CC-BY-4.0", "MIT"]
    assert PROJECT["license"] == "MIT AND CC-BY-4.0"
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    for place in (
        "lrputils/assets/reviews/",
        "experiments/assets/questions/",
        "vendor/mathjax/",
        "tests/book/axe/",
    ):
        assert place in licence


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["lrputils", "lrputils.__main__", "lrputils.book.execution"])
def test_what_needs_no_torch_imports_none(module):
    """Each chapter is executed by a process of its own beside its kernel."""
    assert run(f"import sys, {module}; print('torch' in sys.modules)") == "False"


def test_torchvision_and_a_model_import_after_the_package():
    """In the process of the tests: `conftest.py` imports the package before either."""
    import torchvision  # noqa: F401
    from transformers import BertForSequenceClassification, ViTForImageClassification  # noqa: F401

    assert "_BeforeTorchvision" not in {type(finder).__name__ for finder in sys.meta_path}
