"""A table that was partitioned after its first files: what these hold of a key counts, in every way of reading."""

from __future__ import annotations

import datetime as dt
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline, Table
from feedline.commands.check import run_check
from feedline.errors import TableError
from feedline.expressions import bind_where
from feedline.planning.next_epoch_snapshot import types_to_declare
from feedline.warehouse.selection.column_bounds import value_ranges
from feedline.warehouse.selection.null_counts import files_without, null_counts
from feedline.warehouse.selection.select import screen_rows
from feedline.warehouse.snapshot.column_facts import spelled_in
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot

DAYS = [dt.date(2026, 1, day) for day in range(1, 8)]
KINDS: dict[str, tuple[list[Any], pa.DataType, list[str]]] = {
    "dates": (DAYS, pa.date32(), [str(day) for day in DAYS]),
    "times": ([dt.datetime.combine(day, dt.time()) for day in DAYS], pa.timestamp("us"), [str(day) for day in DAYS]),
    "integers": (list(range(1, 8)), pa.int32(), [f"0{day}" for day in range(1, 8)]),
    "strings": ([f"0{day}" for day in range(1, 8)], pa.string(), [f"0{day}" for day in range(1, 8)]),
    "words": (list("abcdefg"), pa.large_string(), list("abcdefg")),
}


def put(path: Path, columns: dict[str, Any], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)


def evolved(root: Path, kind: str) -> tuple[dict[int, Any], dict[str, Any]]:
    """Early files with and without `ds`, later ones below folders: the key of each row by its id, and the kind's values
    by their names in conditions."""
    values, arrow, names = KINDS[kind]

    def column(*of: int | None) -> pa.Array:
        return pa.array([None if each is None else values[each] for each in of], arrow)

    put(root / "old.parquet", {"id": [0, 1, 2, 3], "ds": column(0, 1, None, 1)}, row_group_size=2)
    put(root / "older.parquet", {"id": [4, 5], "ds": column(0, 0)})
    put(root / "bare.parquet", {"id": [6]})
    put(root / f"ds={names[1]}" / "a.parquet", {"id": [7, 8]})
    put(root / f"ds={names[3]}" / "b.parquet", {"id": [9], "ds": column(3)})
    put(root / "ds=__HIVE_DEFAULT_PARTITION__" / "c.parquet", {"id": [10], "ds": column(5)})
    at = [0, 1, None, 1, 0, 0, None, 1, 1, 3, None]
    key = {row: None if each is None else values[each] for row, each in enumerate(at)}
    return key, {f"v{index}": value for index, value in enumerate(values)}


def literal(value: Any) -> str:
    return str(value) if isinstance(value, int) else json.dumps(str(value))


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[int, Any], dict[str, Any]]:
    return tmp_path / "t", *evolved(tmp_path / "t", request.param)


def rows_of(data: pa.Table) -> dict[int, Any]:
    return dict(zip(data["id"].to_pylist(), data["ds"].to_pylist(), strict=True))


def pairs(rows: dict[int, Any]) -> set[tuple[int, Any]]:
    return set(rows.items())


