"""Pytest hook: nbval compares a chapter's outputs by `lrputils.book.regression`, not bytewise."""

from __future__ import annotations

import os
from typing import Any

from nbval.plugin import IPyNbCell

from lrputils.book.execution import KERNEL_ENVIRONMENT
from lrputils.book.regression import settle, stated_tolerance

_equal_outputs = IPyNbCell.compare_outputs


def _compare_outputs(cell: IPyNbCell, ours: Any, reference: Any, skip_compare=None) -> bool:
    settled = settle(ours, reference, stated_tolerance(cell.cell.metadata))
    return _equal_outputs(cell, settled, reference, skip_compare)


def install() -> None:
    """Let every notebook cell that nbval collects compare numbers as numbers."""
    os.environ.update(KERNEL_ENVIRONMENT)
    IPyNbCell.compare_outputs = _compare_outputs
