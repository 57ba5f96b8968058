"""Scalar ids under `sparse` are lists of at most one, as torchrec's users expect of tables such as Criteo's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline

ROWS = 400
SESSION = np.arange(ROWS) // 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(4)
    ids = [None if number % 4 == 0 else int(number) for number in rng.integers(1, 90, ROWS // 10)]
    columns = {
        "session": SESSION,
        "user": pa.array([ids[session] for session in SESSION], pa.int32()),
        "site": pa.array([None if row % 7 == 0 else f"s{row % 30}" for row in range(ROWS)]),
        "price": pa.array([None if row % 9 == 0 else row / 8 for row in range(ROWS)], pa.float64()),
        "y": np.arange(ROWS) % 2,
    }
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "t" / "a.parquet", row_group_size=150)
    return tmp_path


def batches(folder: Path, **changes: Any) -> list[Any]:
    pipeline = {
        "version": 1,
        "name": "scalars",
        "source": {"table": str(folder / "t")},
        "work_dir": str(folder / "work"),
        "features": {
            "sparse": {"user": [], "site": [{"hash_bucket": 1000}], "price": []},
            "categorical": {"site_id": {"column": "site", "ops": [{"fill_null": ""}, {"hash_bucket": 1000}]}},
            "label": {"y": []},
        },
        "batch": {"size": 64, "tail": "partial"},
        "shuffle": "off",
        **changes,
    }
    return list(Pipeline.from_dict(pipeline).batches())


def test_a_null_is_a_list_of_none(folder: Path):
    rows = pq.read_table(folder / "t" / "a.parquet").to_pylist()
    for batch in batches(folder):
        here = rows[batch.step * 64 :][: batch.rows]
        for name in ("user", "price"):
            feature = batch.sparse[name]
            assert feature.lengths.tolist() == [int(row[name] is not None) for row in here]
            assert feature.values.tolist() == [row[name] for row in here if row[name] is not None]
        site, hashed = batch.sparse["site"], batch["site_id"].tolist()
        assert site.values.tolist() == [id for id, row in zip(hashed, here, strict=True) if row["site"] is not None]


def test_the_same_deduplicated(folder: Path):
    plain = batches(folder)
    grouped = batches(folder, dedup={"user": {"columns": ["user"]}})
    for one, other in zip(plain, grouped, strict=True):
        assert other.groups["user"].unique_rows < other.rows / 5
        assert other.expanded()._root.tobytes() == one._root.tobytes()
