"""Fixtures of this folder's tests."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from generated_tables import DAYS, ROWS, files, generate, read


@pytest.fixture(scope="module", params=[True, False], ids=["clustered", "log"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bool, Path, pa.Table]:
    """(clustered, folder, the whole table in file order); the report agrees with it."""
    folder = tmp_path_factory.mktemp("clicks") / "table"
    report = generate(folder, clustered=request.param)
    rows = read(folder)
    assert (report.uri, report.rows, report.days, report.files) == (str(folder), ROWS, DAYS, 6)
    assert report.bytes == sum(file.stat().st_size for file in files(folder))
    assert report.row_groups == sum(pq.read_metadata(file).num_row_groups for file in files(folder))
    assert report.sessions == pc.count_distinct(rows.column("session_id")).as_py()
    assert report.clicks == pc.sum(rows.column("clicked")).as_py()
    return request.param, folder, rows
