"""How a pass over a table is divided into tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.fitting.fit_tasks import fit_tasks


@pytest.mark.parametrize("threads", [1, 4])
def test_tasks_hold_every_row_group_once_in_table_order(tmp_path: Path, threads: int):
    table = tmp_path / "table"
    table.mkdir()
    for part in range(3):
        rows = pa.table({"v": np.arange(200_000) + 200_000 * part})
        pq.write_table(rows, table / f"{part}.parquet", row_group_size=50_000)
    pipeline = Pipeline.from_dict(
        {
            "version": 1,
            "name": "p",
            "work_dir": str(tmp_path / "work"),
            "source": {"table": str(table)},
            "batch": {"size": 8},
            "features": {"dense": {"v": [{"cast": "float32"}]}},
        }
    )
    plan = pipeline.plan()
    tasks = fit_tasks(plan.source.snapshot, plan.source.selection, threads)
    found = [(fragment.path, group) for task in tasks for fragment in task for group in fragment.row_groups]
    assert found == [(f"{part}.parquet", group) for part in range(3) for group in range(4)]
    rows = [sum(sum(fragment.expected) for fragment in task) for task in tasks]
    assert sum(rows) == 600_000
    assert max(rows) < 131_072 + 50_000, "a task ends with the row group that reaches its rows"
    assert len(tasks) == 5
