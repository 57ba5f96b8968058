"""Two paths are exchanged at once, or nothing is changed."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from feedline.warehouse.storage.whole_file import exchange


def test_two_folders_are_exchanged_or_nothing_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tmp_path / "one", tmp_path / "zwei ü"
    for folder in (one, other):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    assert exchange(str(one), str(other))
    assert [(folder / "file").read_text() for folder in (one, other)] == [other.name, one.name]
    assert not exchange(str(one), str(tmp_path / "none"))
    assert not exchange(str(tmp_path), str(one))
    refusing = SimpleNamespace(renameat2=lambda *_: -1)
    for library in (refusing, SimpleNamespace()):
        monkeypatch.setattr(ctypes, "CDLL", lambda _, library=library: library)
        assert not exchange(str(one), str(other))
    monkeypatch.setattr("sys.platform", "darwin")
    assert not exchange(str(one), str(other))
    assert [(folder / "file").read_text() for folder in (one, other)] == [other.name, one.name]
