"""Tables are sampled whatever is wrong with some of their files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.errors import ExpressionError, SpecError, TableError, TableNotFoundError
from feedline.progress import Progress, on_progress
from feedline.workbench.profile.table_sample import ProfileOptions, TableSample, sample_table, unlike_files


def write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def sample(table: Path, **options: object) -> TableSample:
    return sample_table(str(table), ProfileOptions(**options))


def test_corrupt_files_are_left_out(tmp_path: Path):
    write(tmp_path / "a.parquet", pa.table({"x": [1, 2]}))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 this is no footer PAR1")
    found = sample(tmp_path)
    assert found.sample.rows["x"].to_pylist() == [1, 2]
    [(path, reason)] = found.skipped
    assert path == "b.parquet"
    assert "footer" in reason


def test_files_of_another_kind_are_left_out(tmp_path: Path):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.parquet", pa.table({"x": [1]}))
    write(tmp_path / "c.parquet", pa.table({"x": [{"y": 1}]}))
    found = sample(tmp_path)
    assert found.sample.rows.num_rows == 2
    assert [path for path, _ in found.skipped] == ["c.parquet"]


def test_names_that_come_twice_leave_no_columns(tmp_path: Path):
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    write(tmp_path / "a.parquet", twice)
    with pytest.raises(TableError, match="x"):
        sample(tmp_path)
    write(tmp_path / "b.parquet", pa.table({"x": [1]}))
    assert sample(tmp_path).sample.rows.num_rows == 1


def test_only_keys_leave_no_columns(tmp_path: Path):
    write(tmp_path / "ds=1" / "a.parquet", pa.table({"ds": [1, 1]}))
    with pytest.raises(TableError, match="no column"):
        sample(tmp_path)


def test_a_key_that_is_a_column_too_is_a_warning(tmp_path: Path):
    write(tmp_path / "ds=1" / "a.parquet", pa.table({"x": [5], "ds": [2]}))
    found = sample(tmp_path)
    assert "partition key" in found.warnings[0]
    assert found.sample.rows["ds"].to_pylist() == [1]


def test_columns_are_those_chosen_and_the_label(tmp_path: Path):
    write(tmp_path / "a.parquet", pa.table({"x": [1], "y": [0], "z": [2]}))
    assert sample(tmp_path, columns=("z",), label="y").sample.rows.column_names == ["y", "z"]
    with pytest.raises(SpecError, match="zz"):
        sample(tmp_path, columns=("zz",))
    with pytest.raises(ExpressionError):
        sample(tmp_path, where="nothing > 1")


def test_nothing_is_an_error(tmp_path: Path):
    with pytest.raises(TableNotFoundError):
        sample(tmp_path / "gone")


def test_formats_are_named(tmp_path: Path):
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(str(tmp_path / "delta"), pa.table({"x": [1, 2, 3]}))
    write(tmp_path / "hive" / "a.parquet", pa.table({"x": [1]}))
    assert sample(tmp_path / "delta").format == "delta"
    assert sample(tmp_path / "delta", version=0).format == "delta"
    assert sample(tmp_path / "hive").format == "hive"
    (tmp_path / "list.json").write_text(f'["{tmp_path}/hive/a.parquet"]')
    assert sample(tmp_path / "list.json", format="manifest").format == "manifest"


def test_phases_are_reported(tmp_path: Path):
    write(tmp_path / "a.parquet", pa.table({"x": [1]}))
    seen: list[Progress] = []
    with on_progress(seen.append):
        sample_table(str(tmp_path), ProfileOptions())
    assert list(dict.fromkeys(each.phase for each in seen))[-2:] == ["reading footers", "sample"]
    assert (seen[-1].done, seen[-1].total) == (1, 1)


@pytest.mark.parametrize(
    "files",
    [
        ["user item clicked", "user item clicked price shop"],  # grown
        ["user item clicked", "user item clicked price", "item price shop"],  # by steps, the first of which went
        ["item price shop", "user item clicked", "user item clicked price"],
        ["user item clicked", "user item device"],  # one renamed
        ["user"],
    ],
)
def test_columns_that_grew_over_time_are_of_one_table(tmp_path: Path, files: list[str]):
    for number, names in enumerate(files):
        write(tmp_path / f"{number}.parquet", pa.table({name: [number] for name in names.split()}))
    assert unlike_files(sample(tmp_path).snapshot) is None


def test_types_that_widened_are_of_one_table(tmp_path: Path):
    write(tmp_path / "a.parquet", pa.table({"x": pa.array([1], pa.int32()), "y": pa.array([1.0], pa.float32())}))
    write(tmp_path / "b.parquet", pa.table({"x": [1], "y": [1.0]}))
    found = sample(tmp_path)
    assert (found.contradiction, unlike_files(found.snapshot)) == (None, None)


def test_files_of_several_tables_are_told_apart(tmp_path: Path):
    kinds = ("user item clicked", "user age country", "item price shop", "a b c", "d e f")
    for number, names in enumerate(kinds):
        for part in range(number + 1):
            table = pa.table({name: [number] for name in names.split()})
            write(tmp_path / f"{number}-{part}.parquet", table)
    write(tmp_path / "_hidden.parquet", pa.table({"other": [1]}))
    assert unlike_files(sample(tmp_path).snapshot) == (
        "'0-0.parquet'; '1-0.parquet' and '1-1.parquet'; '2-0.parquet' and '2-1.parquet' (of 3 files); "
        "'3-0.parquet' and '3-1.parquet' (of 4 files); and 1 more, which share only 'item', 'user'"
    )
    assert unlike_files(sample(tmp_path / "[23]*.parquet").snapshot) == (
        "'2-0.parquet' and '2-1.parquet' (of 3 files); '3-0.parquet' and '3-1.parquet' (of 4 files), "
        "which share no column"
    )


def test_a_manifest_of_several_tables_is_looked_at_and_a_log_is_one(tmp_path: Path):
    write(tmp_path / "a.parquet", pa.table({"x": [1], "y": [1]}))
    write(tmp_path / "b.parquet", pa.table({"x": [1], "z": [1]}))
    (tmp_path / "files.json").write_text('["a.parquet", "b.parquet"]')
    snapshot = sample(tmp_path / "files.json", format="manifest").snapshot
    assert "share only 'x'" in str(unlike_files(snapshot))
    assert unlike_files(replace(snapshot, logged=True)) is None


def test_the_error_of_files_that_contradict_each_other_is_held(tmp_path: Path):
    write(tmp_path / "a.parquet", pa.table({"x": [1], "y": [1]}))
    write(tmp_path / "b.parquet", pa.table({"x": ["1"], "y": [1]}))
    found = sample(tmp_path)
    assert "column 'x' changed its kind between files" in str(found.contradiction)
    assert len(found.skipped) == 1
