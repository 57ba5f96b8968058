"""Columns are resolved once for files that store the same, and each file gets its own partition and runs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_runs import write_in_place

from feedline.warehouse.reading import resolved_columns
from feedline.warehouse.reading.columns import FileColumns
from feedline.warehouse.reading.fragment import fragment_at
from feedline.warehouse.reading.read import read_fragment
from feedline.warehouse.reading.stored_groups import expand_group
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot


class Counter:
    """Counts how often columns are resolved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(resolved_columns, "_kept", ())

        def resolve(*arguments: object) -> FileColumns:
            self.count += 1
            return FileColumns(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(resolved_columns, "FileColumns", resolve)


def rows_of(snapshot: Snapshot, file: int, columns: list[str], compact: tuple[str, ...] = ()) -> list[dict]:
    groups = snapshot.row_groups_of(file)
    fragment = fragment_at(snapshot, file, groups, snapshot.rows_per_row_group[groups])
    rows = []
    for chunk in read_fragment(fragment, columns, None, snapshot.schema, compact=compact):
        frame = chunk.frame
        for group in chunk.groups:
            frame = frame.hstack(expand_group(group).get_columns())
        rows += frame.select(columns).to_dicts()
    return rows


def test_files_of_one_schema_are_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    expected: dict[int, list[dict]] = {}
    for number in range(3):
        values = [number * 100 + row // (2 + number) for row in range(12)]
        starts = [row % (2 + number) == 0 for row in range(12)]
        table = pa.table({"user": values, "row": range(12)})
        write_in_place(tmp_path / f"ds={number}" / "0.parquet", table, {"u": ["user"]}, {"u": starts}, 5)
        expected[number] = [{"ds": number, "user": value, "row": row} for row, value in enumerate(values)]
    snapshot = take_snapshot(str(tmp_path))
    counter = Counter(monkeypatch)
    for compact in ((), ("user",)):
        for number in range(3):
            assert rows_of(snapshot, number, ["ds", "user", "row"], compact) == expected[number]
    assert counter.count == 2
    assert rows_of(snapshot, 1, ["user"]) == [{"user": row["user"]} for row in expected[1]]
    assert counter.count == 3


def test_files_that_differ_are_resolved_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a column's type, in its place, in what is stored once per run, and in nulls."""
    columns = {"x": pa.array([1, 2, 2]), "y": pa.array([5, 6, 7])}
    written = [
        pa.table(columns),
        pa.table({**columns, "x": pa.array([1, 2, 2], pa.int32())}),
        pa.table(dict(reversed(columns.items()))),
        pa.table(columns, schema=pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.int64())])),
    ]
    for number, table in enumerate(written):
        pq.write_table(table, tmp_path / f"{number}.parquet")
    write_in_place(tmp_path / "4.parquet", written[0], {"g": ["x"]}, {"g": [True, True, False]}, 3)
    write_in_place(tmp_path / "5.parquet", written[0], {"h": ["x", "y"]}, {"h": [True, True, True]}, 3)
    pq.write_table(written[0].drop_columns("y"), tmp_path / "6.parquet")
    snapshot = take_snapshot(str(tmp_path))
    counter = Counter(monkeypatch)
    expected = [{"x": 1, "y": 5}, {"x": 2, "y": 6}, {"x": 2, "y": 7}]
    for _ in range(2):
        for number in range(6):
            assert rows_of(snapshot, number, ["x", "y"]) == expected
        assert rows_of(snapshot, 6, ["x", "y"]) == [{"x": row["x"], "y": None} for row in expected]
    assert counter.count == 7
