"""Bounds of columns meet literals in the column's own unit."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.warehouse.selection.column_bounds import _unit, key_statistics, statistics_of, value_ranges
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot


def test_literals_meet_bounds_in_the_columns_own_unit() -> None:
    noon = datetime.datetime(2026, 1, 1, 12, 0, 0, 500)
    aware = noon.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    micros = pa.scalar(noon, pa.timestamp("us")).value
    cases = [
        (pa.timestamp("us"), noon, micros),
        (pa.timestamp("ns"), noon, micros * 1000),
        (pa.timestamp("ms"), noon, None),
        (pa.timestamp("ms"), noon.replace(microsecond=0), micros // 1000),
        (pa.timestamp("us"), aware, None),
        (pa.timestamp("us", "UTC"), aware, micros - 7_200_000_000),
        (pa.timestamp("us", "UTC"), noon, None),
        (pa.date32(), datetime.date(1970, 1, 3), 2),
        (pa.date32(), noon, None),
        (pa.int32(), True, None),
        (pa.int32(), 7, 7),
        (pa.bool_(), True, 1),
        (pa.float32(), 7, 7.0),
        (pa.float64(), 2**60, None),
        (pa.float64(), "7", None),
        (pa.string(), b"x", None),
        (pa.binary(), b"x", b"x"),
        (pa.decimal128(5, 2), Decimal("1.5"), Decimal("1.5")),
        (pa.list_(pa.int8()), 1, None),
    ]
    for kind, literal, expected in cases:
        assert _unit(kind)(literal) == expected


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    """Three row groups: of two rows, of two nulls, of one row."""
    day = datetime.date(2026, 1, 1)
    table = pa.table(
        {
            "n": pa.array([3, 5, None, None, -1], pa.int32()),
            "x": pa.array([0.5, 1.5, None, None, 2.5], pa.float32()),
            "b": [True, False, None, None, True],
            "d": [day, day, None, None, day],
            "s": ["b", "a", None, None, "c"],
            "l": [[1], [], None, None, [2]],
        }
    )
    (tmp_path / "k=7").mkdir()
    pq.write_table(table, tmp_path / "k=7" / "0.parquet", row_group_size=2)
    return take_snapshot(str(tmp_path))


def test_statistics_are_in_the_units_that_pruning_compares(snapshot: Snapshot) -> None:
    statistics = statistics_of(snapshot, ["n", "x", "b", "d", "s", "l", "k"])
    assert statistics.rows.tolist() == [2, 2, 1]
    found = {
        name: [
            (low, high) if bounded else None
            for low, high, bounded in zip(one.low.tolist(), one.high.tolist(), one.bounded.tolist(), strict=True)
        ]
        for name, one in statistics.columns.items()
    }
    day = (datetime.date(2026, 1, 1) - datetime.date(1970, 1, 1)).days
    assert found == {
        "n": [(3, 5), None, (-1, -1)],
        "x": [(0.5, 1.5), None, (2.5, 2.5)],
        "b": [(0, 1), None, (1, 1)],
        "d": [(day, day), None, (day, day)],
        "s": [("a", "b"), None, ("c", "c")],
        "l": [None] * 3,
        "k": [(7, 7)] * 3,
    }
    assert statistics.columns["n"].nulls.tolist() == [0, 2, 0]
    assert statistics.columns["x"].floating
    assert statistics.columns["k"].partition


def test_a_null_key_is_null_in_all_rows_of_its_file() -> None:
    keys = key_statistics({"k": pa.array(["a", None])}, np.array([3, 4])).columns["k"]
    assert keys.bounded.tolist() == [True, False]
    assert keys.nulls.tolist() == [0, 4]
    assert keys.low[0] == keys.high[0] == "a"


def test_ranges_of_values_are_those_of_the_footers(snapshot: Snapshot) -> None:
    ranges = value_ranges(snapshot, ["n", "x", "s", "l", "k"])
    assert ranges == {"n": (-1, 5), "x": (0.5, 2.5), "s": ("a", "c"), "k": (7, 7)}


def test_a_column_of_nulls_has_no_range(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([None, None], pa.int64()), "m": [1, 2]}), tmp_path / "t.parquet")
    assert value_ranges(take_snapshot(str(tmp_path)), ["n", "m"]) == {"n": None, "m": (1, 2)}
