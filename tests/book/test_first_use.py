"""What a newcomer types: the commands and the Python of README and quickstart work as written."""

import ast
import builtins
import re
import shlex

import pytest

import lrputils as lrp
from lrputils.__main__ import APP
from lrputils.book.layout import find_book

ROOT = find_book().root
PAGES = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "chapters/quickstart.md")
}
VERB = re.compile(r"^(?:\.venv/bin/)?(lrputils) (\w+ ?.*)$")
COMMANDS = [
    (page, found[2])
    for page, text in PAGES.items()
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    for line in re.sub(r"\\\n *", "", block).splitlines()
    if (found := VERB.match(line))
]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_is_one(page, command):
    APP.parse_args(shlex.split(command, comments=True), print_error=False, exit_on_error=False)


def test_every_verb_is_shown_to_a_newcomer():
    assert {command.split()[0] for _, command in COMMANDS} >= {
        "explain",
        "audit",
        "evaluate",
        "execute",
        "build",
        "methods",
    }


def test_the_python_of_the_readme_runs(classifier, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load = lrp.load_classifier

    def small(**how):
        return load(**how) if how else classifier

    monkeypatch.setattr("lrputils.load_classifier", small)
    known: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGES["README.md"], re.M | re.S):
        exec(block, known)
    assert (tmp_path / "text.html").is_file()
    assert known["near"].shape == known["loo"].shape


def test_what_quickstart_shows_needs_nothing_that_is_folded():
    cells = re.findall(
        r"^```\{code-cell\} ipython3\n(.*?)^```", PAGES["chapters/quickstart.md"], re.M | re.S
    )
    known = {*dir(builtins)}
    for cell in (cell for cell in cells if "hide-input" not in cell):
        nodes = [*ast.walk(ast.parse(re.sub(r"^:.*\n", "", cell, flags=re.M)))]
        names = [node for node in nodes if isinstance(node, ast.Name)]
        known |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        known |= {alias.asname or alias.name for node in imports for alias in node.names}
        assert {node.id for node in names} <= known
    assert "lrp" in known
    assert lrp.METHODS.keys() >= {"loo"}
