"""A pytest plugin: tests of `keep.txt` that are gone, or start to skip, fail the session.

The root `conftest.py` names it. It counts where all reports arrive: in the process that was
started, not in xdist's workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEEP = Path(__file__).with_name("keep.txt")


class Kept(NamedTuple):
    """A line of `keep.txt`: how ids begin, and the reason for which they may skip."""

    test: str
    may_skip: str | None = None

    def covers(self, nodeid: str) -> bool:
        """Whether an id is this test, or one of its parameters."""
        return nodeid == self.test or nodeid.startswith(f"{self.test}[")


def kept() -> list[Kept]:
    """Return the keep-list."""
    lines = (line.strip() for line in KEEP.read_text(encoding="utf-8").splitlines())
    return [Kept(*line.split(" | ", 1)) for line in lines if line and not line.startswith("#")]


def complaints(
    keep: Iterable[Kept], ran: Mapping[str, str | None], folders: Iterable[str] = ("",)
) -> list[str]:
    """Say what is wrong with the kept tests of some folders or files.

    `ran` holds each test that was reported: its id → why it was skipped, None if it was not.
    """
    found, folders = [], tuple(folders)
    for one in keep:
        if not one.test.startswith(folders):
            continue
        own = {test: why for test, why in ran.items() if one.covers(test)}
        if not own:
            found.append(f"{one.test} is gone")
        for test, why in own.items():
            if why is not None and (one.may_skip is None or one.may_skip not in why):
                found.append(f"{test} was skipped: {why}")
    return found


class Census:
    """What became of the tests of one session."""

    def __init__(self, folders: list[str]) -> None:
        self.folders = folders
        self.ran: dict[str, str | None] = {}
        self.wrong: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test ran, or why it did not."""
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            self.ran[report.nodeid] = str(getattr(report, "wasxfail", reason))
        elif report.when == "call" or report.failed:
            self.ran.setdefault(report.nodeid, None)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail a session that passed without its kept tests."""
        if session.shouldstop or session.shouldfail or exitstatus not in (0, 1):
            return  # it was cut short, and says so
        self.wrong = complaints(kept(), self.ran, self.folders)
        if self.wrong:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name what is missing."""
        if self.wrong:
            terminalreporter.section("census: tests to keep", red=True)
            for line in self.wrong:
                terminalreporter.line(line, red=True)


def pytest_configure(config: pytest.Config) -> None:
    """Take the census of a session that runs whole files or folders of tests."""
    option = config.option
    chosen = [option.keyword, option.markexpr, option.collectonly, option.deselect, option.ignore]
    chosen += [getattr(option, name, None) for name in ("lf", "failedfirst", "stepwise")]
    if hasattr(config, "workerinput") or any(chosen) or any("::" in arg for arg in config.args):
        return
    asked = [(config.invocation_params.dir / arg).resolve() for arg in config.args]
    folders = [
        "" if path == ROOT else path.relative_to(ROOT).as_posix()
        for path in asked
        if path.is_relative_to(ROOT)
    ]
    if folders:
        config.pluginmanager.register(Census(folders), "census")
