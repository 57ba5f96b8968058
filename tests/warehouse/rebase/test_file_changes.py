"""Two snapshots are compared by files and partitions, whatever the types and spellings of keys."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.errors import StateError
from feedline.warehouse.rebase.file_changes import file_changes, same_filter, same_string, same_words
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot


def snapshot_with(root: Path, name: str, rows: int, **declared: str) -> Snapshot:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": range(rows)}), path)
    return take_snapshot(str(root), partitions=declared)


def moved(snapshot: Snapshot) -> Snapshot:
    """As of a table whose log, and not whose paths, names the keys' values."""
    names = pa.array([f"{place}.parquet" for place in range(len(snapshot.files))])
    files = snapshot.files.set_column(0, "path", names)
    return Snapshot(
        **{
            name: getattr(snapshot, name)
            for name in Snapshot.__slots__
            if name not in ("files", "recent_files", "__weakref__")
        },
        files=files,
    )


def test_keys_of_another_type_that_paths_do_not_spell(tmp_path: Path):
    was = snapshot_with(tmp_path / "t", "k=1/a.parquet", 3, k="int")
    now = snapshot_with(tmp_path / "t", "k=1/a.parquet", 4, k="string")
    assert file_changes(was, now).old.keys() == file_changes(was, now).new.keys() == {(("k", "1"),)}
    with pytest.raises(StateError, match="'k' changed its type, and paths do not spell its values"):
        file_changes(moved(was), moved(now))
    again = snapshot_with(tmp_path / "t", "k=1/a.parquet", 5, k="int")
    assert file_changes(moved(was), moved(again)).old == {(("k", "1"),): [0]}


def test_nulls_and_strings_of_keys(tmp_path: Path):
    was = snapshot_with(tmp_path / "t", "k=__HIVE_DEFAULT_PARTITION__/a.parquet", 3)
    now = snapshot_with(tmp_path / "t", "k=None/a.parquet", 3)
    assert file_changes(was, now).new == {(("k", "None"),): [0]}
    later = snapshot_with(tmp_path / "t", "k=__HIVE_DEFAULT_PARTITION__/a.parquet", 4)
    assert list(file_changes(was, later).old) == [(("k", None),)]
    assert (("k", None),) in file_changes(was, later).new


def test_equivalent_types():
    assert same_string(pa.int8(), pa.int64())
    assert same_string(pa.decimal128(4, 2), pa.decimal128(9, 2))
    assert not same_string(pa.decimal128(4, 2), pa.decimal128(9, 3))
    assert not same_string(pa.int64(), pa.string())
    assert same_filter(pa.int8(), pa.uint32())
    assert same_filter(pa.list_(pa.string()), pa.large_list(pa.large_string()))
    assert not same_filter(pa.float32(), pa.float64())
    assert not same_filter(pa.timestamp("ms"), pa.timestamp("us"))
    assert same_words(pa.float32(), pa.float64())
    assert same_words(pa.timestamp("ms"), pa.timestamp("us"))
    assert same_words(pa.null(), pa.string())
    assert not same_words(pa.int64(), pa.string())
