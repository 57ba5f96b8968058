"""A second run reads only what changed, and its snapshot is that of a first run."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from warehouse_samples import sample, write

from feedline.errors import CorruptFileError
from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.parquet.schemas import SchemaRules
from feedline.warehouse.snapshot import footer_tasks
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of, take_snapshot
from feedline.warehouse.storage import content_store

LONG_AGO = 1_700_000_000
# Drifted kinds of one table: any of them go together.
KINDS = (
    pa.table({"id": pa.array([1, None], pa.int32()), "gone": ["x", "y"], "late": pa.nulls(2)}),
    pa.table({"late": pa.array([0.5, 1.5], pa.float32()), "id": pa.array([2**40, 3], pa.int64())}),
    pa.table({"id": pa.array([7], pa.int8()), "word": pa.array(["w"]).dictionary_encode()}),
    pa.table({"id": pa.array([2**60, -5], pa.int64()), "late": [0.1, float("nan")], "gone": ["z" * 100, None]}),
    pa.table({"id": pa.array([], pa.int16()), "word": pa.array([], pa.string())}),
)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose footers were read."""
    names: list[str] = []
    original = footer_tasks.file_facts

    def facts(filesystem: Any, path: str, *rest: Any) -> Any:
        names.append(Path(path).name)
        return original(filesystem, path, *rest)

    monkeypatch.setattr(footer_tasks, "file_facts", facts)
    return names


