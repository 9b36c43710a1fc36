"""The table of run statistics: what executing each chapter took, for a page of the book."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lrputils.book.pairing import read_notebook


def run_statistics(executed: Mapping[str, Path]) -> str:
    """Return, in Markdown, seconds, peak memory and profile of each chapter that was executed."""
    lines = []
    for name, path in executed.items():
        run = read_notebook(path).metadata.get("lrputils", {})
        if run.get("seconds") is not None:
            memory = f"{run['megabytes']:,.0f}" if "megabytes" in run else "not measured"
            lines.append(
                f"| {{doc}}`{name}` | {run['seconds']:.0f} | {memory} | {run['profile']} |"
            )
    if not lines:
        return "These pages were built from the committed notebooks, without executing any.\n"
    head = ["| chapter | seconds | peak memory (MB) | profile |", "| --- | --: | --: | --- |"]
    return "\n".join([*head, *lines, ""])
