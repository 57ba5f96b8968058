"""The table and the pipeline of the tests of golden vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from recorded_vectors import ROWS

    folder = tmp_path_factory.mktemp("t")
    for part in range(3):
        pq.write_table(ROWS.slice(80 * part, 80), folder / f"{part}.parquet", row_group_size=30)
    return folder


@pytest.fixture
def path(tmp_path: Path, table: Path) -> Path:
    from recorded_vectors import written

    return written(tmp_path, table)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "work" / "artifacts")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, table: Path) -> Any:
    from recorded_vectors import recorded, written

    return recorded(written(tmp_path_factory.mktemp("m"), table))[2]
