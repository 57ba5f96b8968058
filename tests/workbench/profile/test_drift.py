"""Drift between tables and between parts of one: what changed comes first, what did not is small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.workbench.profile.drift import TableDrift, compare_tables
from feedline.workbench.profile.table_sample import ProfileOptions

ROWS = 3000


def columns(seed: int, **changed: object) -> dict[str, object]:
    random = np.random.default_rng(seed)
    usual: dict[str, object] = {
        "row_id": np.arange(ROWS) + seed * ROWS,
        "price": random.lognormal(size=ROWS),
        "shop_id": random.integers(0, 50, ROWS),
        "user_id": random.integers(0, 10**9, ROWS),
        "color": random.choice(["red", "green", "blue"], ROWS),
        "history": [[1] * int(length) for length in random.integers(0, 9, ROWS)],
        "t": pa.array((np.arange(ROWS) + seed * 10**6) * 10**6, pa.timestamp("us")),
        "nested": pa.array([{"a": 1}] * ROWS),
        "nothing": pa.nulls(ROWS, pa.int64()),
    }
    return {**usual, **changed}


def table(path: Path, content: dict[str, object]) -> str:
    path.mkdir(parents=True)
    pq.write_table(
        pa.table({name: values for name, values in content.items() if values is not None}), path / "a.parquet"
    )
    return str(path)


def drift(tmp_path: Path, **changed: object) -> TableDrift:
    base, other = table(tmp_path / "base", columns(1)), table(tmp_path / "other", columns(2, **changed))
    found = compare_tables(base, other, ProfileOptions(), ProfileOptions())
    json.dumps(found.to_json(), allow_nan=False)
    return found


def test_equal_distributions_do_not_drift(tmp_path: Path):
    found = drift(tmp_path)
    assert {column.name for column in found.columns} == set(columns(1))
    assert not found.above(0.1)
    by_name = {column.name: column for column in found.columns}
    assert by_name["color"].new == 0
    assert by_name["user_id"].new is None  # a sample cannot tell which of so many values are new


RANDOM = np.random.default_rng(7)
CHANGES = {
    "price": RANDOM.lognormal(1, size=ROWS),
    "shop_id": RANDOM.integers(50, 100, ROWS),
    "color": RANDOM.choice(["red", "green", "pink"], ROWS),
    "history": [[1] * int(length) for length in RANDOM.integers(5, 20, ROWS)],
    "t": pa.array([None if index % 2 else index for index in range(ROWS)], pa.timestamp("us")),
    "nested": pa.array([None] * ROWS, pa.struct([("a", pa.int64())])),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_column_comes_first(tmp_path: Path, name: str):
    found = drift(tmp_path, **{name: CHANGES[name]})
    assert [column.name for column in found.above(0.25)] == [name]
    assert found.columns[0].name == name


def test_measures_name_what_changed(tmp_path: Path):
    found = {column.name: column for column in drift(tmp_path, **CHANGES).columns}
    assert found["price"].ks is not None
    assert found["price"].ks > 0.3
    assert found["price"].mean[1] > found["price"].mean[0]
    assert (found["shop_id"].new, found["shop_id"].vanished) == (1, 1)
    assert found["color"].new == pytest.approx(1 / 3, abs=0.05)
    assert found["t"].nulls == (0, 0.5)
    assert found["history"].length[1] > found["history"].length[0]


def test_columns_that_cannot_be_compared_come_first(tmp_path: Path):
    found = drift(tmp_path, color=None, price=["a"] * ROWS, more=np.arange(ROWS))
    notes = {column.name: column.note for column in found.columns[:3]}
    assert notes == {
        "color": "only in the base",
        "more": "only in the other",
        "price": "double in the base, string in the other",
    }
    assert len(found.above(100)) == 3


def test_two_days_of_one_table(tmp_path: Path):
    for day in (1, 2):
        table(tmp_path / f"ds={day}", columns(day, price=RANDOM.lognormal(day, size=ROWS)))
    options = [ProfileOptions(where=f"ds == {day}") for day in (1, 2)]
    found = compare_tables(str(tmp_path), str(tmp_path), *options)
    assert [column.name for column in found.above(0.25)] == ["price"]
    assert "ds" not in {column.name for column in found.columns}
    assert found.base.selected_rows == found.other.selected_rows == ROWS
