"""Snapshots: the facts of footers against the data; ids, files, drift and damage."""

from __future__ import annotations

import datetime
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from warehouse_samples import BOUNDED, sample, write

from feedline.errors import CorruptFileError, TableError, TableNotFoundError
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot


def facts(snapshot: Snapshot, column: str) -> list[dict[str, Any]]:
    return snapshot.column_facts(column).to_pylist()


def test_row_groups_and_statistics_are_those_of_the_data(tmp_path: Path) -> None:
    tables = {"k=1/a.parquet": sample(25, 1), "k=1/b.parquet": sample(7, 2), "k=2/c.parquet": sample(30, 3)}
    snapshot = take_snapshot(write(tmp_path, tables, row_group_size=10))
    parts = [
        (f, g, table.slice(g * 10, 10)) for f, table in enumerate(tables.values()) for g in range(-(-len(table) // 10))
    ]
    assert snapshot.row_groups["file"].to_pylist() == [f for f, _, _ in parts]
    assert snapshot.row_groups["row_group"].to_pylist() == [g for _, g, _ in parts]
    assert snapshot.rows_per_row_group.tolist() == [len(part) for _, _, part in parts]
    assert snapshot.rows == 62
    assert snapshot.files["rows"].to_pylist() == [25, 7, 30]
    assert snapshot.files["row_groups"].to_pylist() == [3, 1, 3]
    for name in BOUNDED:
        found = facts(snapshot, name)
        for fact, (_, _, part) in zip(found, parts, strict=True):
            column = part[name].cast(snapshot.schema.field(name).type)
            bounds = pc.min_max(column).as_py() if not pa.types.is_binary(column.type) else None
            values = [value for value in column.to_pylist() if value is not None]
            assert fact["nulls"] == column.null_count
            assert (fact["min"], fact["max"]) == (min(values), max(values))
            assert bounds is None or (fact["min"], fact["max"]) == (bounds["min"], bounds["max"])
    assert "min" not in facts(snapshot, "ids")[0]
    assert {fact["nulls"] for fact in facts(snapshot, "ids")} == {-1}
    assert "min" not in facts(snapshot, "half")[0]


@pytest.mark.parametrize("state", ["loaded", "cut", "joined", "cached"])
def test_bytes_and_nulls_alone_are_those_among_all_facts(tmp_path: Path, state: str) -> None:
    tables = {"k=1/a.parquet": sample(25, 1), "k=2/b.parquet": sample(7, 2).drop_columns(["f64", "ids"])}
    write(tmp_path / "t", tables, row_group_size=10)
    snapshot = take_snapshot(str(tmp_path / "t"), work_dir=None if state == "joined" else str(tmp_path / "work"))
    if state == "cut":
        snapshot = snapshot.without(["k=1/a.parquet"])
    for name in snapshot.file_columns:
        if state == "cached":
            snapshot.column_facts(name)
        expected = snapshot.facts.fetch(snapshot.schema.field(name))
        for part in ("bytes", "nulls"):
            found = snapshot.column_part(name, part)
            assert found.dtype == np.int64
            assert found.tolist() == expected.field(part).to_pylist(), (name, part)
    for threads in (1, 2, 3):
        for part in ("bytes", "nulls"):
            read = list(snapshot.column_parts(snapshot.file_columns, part, threads=threads))
            assert [name for name, _ in read] == list(snapshot.file_columns)
            assert all((sizes == snapshot.column_part(name, part)).all() for name, sizes in read)


def test_schema_is_the_files_without_dictionaries_then_the_keys(tmp_path: Path) -> None:
    table = sample(5)
    snapshot = take_snapshot(
        write(tmp_path, {"ds=2026-01-01/c=x/f.parquet": table, "ds=2026-01-02/c=y/f.parquet": table})
    )
    expected = [(field.name, pa.string() if field.name == "word" else field.type) for field in table.schema]
    assert snapshot.schema == pa.schema([*expected, ("ds", pa.date32()), ("c", pa.string())])
    assert snapshot.partition_columns == ("ds", "c")
    assert snapshot.file_columns == tuple(table.schema.names)
    assert snapshot.partition_of(1) == (("ds", datetime.date(2026, 1, 2)), ("c", "y"))


def test_an_unchanged_table_has_one_id_wherever_it_lies(tmp_path: Path) -> None:
    root = write(tmp_path / "one", {"k=1/a.parquet": sample(25, 1), "k=2/b.parquet": sample(7, 2)})
    first = take_snapshot(root)
    shutil.copytree(root, tmp_path / "two")  # copies times as well
    assert take_snapshot(root).id == first.id == take_snapshot(str(tmp_path / "two")).id
    assert take_snapshot([f"{root}/k=2/b.parquet", f"{root}/k=1"]).id == first.id


def test_every_change_of_a_table_changes_its_id(tmp_path: Path) -> None:
    root = write(tmp_path, {"k=1/a.parquet": sample(25, 1), "k=2/b.parquet": sample(7, 2)})
    seen = {take_snapshot(root).id}
    file = tmp_path / "k=2" / "b.parquet"
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)

    def changed() -> bool:
        before = len(seen)
        seen.add(take_snapshot(root).id)
        return len(seen) > before

    os.utime(file, ns=(times[0], times[1] + 1_000))
    assert changed()
    content = bytearray(file.read_bytes())
    place = content.rindex(b"parquet-cpp-arrow")
    content[place : place + 2] = b"qq"  # the footer alone, same size and time
    file.write_bytes(content)
    os.utime(file, ns=times)
    assert changed()
    file.rename(file.with_name("c.parquet"))
    assert changed()
    (tmp_path / "k=2").rename(tmp_path / "k=3")
    assert changed()
    shutil.copy2(tmp_path / "k=3" / "c.parquet", tmp_path / "k=3" / "d.parquet")
    assert changed()


def test_a_saved_snapshot_comes_back_without_the_table(tmp_path: Path) -> None:
    root = write(
        tmp_path / "t", {"ds=2026-01-01/a.parquet": sample(25, 1), "note.txt/x.csv": sample(1)}, row_group_size=10
    )
    snapshot = take_snapshot(root)
    work_dir = str(tmp_path / "work")
    assert snapshot.save(work_dir) == snapshot.id
    shutil.rmtree(root)
    loaded = Snapshot.load(work_dir, snapshot.id)
    assert loaded.id == snapshot.id
    assert loaded.uri == root
    assert loaded.ignored == 1
    assert loaded.partition_columns == ("ds",)
    assert loaded.schema.equals(snapshot.schema, check_metadata=True)
    assert loaded.files.equals(snapshot.files)
    assert loaded.row_groups.equals(snapshot.row_groups)
    assert Snapshot.load(f"file://{work_dir}", snapshot.id).files.equals(snapshot.files)


def test_a_snapshot_of_a_map_column_comes_back(tmp_path: Path) -> None:
    """Parquet names the fields inside a map after its column; an Arrow stream loses that name."""
    facts = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    snapshot = take_snapshot(write(tmp_path / "table", {"a.parquet": pa.table({"facts": facts})}))
    assert Snapshot.load(str(tmp_path), snapshot.save(str(tmp_path))).schema == snapshot.schema


def test_a_damaged_or_missing_snapshot_file_is_refused(tmp_path: Path) -> None:
    snapshot = take_snapshot(write(tmp_path / "t", {"a.parquet": sample(25, 1)}))
    work_dir = str(tmp_path / "work")
    with pytest.raises(TableNotFoundError, match=f"snapshot {snapshot.id} is not in"):
        Snapshot.load(work_dir, snapshot.id)
    snapshot.save(work_dir)
    file = tmp_path / "work" / "snapshots" / f"{snapshot.id}.arrow"
    good = file.read_bytes()
    for bad in (good[:-1], good[:100], b"", good[:500] + b"\x00\x01" + good[502:], good + b"x"):
        file.write_bytes(bad)
        with pytest.raises(CorruptFileError, match="does not hold the bytes that were written"):
            Snapshot.load(work_dir, snapshot.id)
    other = "0" * 64
    file.with_name(f"{other}.arrow").write_bytes(good)
    with pytest.raises(CorruptFileError, match=f"snapshot {other} holds another snapshot"):
        Snapshot.load(work_dir, other)
    with pytest.raises(TableError, match="snapshot id is invalid"):
        Snapshot.load(work_dir, "../../etc/passwd")
    snapshot.save(work_dir)
    assert Snapshot.load(work_dir, snapshot.id).id == snapshot.id


def test_drifted_files_are_united(tmp_path: Path) -> None:
    old = pa.table(
        {
            "id": pa.array([1, None], pa.int32()),
            "gone": ["x", "y"],
            "late": pa.nulls(2),
            "t": pa.array([1, 2], pa.timestamp("ms")),
        }
    )
    new = pa.table(
        {"late": [0.5, 1.5], "id": pa.array([2**40, 3], pa.int64()), "t": pa.array([1, 2], pa.timestamp("us"))}
    )
    snapshot = take_snapshot(write(tmp_path, {"a.parquet": old, "b.parquet": new, "c.parquet": old}))
    assert snapshot.schema == pa.schema(
        {"id": pa.int64(), "gone": pa.string(), "late": pa.float64(), "t": pa.timestamp("us")}
    )
    assert [(f["min"], f["max"], f["nulls"]) for f in facts(snapshot, "id")] == [(1, 1, 1), (3, 2**40, 0), (1, 1, 1)]
    assert [(f["min"], f["nulls"], f["bytes"] > 0) for f in facts(snapshot, "gone")] == [
        ("x", 0, True),
        (None, 2, False),
        ("x", 0, True),
    ]
    assert [(f["min"], f["nulls"]) for f in facts(snapshot, "late")] == [(None, 2), (0.5, 0), (None, 2)]
    assert [f["max"].microsecond for f in facts(snapshot, "t")] == [2000, 2, 2000]


def test_statistics_that_cannot_be_trusted_are_unknown(tmp_path: Path) -> None:
    nan = pa.table({"x": [float("nan"), float("nan")], "y": [float("nan"), 1.0], "z": pa.nulls(2, pa.int64())})
    pq.write_table(nan, tmp_path / "a.parquet")
    pq.write_table(nan, tmp_path / "b.parquet", write_statistics=False)
    snapshot = take_snapshot(str(tmp_path))
    assert [(f["min"], f["max"], f["nulls"]) for f in facts(snapshot, "x")] == [(None, None, 0), (None, None, -1)]
    assert [(f["min"], f["max"], f["nulls"]) for f in facts(snapshot, "y")] == [(1, 1, 0), (None, None, -1)]
    assert [(f["min"], f["max"], f["nulls"]) for f in facts(snapshot, "z")] == [(None, None, 2), (None, None, -1)]


def test_int96_timestamps_are_microseconds_without_bounds(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"t": pa.array([1], pa.timestamp("us"))}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True
    )
    snapshot = take_snapshot(str(tmp_path))
    assert snapshot.schema.field("t").type == pa.timestamp("us")
    assert facts(snapshot, "t")[0]["min"] is None


