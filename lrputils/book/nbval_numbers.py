"""Pytest plugin: nbval compares a chapter's outputs by `lrputils.book.regression`, not bytewise.

A figure has to be there wherever the reference has one; its bytes are not compared.
"""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

from nbval.plugin import IPyNbCell, IPyNbFile

from lrputils.book.execution import KERNEL_ENVIRONMENT
from lrputils.book.regression import default_tolerance, settle, stated_tolerance

_equal_outputs, _start_kernel = IPyNbCell.compare_outputs, IPyNbFile.setup


def _compare_outputs(cell: IPyNbCell, ours: Any, reference: Any, skip_compare=None) -> bool:
    tolerance = stated_tolerance(cell.cell.metadata, default_tolerance(cell.parent.nb))
    settled = settle(ours, reference, tolerance)
    skipped = skip_compare or cell.parent.skip_compare  # nbval would leave out PNG images
    kinds = tuple(kind for kind in skipped if not kind.startswith("image/"))
    return _equal_outputs(cell, settled, reference, kinds)


def _start_as_execute_does(notebook: IPyNbFile) -> None:
    with patch.dict(os.environ, KERNEL_ENVIRONMENT):
        _start_kernel(notebook)


def pytest_configure(config: Any) -> None:
    """Let every notebook run in this environment and compare numbers as numbers."""
    config.option.nbval_current_env = config.option.nbval_kernel_name is None
    IPyNbCell.compare_outputs = _compare_outputs
    IPyNbFile.setup = _start_as_execute_does
