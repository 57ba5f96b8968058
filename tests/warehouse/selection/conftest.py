"""Fixtures of this folder's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from warehouse_samples import write

from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot


@pytest.fixture
def ladder(tmp_path: Path) -> Snapshot:
    """Two days of one file of 10 row groups of 10 rows each; x counts up, y repeats 0..9."""
    x = np.arange(100)
    table = pa.table({"x": x, "y": x % 10, "z": x / 7, "s": [str(i) for i in x]})
    return take_snapshot(
        write(tmp_path / "t", {f"ds=2026-01-0{d}/f.parquet": table for d in (1, 2)}, row_group_size=10)
    )