def test_every_way_of_reading_has_the_files_values(table: tuple[Path, dict[int, Any], dict[str, Any]], tmp_path: Path):
    root, key, _ = table
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        snapshot = take_snapshot(str(root))
        assert rows_of(Table(root).read()) == key
    # of the files below folders, only one's own values are not those of its folder
    assert all("has ds both as partition key and as a column" in str(each.message) for each in caught)
    assert (snapshot.partition_columns, snapshot.path_keys, snapshot.file_columns) == ((), ("ds",), ("id", "ds"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert rows_of(pa.Table.from_pandas(Table(root).to_dask().compute())) == key
        Table(root).optimize(tmp_path / "out", threads=1)
        written = Table(tmp_path / "out")
        assert pairs(rows_of(written.read())) == pairs(key)
        assert written.snapshot().schema.field("ds").type == snapshot.schema.field("ds").type
    saved = Snapshot.load(str(tmp_path / "work"), snapshot.save(str(tmp_path / "work")))
    assert [saved.partition_of(file) for file in range(len(saved.files))] == [
        snapshot.partition_of(file) for file in range(len(snapshot.files))
    ]
    assert saved.column_facts("ds").equals(snapshot.column_facts("ds"))


@pytest.mark.filterwarnings("ignore:.*both as partition key")
def test_filters_keep_the_rows_that_a_loop_keeps(table: tuple[Path, dict[int, Any], dict[str, Any]]):
    root, key, values = table
    snapshot = take_snapshot(str(root))
    first, second, fourth = (values[f"v{index}"] for index in (0, 1, 3))
    cases = {
        f"ds >= {literal(second)}": lambda ds: ds is not None and ds >= second,
        f"ds == {literal(first)}": lambda ds: ds == first,
        f"ds != {literal(second)}": lambda ds: ds is not None and ds != second,
        f"ds in [{literal(first)}, {literal(fourth)}]": lambda ds: ds in (first, fourth),
        f"ds > {literal(fourth)}": lambda ds: ds is not None and ds > fourth,
        "ds is None": lambda ds: ds is None,
        "ds is not None": lambda ds: ds is not None,
        f"ds < {literal(second)} or ds is None": lambda ds: ds is None or ds < second,
    }
    for where, keeps in cases.items():
        expected = {row for row, ds in key.items() if keeps(ds)}
        assert set(Table(root).read(["id"], where)["id"].to_pylist()) == expected, where
        selection = screen_rows(snapshot, bind_where(where, snapshot.schema))
        counted = np.where(selection.rows < 0, 0, selection.rows)
        assert counted.sum() <= len(expected), where  # what statistics prove, before any row is read
        assert (counted + np.where(selection.rows < 0, snapshot.rows_per_row_group, 0)).sum() >= len(expected), where


@pytest.mark.filterwarnings("ignore:.*both as partition key")
def test_statistics_agree(table: tuple[Path, dict[int, Any], dict[str, Any]]):
    root, key, values = table
    snapshot = take_snapshot(str(root))
    everything = snapshot.rows_per_row_group
    paths = snapshot.files["path"].to_pylist()
    assert paths[0] in ("old.parquet", "older.parquet")  # in the order of the key
    assert paths[2:4] != sorted(paths[2:4], reverse=True)
    assert {paths[file] for file in files_without(snapshot, "ds")} == {"bare.parquet"}
    assert spelled_in(snapshot.files["path"], "ds").tolist() == [path.startswith("ds=") for path in paths]
    found = null_counts(snapshot, ["ds"], everything, None)["ds"]
    assert found.least == found.most == sum(ds is None for ds in key.values())
    assert value_ranges(snapshot, ["ds"]) == {"ds": (values["v0"], values["v3"])} or None in key.values()


def spec(root: Path, **source: Any) -> Pipeline:
    return Pipeline.from_dict(
        {
            "version": 1,
            "name": "p",
            "work_dir": str(root.parent / "work"),
            "source": {"table": str(root), **source},
            "features": {"extra": {"id": [], "ds": []}},
            "batch": {"size": 2, "tail": "partial"},
            "shuffle": "off",
        }
    )


@pytest.mark.filterwarnings("ignore:.*both as partition key")
def test_runs_deliver_them(tmp_path: Path):
    key, values = evolved(tmp_path / "t", "dates")
    pipeline = spec(tmp_path / "t", where=f'ds <= "{values["v1"]}"')
    found = [row for batch in pipeline.batches() for row in batch["id"].tolist()]
    assert sorted(found) == [row for row, ds in key.items() if ds is not None and ds <= values["v1"]]
    assert [key[row] for row in found[:3]] == [values["v0"]] * 3 or key[found[0]] == values["v0"]
    assert run_check(pipeline.spec, deep=True).rows == len(key)
    strict = run_check(spec(tmp_path / "t", schema={"missing": "error"}).spec)
    assert [problem.file.rpartition("/")[2] for problem in strict.problems] == ["bare.parquet"]


def test_a_key_that_no_early_file_holds_stays_a_key(tmp_path: Path):
    put(tmp_path / "bare.parquet", {"id": [1]})
    put(tmp_path / "empty.parquet", {"id": [1], "ds": pa.nulls(1)})
    put(tmp_path / "ds=2026-01-02" / "a.parquet", {"id": [2]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        snapshot = take_snapshot(str(tmp_path))
    assert (snapshot.partition_columns, snapshot.path_keys) == (("ds",), ())


def test_types_that_do_not_fit_are_refused(tmp_path: Path):
    put(tmp_path / "old.parquet", {"id": [1], "ds": pa.array([20260101000000], pa.timestamp("us"))})
    put(tmp_path / "ds=20260102" / "a.parquet", {"id": [2]})
    message = r"partition key 'ds' of .* has two types: got int64 in paths and timestamp\[us\] in files .*`partitions`"
    with pytest.raises(TableError, match=message):
        take_snapshot(str(tmp_path))
    declared = take_snapshot(str(tmp_path), partitions={"ds": "timestamp"})
    assert declared.schema.field("ds").type == pa.timestamp("us")
    with pytest.raises(TableError, match="has two types: got string in paths"):
        spec(tmp_path, partitions={"ds": "string"}).plan()


def test_two_keys_of_which_files_hold_one(tmp_path: Path):
    put(tmp_path / "a=1" / "old.parquet", {"id": [1, 2], "b": [7, 8]})
    put(tmp_path / "a=2" / "b=9" / "new.parquet", {"id": [3]})
    snapshot = take_snapshot(str(tmp_path))
    assert (snapshot.partition_columns, snapshot.path_keys) == (("a",), ("b",))
    assert Table(tmp_path).read(["id", "a", "b"]).to_pylist() == [
        {"id": 1, "a": 1, "b": 7},
        {"id": 2, "a": 1, "b": 8},
        {"id": 3, "a": 2, "b": 9},
    ]
    assert Table(tmp_path).read(["id"], "a == 1 and b >= 8")["id"].to_pylist() == [2]
    without = snapshot.without({"a=1/old.parquet"})
    assert without.partition_of(0) == (("a", 2), ("b", 9))


def test_a_followed_table_keeps_the_type_of_such_a_key(tmp_path: Path):
    put(tmp_path / "old.parquet", {"id": [1], "ds": pa.array([DAYS[0]])})
    put(tmp_path / "ds=2026-01-02" / "a.parquet", {"id": [2]})
    before = take_snapshot(str(tmp_path))
    put(tmp_path / "later" / "ds=2026-01-03" / "a.parquet", {"id": pa.array([2], pa.int32())})
    assert types_to_declare(before, take_snapshot(str(tmp_path / "later"))) == {"id": pa.int64()}
    put(tmp_path / "other" / "ds=x" / "a.parquet", {"id": [2]})
    with pytest.raises(TableError, match=r"partition key 'ds' of the followed table .* changed its type: got string"):
        types_to_declare(before, take_snapshot(str(tmp_path / "other")))
