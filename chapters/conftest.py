"""`pytest --nbval` compares text and integers exactly, floats nearly, and misses no figure."""

from lrputils.book.regression import pytest_configure  # noqa: F401  (pytest looks for it here)
