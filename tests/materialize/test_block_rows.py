"""The rows of a block come in plan order, without deduplicated groups, and with all values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Pipeline
from feedline.materialize.output_folder import NumberedBlock, finished_rows


def test_groups_are_expanded_and_rows_stay_in_order(tmp_path: Path):
    user = np.repeat(np.arange(100), 5)
    table = pa.table({"row": np.arange(500), "user": user, "ids": [[each, each + 1] for each in user.tolist()]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=130)
    own = Pipeline.from_dict(
        {
            "version": 1,
            "name": "small",
            "work_dir": str(tmp_path / "work"),
            "source": {"table": str(tmp_path / "t.parquet")},
            "features": {"dense": {"user": []}, "categorical": {"row": []}, "sparse": {"ids": []}},
            "dedup": {"person": {"columns": ["user", "ids"]}},
            "batch": {"size": 50},
            "shuffle": {"rows": False},
        }
    )
    plan = own.complete_plan()
    [block] = plan.source.schedule(0).blocks(0, everything=True)
    job = replace(plan.source.job, by=None)
    parts, quality = finished_rows(job, NumberedBlock(0, replace(plan.request(block, 0), permutation=None)))
    assert quality.rows == 500
    assert np.concatenate([rows.categorical[0] for rows in parts]).tolist() == list(range(500))
    assert np.concatenate([rows.dense[:, 0] for rows in parts]).tolist() == user.tolist()
    values = np.concatenate([rows.values[0] for rows in parts])
    assert values.reshape(500, 2).tolist() == table["ids"].to_pylist()
    assert not any(rows.groups for rows in parts)
