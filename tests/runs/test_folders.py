"""Whole files only, and one process at a time in a folder."""

import os

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


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    real, order = {name: getattr(os, name) for name in ("fsync", "replace")}, []
    for name in real:
        monkeypatch.setattr(os, name, lambda *given, n=name: order.append(n) or real[n](*given))
    with atomic_write(tmp_path / "a.txt") as partial:
        partial.write_text("first")
    assert order == ["fsync", "replace"]
