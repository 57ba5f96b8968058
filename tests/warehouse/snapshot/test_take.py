"""A snapshot is taken of listed files: corrupt ones left out, keys typed, contradictions refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest
from warehouse_samples import sample, write

from feedline.errors import CorruptFileError, TableError, TableNotFoundError
from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.snapshot.take import snapshot_of, take_snapshot


def test_a_changed_kind_names_column_and_files(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.parquet": pa.table({"x": [1]}), "b.parquet": pa.table({"x": ["1"]})})
    with pytest.raises(
        TableError, match=r"column 'x' changed its kind .* got int64 in .*a.parquet and string in .*b.parquet"
    ):
        take_snapshot(root)


def test_a_key_that_is_also_in_the_files_wins_with_a_warning(tmp_path: Path) -> None:
    root = write(tmp_path, {"k=1/a.parquet": pa.table({"k": ["other"], "x": [1]})})
    with pytest.warns(UserWarning, match="has k both as partition key and as a column in its files"):
        snapshot = take_snapshot(root)
    assert snapshot.schema == pa.schema({"x": pa.int64(), "k": pa.string()})
    assert snapshot.partition_of(0) == (("k", "1"),)


def test_a_key_takes_the_type_that_its_column_has(tmp_path: Path) -> None:
    keyed = pa.table({"k": pa.array([7], pa.int16()), "x": [1]})
    root = write(tmp_path, {"k=01/a.parquet": keyed, "k=2/b.parquet": keyed})
    with pytest.warns(UserWarning, match="the partition key is used"):
        snapshot = take_snapshot(root)
    assert snapshot.schema.field("k").type == pa.int16()
    assert [snapshot.partition_of(file) for file in (0, 1)] == [(("k", 1),), (("k", 2),)]
    with pytest.warns(UserWarning, match="the partition key is used"):
        declared = take_snapshot(root, partitions={"k": "string"})  # what a person says counts for more
    assert declared.partition_of(0) == (("k", "01"),)


def test_files_left_out_leave_the_rest_as_it_was(tmp_path: Path) -> None:
    tables = {"k=1/a.parquet": sample(25, 1), "k=1/b.parquet": sample(7, 2), "k=2/c.parquet": sample(30, 3)}
    root = write(tmp_path, tables, row_group_size=10)
    whole = take_snapshot(root)
    left = whole.without({"k=1/b.parquet"})
    (tmp_path / "k=1" / "b.parquet").unlink()
    fresh = take_snapshot(root)
    assert left.id == fresh.id != whole.id
    assert left.files.equals(fresh.files)
    assert left.row_groups.equals(fresh.row_groups)
    assert all(left.column_facts(name).equals(fresh.column_facts(name)) for name in fresh.file_columns)
    with pytest.raises(TableError, match="has no file left: got 2 to leave out of 2"):
        left.without({"k=1/a.parquet", "k=2/c.parquet", "other"})


def test_a_corrupt_footer_may_be_reported_and_its_file_left_out(tmp_path: Path) -> None:
    root = write(tmp_path, {"k=1/a.parquet": sample(25, 1), "k=1/b.parquet": sample(7), "k=2/c.parquet": sample(3)})
    file = tmp_path / "k=1" / "b.parquet"
    file.write_bytes(b"no Parquet at all")
    bad: list[tuple[str, CorruptFileError]] = []
    snapshot = snapshot_of(discover(root), on_bad=lambda path, error: bad.append((path, error)))
    assert [path for path, _ in bad] == ["k=1/b.parquet"]
    assert str(file) in str(bad[0][1])
    assert snapshot.files["path"].to_pylist() == ["k=1/a.parquet", "k=2/c.parquet"]
    file.unlink()
    assert snapshot.id == take_snapshot(root).id
    for name in snapshot.files["path"].to_pylist():
        (tmp_path / name).write_bytes(b"no Parquet at all")
    with pytest.raises(TableError, match=r"in each of 2\. The first: .*/k=1/a.parquet is not Parquet: "):
        snapshot_of(discover(root), on_bad=lambda path, error: bad.append((path, error)))


def test_a_listing_without_files_is_refused(tmp_path: Path) -> None:
    listing = discover(write(tmp_path, {"a.parquet": sample(3)}))
    with pytest.raises(TableNotFoundError, match="is empty: expected at least one file"):
        snapshot_of(dataclasses.replace(listing, files=listing.files.slice(0, 0)))