def put(path: Path, table: pa.Table, *, age: int = 0, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    os.utime(path, (LONG_AGO + age, LONG_AGO + age))


def same(one: Snapshot, other: Snapshot) -> None:
    assert one.id == other.id
    assert one.schema.equals(other.schema, check_metadata=True)
    assert one.files.equals(other.files)
    assert one.row_groups.equals(other.row_groups)
    assert one.file_schemas == other.file_schemas
    for name in one.file_columns:
        assert one.column_facts(name).equals(other.column_facts(name)), name


def test_an_unchanged_table_reads_no_footer(tmp_path: Path, parsed: list[str]) -> None:
    root, work_dir = tmp_path / "t", str(tmp_path / "w")
    for name in "abc":
        put(root / f"k={name}" / f"{name}.parquet", sample(20, ord(name)))
    fresh = take_snapshot(str(root))
    first = take_snapshot(str(root), work_dir=work_dir)
    assert sorted(parsed) == sorted(2 * ["a.parquet", "b.parquet", "c.parquet"])
    parsed.clear()
    again = take_snapshot(str(root), work_dir=work_dir)
    assert parsed == []
    same(first, fresh)
    same(again, fresh)
    same(Snapshot.load(work_dir, fresh.id), fresh)
    (root / "notes.txt").write_text("x")
    assert take_snapshot(str(root), work_dir=work_dir).ignored == 1
    assert parsed == []


def test_only_what_changed_is_read(tmp_path: Path, parsed: list[str]) -> None:
    root, work_dir = tmp_path / "t", str(tmp_path / "w")
    for name in "abcd":
        put(root / f"{name}.parquet", sample(20, ord(name)))
    take_snapshot(str(root), work_dir=work_dir)
    parsed.clear()
    put(root / "b.parquet", sample(20, ord("b")), age=1)  # the same bytes at another time
    put(root / "c.parquet", sample(30, 1))
    put(root / "e.parquet", sample(5, 2))
    (root / "d.parquet").unlink()
    changed = take_snapshot(str(root), work_dir=work_dir)
    assert sorted(parsed) == ["b.parquet", "c.parquet", "e.parquet"]
    same(changed, take_snapshot(str(root)))


def test_a_copy_of_the_table_is_read_where_it_is(tmp_path: Path) -> None:
    """One id, two folders: a loaded snapshot is of the folder of the run that took it last."""
    work_dir = str(tmp_path / "w")
    put(tmp_path / "one" / "a.parquet", sample(20, 1))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for name in ("one", "two", "one", "one"):
        taken = take_snapshot(str(tmp_path / name), work_dir=work_dir)
        assert taken.uri == Snapshot.load(work_dir, taken.id).uri == str(tmp_path / name)


def test_files_younger_than_the_clocks_grain_are_read_again(tmp_path: Path, parsed: list[str]) -> None:
    root, work_dir = tmp_path / "t", str(tmp_path / "w")
    put(root / "old.parquet", sample(20, 1))
    pq.write_table(sample(20, 2), root / "new.parquet")
    take_snapshot(str(root), work_dir=work_dir)
    parsed.clear()
    take_snapshot(str(root), work_dir=work_dir)
    assert parsed == ["new.parquet"]


def test_files_of_one_time_and_size_are_told_apart_by_their_etags(tmp_path: Path, parsed: list[str]) -> None:
    root, work_dir = tmp_path / "t", str(tmp_path / "w")
    put(root / "a.parquet", sample(20, 1))
    put(root / "b.parquet", sample(20, 2))

    def tagged(*tags: str | None) -> Snapshot:
        listing = discover(str(root))
        files = listing.files.append_column("etag", pa.array(tags, pa.string()))
        return snapshot_of(dataclasses.replace(listing, files=files), work_dir=work_dir)

    first = tagged("x", "y")
    parsed.clear()
    second = tagged("x", "z")
    assert parsed == ["b.parquet"]
    assert second.id != first.id
    parsed.clear()
    tagged(None, "z")  # then its old time tells it
    assert parsed == []


def test_a_damaged_last_snapshot_costs_only_time(tmp_path: Path, parsed: list[str]) -> None:
    root, work_dir = tmp_path / "t", tmp_path / "w"
    put(root / "a.parquet", sample(20, 1))
    first = take_snapshot(str(root), work_dir=str(work_dir))
    for file in (*(work_dir / "tables").iterdir(), *(work_dir / "snapshots").iterdir()):
        good = file.read_bytes()
        for bad in (b"", good[:-1], good[:10] + b"\xff" + good[11:], None):
            parsed.clear()
            if bad is None:
                file.unlink()
            else:
                file.write_bytes(bad)
            assert take_snapshot(str(root), work_dir=str(work_dir)).id == first.id
            assert parsed == ["a.parquet"]
            parsed.clear()
            same(take_snapshot(str(root), work_dir=str(work_dir)), first)
            assert parsed == []


def test_a_damaged_column_of_a_snapshot_is_refused_when_it_is_read(tmp_path: Path) -> None:
    work_dir = tmp_path / "w"
    snapshot = take_snapshot(write(tmp_path / "t", {"a.parquet": pa.table({"x": [1], "y": [2]})}))
    snapshot.save(str(work_dir))
    file = work_dir / "snapshots" / f"{snapshot.id}.arrow"
    artifact = content_store.find(str(work_dir), f"snapshots/{snapshot.id}.arrow")
    content = bytearray(file.read_bytes())
    content[artifact.starts[-1] - 20] ^= 1  # in the last column's part
    file.write_bytes(content)
    loaded = Snapshot.load(str(work_dir), snapshot.id)
    assert loaded.column_facts("x").equals(snapshot.column_facts("x"))
    with pytest.raises(CorruptFileError, match="does not hold the bytes that were written"):
        loaded.column_facts("y")
    snapshot.save(str(work_dir))  # a whole one would be left alone
    assert Snapshot.load(str(work_dir), snapshot.id).column_facts("y")[0].as_py()["max"] == 2


def test_a_key_that_files_hold_keeps_its_facts_when_folders_come_and_go(tmp_path: Path, parsed: list[str]) -> None:
    root, work_dir = tmp_path / "t", str(tmp_path / "w")
    put(root / "plain.parquet", pa.table({"k": [5], "x": [1]}))
    for change in ("none", "added", "removed"):
        if change == "added":
            put(root / "k=1" / "keyed.parquet", pa.table({"x": [1]}))
        elif change == "removed":
            shutil.rmtree(root / "k=1")
        parsed.clear()
        found = take_snapshot(str(root), work_dir=work_dir)
        assert parsed == {"none": ["plain.parquet"], "added": ["keyed.parquet"], "removed": []}[change]
        assert sorted(found.file_columns) == ["k", "x"]
        same(found, take_snapshot(str(root)))


def test_files_are_read_again_for_a_key_that_was_the_paths_alone(tmp_path: Path, parsed: list[str]) -> None:
    root, work_dir = tmp_path / "t", str(tmp_path / "w")
    put(root / "k=1" / "keyed.parquet", pa.table({"k": [1], "x": [1]}))
    take_snapshot(str(root), work_dir=work_dir)
    put(root / "plain.parquet", pa.table({"k": [5], "x": [1]}))
    parsed.clear()
    found = take_snapshot(str(root), work_dir=work_dir)
    assert sorted(parsed) == ["keyed.parquet", "plain.parquet"]
    same(found, take_snapshot(str(root)))


def test_other_schema_rules_reuse_the_footers(tmp_path: Path, parsed: list[str]) -> None:
    root, work_dir = tmp_path / "t", str(tmp_path / "w")
    put(root / "k=01" / "a.parquet", pa.table({"x": pa.array([1, 300], pa.int16()), "t": ["a", "b"]}))
    narrow = take_snapshot(str(root), work_dir=work_dir)
    rules = SchemaRules(columns={"x": pa.float64()})
    parsed.clear()
    wide = take_snapshot(str(root), rules=rules, partitions={"k": "string"}, work_dir=work_dir)
    assert parsed == []
    assert wide.id != narrow.id
    same(wide, take_snapshot(str(root), rules=rules, partitions={"k": "string"}))
    assert wide.partition_of(0) == (("k", "01"),)
    parsed.clear()
    same(take_snapshot(str(root), work_dir=work_dir), narrow)
    assert parsed == []


def test_any_map_gives_the_same_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footer_tasks, "_TASK_FILES", 3)
    monkeypatch.setattr(footer_tasks, "_WAVE_TASKS", 2)
    for index in range(20):
        put(tmp_path / f"k={index % 4}" / f"{index}.parquet", KINDS[index % len(KINDS)], row_group_size=1)
    waves: list[int] = []

    def run(function: Callable[[Any], Any], tasks: list[Any]) -> list[Any]:
        waves.append(len(tasks))
        return [function(task) for task in tasks]

    found = take_snapshot(str(tmp_path), map=run)
    assert waves == [2, 2, 2, 1]
    monkeypatch.undo()
    same(found, take_snapshot(str(tmp_path)))


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "drop"]), st.integers(0, 5), st.sampled_from(range(len(KINDS)))), max_size=5
)


@examples(40, by_day=6)
@given(st.lists(STEPS, min_size=2, max_size=4), st.booleans())
def test_reused_footers_change_no_snapshot(tmp_path_factory: pytest.TempPathFactory, runs: Any, keyed: bool) -> None:
    """Files are added, changed and deleted between runs; every snapshot is the one that a first run would take."""
    folder = tmp_path_factory.mktemp("remembered")
    root, work_dir = folder / "t", str(folder / "w")
    put(root / "first.parquet", KINDS[0])
    age = 0
    for steps in runs:
        for step, number, kind in steps:
            path = root / (f"k={number % 2}" if keyed else "plain") / f"{number}.parquet"
            if step == "drop":
                path.unlink(missing_ok=True)
            else:
                age += 10
                put(path, KINDS[kind], age=age, row_group_size=1)
        same(take_snapshot(str(root), work_dir=work_dir), take_snapshot(str(root)))
    shutil.rmtree(folder)
