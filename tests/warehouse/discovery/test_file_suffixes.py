"""Which files of a folder are Parquet, and what an error says of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedline.errors import TableNotFoundError
from feedline.warehouse.discovery.hive import discover


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("part-0.parquet.snappy", r"Rename them to end in \.parquet"),
        ("clicks.csv.gz", r"polars\.scan_csv\('clicks\.csv\.gz'\)\.sink_parquet\('clicks\.parquet'\)"),
        ("clicks.ndjson", r"polars\.scan_ndjson\('clicks\.ndjson'\)"),
        ("clicks.orc", r"expected names ending in \.parquet"),
    ],
)
def test_files_that_are_no_parquet_say_what_to_do(name: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(TableNotFoundError, match=rf"got 1 files with other suffixes \({name}\).*{remedy}"):
        discover(str(tmp_path))
