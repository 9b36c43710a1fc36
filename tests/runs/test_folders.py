"""Whole files only, and one process at a time in a folder."""

import pytest

from lrputils.runs.folders import atomic_write


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with atomic_write(path) as partial:
        partial.write_text("first")
    with pytest.raises(TypeError), atomic_write(path) as partial:
        partial.write_text(b"not a text")
    assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]
