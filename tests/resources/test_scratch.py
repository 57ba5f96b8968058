"""Scratch folders are private, and apart from each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedline.resources.scratch import make_scratch


def test_scratch_folders_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = {Path(make_scratch()) for _ in range(2)}
    assert folders == set(tmp_path.iterdir())
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
