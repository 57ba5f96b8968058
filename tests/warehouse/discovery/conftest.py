"""Fixtures of this folder's tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    deltalake = pytest.importorskip("deltalake")
    from table_logs import rows

    folder = tmp_path_factory.mktemp("stored") / "delta"
    for start in (0, 100, 200):
        deltalake.write_deltalake(str(folder), rows(start), mode="append", partition_by=["day", "k"])
    return folder


@pytest.fixture
def delta(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "delta"))


@pytest.fixture
def iceberg(tmp_path: Path) -> Any:
    from table_logs import ice_table

    return ice_table(tmp_path / "iceberg")
