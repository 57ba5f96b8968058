"""A task finds the bad rows of its row groups, with one pass over clean ones."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.errors import ClusterError
from feedline.fitting.row_check import RowCheck, find_bad_rows
from feedline.planning.plan import Plan
from feedline.warehouse.reading.fragment import Fragment, unpack_mask

ROWS, GROUP = 70_000, 40_000  # the first row group has chunks of its own
FEATURES: dict[str, Any] = {
    "dense": {"x": [], "n": {"column": "word", "ops": [{"cast": "float32"}]}},
    "sparse": {"ids": [{"first_x": 2}]},
    "extra": ["word"],
}


def plan_of(folder: Path, bad: dict[int, dict[str, Any]], **changes: Any) -> Plan:
    """bad: by row, the values that differ from good ones."""
    columns: dict[str, list[Any]] = {
        "x": [float(row) for row in range(ROWS)],
        "word": [str(row % 500) for row in range(ROWS)],
        "ids": [[row, 1, 2][: row % 4] for row in range(ROWS)],
    }
    for row, values in bad.items():
        for name, value in values.items():
            columns[name][row] = value
    (folder / "t").mkdir()
    types = {"x": pa.float32(), "word": pa.string(), "ids": pa.list_(pa.int64())}
    rows = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    pq.write_table(rows, folder / "t" / "a.parquet", row_group_size=GROUP)
    spec = {
        "version": 1,
        "name": "rows",
        "work_dir": str(folder / "work"),
        "source": {"table": str(folder / "t"), "where": "x is None or x != 7"},
        "features": FEATURES,
        "batch": {"size": 8},
        **changes,
    }
    return Pipeline.from_dict(spec).plan()


def task_of(plan: Plan) -> tuple[Fragment, ...]:
    return (plan.source.selection.fragment(plan.source.snapshot, np.arange(len(plan.source.selection.rows))),)


def check_of(plan: Plan, most: int = ROWS) -> RowCheck:
    return RowCheck(job=replace(plan.source.job, order=None), unfitted=frozenset(), most=most)


def test_bad_rows_are_numbered_among_those_that_the_filter_keeps(tmp_path: Path):
    bad = {
        3: {"x": None},
        39_999: {"ids": [None, 1]},
        40_000: {"word": "n/a", "x": None},
        69_999: {"ids": [1, None]},
        50: {"ids": [1, 2, None]},  # beyond the two that are used: it is good
    }
    plan = plan_of(tmp_path, bad)
    found = pickle.loads(pickle.dumps(find_bad_rows(check_of(plan), task_of(plan))))
    assert [(each.index, each.kept, each.rows) for each in found] == [(0, 39_999, 2), (1, 30_000, 2)]
    assert [np.flatnonzero(unpack_mask(each.bits, each.kept)).tolist() for each in found] == [[3, 39_998], [0, 29_999]]
    assert found[0].reasons == (("ids", "holds a null", 1, 39_998), ("x", "holds a null", 1, 3))
    assert found[1].reasons == (
        ("ids", "holds a null", 1, 29_999),
        ("n", "cannot be computed (cast)", 1, 0),
        ("x", "holds a null", 1, 0),
    )


def test_a_task_ends_early_where_too_many_rows_are_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every value differs, and none is a number: finding all would take two passes for each."""
    plan = plan_of(tmp_path, {row: {"word": f"no {row}"} for row in range(ROWS)})
    tried = []
    whole = type(plan.source.features).failure

    def failure(self: Any, frame: Any, index: int) -> Any:
        tried.append(frame.height)
        return whole(self, frame, index)

    monkeypatch.setattr(type(plan.source.features), "failure", failure)
    [found] = find_bad_rows(check_of(plan, most=20), task_of(plan))
    assert 20 < found.rows < 64
    assert len(tried) < 120


def test_another_environment_is_refused(tmp_path: Path):
    plan = plan_of(tmp_path, {})
    job = replace(plan.source.job, environment=(("polars", "0"),))
    with pytest.raises(ClusterError):
        find_bad_rows(RowCheck(job=job, unfitted=frozenset(), most=1), task_of(plan))