def test_empty_files_have_no_rows(tmp_path: Path) -> None:
    empty = pa.table({"x": pa.array([], pa.int64())})
    snapshot = take_snapshot(
        write(tmp_path, {"a.parquet": empty, "b.parquet": pa.table({"x": [1]}), "c.parquet": empty})
    )
    assert snapshot.rows == 1
    assert snapshot.files["rows"].to_pylist() == [0, 1, 0]
    nothing = take_snapshot(write(tmp_path / "n", {"a.parquet": empty}))
    assert nothing.rows == 0
    assert Snapshot.load(str(tmp_path / "w"), nothing.save(str(tmp_path / "w"))).rows == 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda good: b"", r"is not Parquet: got 0 bytes"),
        (lambda good: b"PAR1", r"is not Parquet: got 4 bytes"),
        (lambda good: b"a,b\n1,2\n3,4\n5,6\n", r"is not Parquet: got b'5,6\\n' as its last bytes"),
        (lambda good: good[: len(good) // 2], r"is not Parquet: got"),
        (lambda good: good[:-8] + b"\xff\xff\xff\x7fPAR1", r"corrupt footer: got a length of 2147483647 bytes"),
        (lambda good: good[:-8] + b"\x00\x00\x00\x00PAR1", r"is not valid Parquet"),
        (lambda good: good[:-60] + b"\xff" * 52 + good[-8:], r"is not valid Parquet|corrupt footer"),
        (lambda good: good[:-8] + b"\x10\x00\x00\x00PAR1", r"is not valid Parquet"),
    ],
)
def test_a_corrupt_footer_names_its_file(tmp_path: Path, damage: Any, message: str) -> None:
    root = write(tmp_path, {"k=1/good.parquet": sample(5), "k=2/bad.parquet": sample(5)})
    file = tmp_path / "k=2" / "bad.parquet"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CorruptFileError, match=message) as caught:
        take_snapshot(root)
    assert str(file) in str(caught.value)


def test_footers_larger_than_one_read_are_read_whole(tmp_path: Path) -> None:
    wide = pa.table({f"column_with_a_rather_long_name_{i}": [i] for i in range(900)})
    snapshot = take_snapshot(write(tmp_path, {"a.parquet": wide}))
    assert snapshot.files["footer_bytes"][0].as_py() > 64 * 1024
    assert facts(snapshot, "column_with_a_rather_long_name_899")[0]["max"] == 899
