"""`optimize` keeps every row, puts it where it was asked to, in units that fit memory, and says what it did."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optimized import (
    CLUSTERED,
    assert_clustered,
    events,
    files_of,
    in_arrow,
    in_duckdb,
    in_polars,
    made,
    multiset,
    rewrite,
    warehouse,
)
from warehouse_samples import sample

from feedline import Table
from feedline.errors import TableChangedError, TableError, TableNotFoundError
from feedline.native import parquet as native
from feedline.progress import Progress, on_progress
from feedline.warehouse.optimize import rewrite as rewriting
from feedline.warehouse.optimize.optimize import join_buckets
from feedline.warehouse.parquet.decode import DECODER_VARIABLE
from feedline.warehouse.parquet.encodings import GOALS, Goal
from feedline.warehouse.parquet.writer import NOTE_KEY, TableWriter


@pytest.mark.parametrize("memory_bytes", [pytest.param(None, marks=pytest.mark.nightly), 24_000])
def test_rows_are_clustered_and_complete_for_three_engines(tmp_path: Path, memory_bytes: int | None) -> None:
    source, target = warehouse(tmp_path / "in", rows=300), tmp_path / "out"
    before = {path: path.read_bytes() for path in files_of(source)}
    report = rewrite(source, target, **CLUSTERED, memory_bytes=memory_bytes)
    assert_clustered(target)
    units = {path.name[:9] for path in files_of(target)}
    assert len(units) == 1 if memory_bytes is None else len(units) > 2
    expected = multiset(in_arrow(source))
    for read in (in_arrow, in_duckdb, in_polars):
        assert multiset(read(target)) == multiset(read(source)), read
    assert multiset(in_arrow(target)) == expected
    assert in_arrow(target).schema.types == in_arrow(source).cast(in_arrow(target).schema).schema.types
    assert {path: path.read_bytes() for path in files_of(source)} == before
    assert sorted(path.name for path in target.iterdir()) == sorted(path.name for path in source.iterdir())
    assert (report.written, report.finished, report.taken_away) == (3, 0, 0)
    sides = [f"select * from read_parquet('{root}/*/*.parquet')" for root in (source, target)]
    different = [duckdb.sql(f"{one} except all {other}").fetchall() for one, other in (sides, sides[::-1])]
    assert different == [[], []]


@pytest.mark.parametrize("file_bytes", [1 << 30, 6_000])
def test_order_is_kept_and_files_are_compacted(tmp_path: Path, file_bytes: int) -> None:
    source, target = warehouse(tmp_path / "in", rows=700), tmp_path / "out"
    report = rewrite(source, target, row_group_rows=300, file_bytes=file_bytes)
    assert Table(str(target)).read().to_pylist() == Table(str(source)).read().to_pylist()
    files = files_of(target)
    if file_bytes > 1 << 20:
        assert len(files) == report.after.files == 3
        groups = [pq.read_metadata(files[0]).row_group(index).num_rows for index in range(7)]
        assert groups == [300] * 7
    else:
        assert len(files) > 9
        assert all(path.stat().st_size < 6_000 or pq.read_metadata(path).num_row_groups == 1 for path in files)
    assert report.before.files == 9


def test_every_kind_of_column_and_partition_comes_through(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    folders = ("country=d%2Fe/hour=7", "country=__HIVE_DEFAULT_PARTITION__/hour=11", "country=x y/hour=7")
    for number, folder in enumerate(folders):
        (source / folder).mkdir(parents=True)
        pq.write_table(sample(90, seed=number), source / folder / "a.parquet")
        pq.write_table(sample(80, seed=9 + number).drop_columns("flag"), source / folder / "b.parq")
    (source / "_temporary").mkdir()
    rewrite(source, target, cluster_by=("word",), sort_by=("i64", "ms"))
    assert sorted(str(path.parent.relative_to(target)) for path in files_of(target)) == sorted(folders)
    ours, theirs = Table(str(target)).read(), Table(str(source)).read()
    assert ours.drop_columns("ids").schema.equals(theirs.drop_columns("ids").schema)
    assert ours.schema.field("ids").type == pa.list_(pa.field("element", pa.int64(), nullable=False))
    assert multiset(ours) == multiset(theirs)
    engines = "i64", "f32", "text", "ids", "day", "price", "flag"
    assert multiset(in_polars(target).select(engines)) == multiset(theirs.select(engines))
    assert multiset(in_duckdb(target).select(engines)) == multiset(theirs.select(engines))


def test_a_table_without_partitions_and_one_file(tmp_path: Path) -> None:
    pq.write_table(events(1000), tmp_path / "one.parquet")
    rewrite(tmp_path / "one.parquet", tmp_path / "out", **CLUSTERED)
    assert_clustered(tmp_path / "out")
    assert multiset(in_arrow(tmp_path / "out")) == multiset(events(1000))
    again = rewrite(tmp_path / "one.parquet", tmp_path / "out", **{**CLUSTERED, "row_group_rows": 100})
    assert (again.written, again.after.row_groups) == (1, 10)
    assert multiset(in_arrow(tmp_path / "out")) == multiset(events(1000))


def test_finished_partitions_are_skipped_changed_ones_rewritten_and_old_ones_removed(tmp_path: Path) -> None:
    source, target = warehouse(tmp_path / "in"), tmp_path / "out"
    rewrite(source, target, **CLUSTERED)
    before = {path: path.stat().st_mtime_ns for path in files_of(target)}
    again = rewrite(source, target, **CLUSTERED)
    assert (again.written, again.finished, again.choices) == (0, 3, ())
    assert {path: path.stat().st_mtime_ns for path in files_of(target)} == before
    pq.write_table(events(50, seed=77), source / "ds=2026-01-02" / "1.parquet")
    for path in files_of(source / "ds=2026-01-03"):
        path.unlink()
    pq.write_table(events(60, seed=78), made(source / "ds=2026-01-04") / "1.parquet")
    third = rewrite(source, target, **CLUSTERED)
    assert (third.written, third.finished, third.taken_away) == (2, 1, 1)
    assert multiset(in_arrow(target)) == multiset(in_arrow(source))
    assert not (target / "ds=2026-01-03").exists()
    kept = files_of(target / "ds=2026-01-01")
    assert {path: path.stat().st_mtime_ns for path in kept}.items() <= before.items()
    other = rewrite(source, target, **{**CLUSTERED, "goal": "size"})
    assert other.written == 3
    (files_of(target / "ds=2026-01-04")[0]).unlink()
    assert rewrite(source, target, **{**CLUSTERED, "goal": "size"}).written == 1
    assert multiset(in_arrow(target)) == multiset(in_arrow(source))


@pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")
@pytest.mark.parametrize("goal", GOALS)
def test_finished_partitions_measured_with_another_decoder_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goal: Goal
) -> None:
    source, target = warehouse(tmp_path / "in", rows=50), tmp_path / "out"
    monkeypatch.setenv(DECODER_VARIABLE, "arrow")
    assert (rewrite(source, target, goal=goal).outdated, rewrite(source, target, goal=goal).outdated) == (0, 0)
    note = json.loads(pq.read_metadata(files_of(target)[0]).metadata[NOTE_KEY])
    assert note["decoder"] == f"pyarrow {pa.__version__}"
    monkeypatch.delenv(DECODER_VARIABLE)
    again = rewrite(source, target, goal=goal)
    assert (again.written, again.outdated) == (0, 0 if goal == "size" else 3)
    assert again.decoder == f"kernel {native.VERSION}"


def test_targets_that_are_not_ours_are_refused(tmp_path: Path) -> None:
    source = warehouse(tmp_path / "in", days=1)
    for target in (source, source / "sub", tmp_path):
        with pytest.raises(TableError, match=r"source and target overlap: got .*Name another target"):
            rewrite(source, target)
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(TableError, match="overlap"):
        rewrite(source, tmp_path / "link" / "x")
    for name, write in (
        ("notes.txt", lambda path: path.write_text("mine")),
        ("x.parquet", lambda path: pq.write_table(events(5), path)),
    ):
        folder = made(tmp_path / f"of {name}")
        write(folder / name)
        with pytest.raises(TableError, match=rf"is not empty: it holds {name}, which feedline optimize did not write"):
            rewrite(source, folder)
        assert [path.name for path in folder.iterdir()] == [name]
    (tmp_path / "file").write_text("x")
    with pytest.raises(TableError, match="is not empty: it holds a file"):
        rewrite(source, tmp_path / "file")
    with pytest.raises(TableNotFoundError, match="is empty"):
        rewrite(made(tmp_path / "nothing"), tmp_path / "out")


def test_a_full_disk_is_an_error_that_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = warehouse(tmp_path / "in"), tmp_path / "out"
    write, written = TableWriter._write_group, []

    def full(self: TableWriter, rows: int) -> None:
        written.append(rows)
        if len(written) > 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, rows)

    monkeypatch.setattr(TableWriter, "_write_group", full)
    with pytest.raises(TableError, match=r"out has no space left: .*make room and run the same command again"):
        rewrite(source, target, **CLUSTERED)
    assert len(files_of(target)) == 1
    assert not (target / "_feedline").exists()
    monkeypatch.undo()
    assert rewrite(source, target, **CLUSTERED).written == 2
    assert multiset(in_arrow(target)) == multiset(in_arrow(source))


def test_a_source_that_changes_meanwhile_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = warehouse(tmp_path / "in"), tmp_path / "out"
    rewritten: Callable[..., Any] = rewriting.rewrite_units

    def run(function: Callable[[Any], Any], tasks: list[Any]) -> list[Any]:
        if function is rewritten:
            pq.write_table(events(10), source / "ds=2026-01-02" / "0.parquet")
        return [function(task) for task in tasks]

    with pytest.raises(TableChangedError, match=r"ds=2026-01-02/0\.parquet changed"):
        rewrite(source, target, **CLUSTERED, map=run)
    rewrite(source, target, **CLUSTERED)
    assert multiset(in_arrow(target)) == multiset(in_arrow(source))


def test_table_optimize_takes_names_as_strings_and_lists(tmp_path: Path) -> None:
    source = warehouse(tmp_path / "in", days=2)
    said: list[Progress] = []
    with on_progress(said.append):
        report = Table(source).optimize(
            tmp_path / "out", cluster_by="session", sort_by=["ts"], order=["word"], goal="size", row_group_rows=512,
            projection="price",
        )  # fmt: skip
    assert_clustered(tmp_path / "out")
    assert report.projection == ("price",)
    assert report.columns[0] == "word"
    last = {each.phase: (each.done, each.total, each.unit) for each in said}
    rows = report.before.rows
    assert (last["measuring encodings"], last["writing"]) == ((7, 7, "columns"), (rows, rows, "rows"))


def test_lists_of_files_and_globs_are_tables_too(tmp_path: Path) -> None:
    source = warehouse(tmp_path / "in", days=2)
    some = [str(path) for path in files_of(source / "ds=2026-01-02")]
    for names, target in ((some, tmp_path / "in" / "listed"), (f"{source}/ds=*/1.parquet", tmp_path / "globbed")):
        Table(names).optimize(target, cluster_by="session", threads=1)
        assert multiset(Table(target).read()) == multiset(Table(names).read())


def test_small_partitions_are_merged_or_kept(tmp_path: Path) -> None:
    source = warehouse(tmp_path / "in", rows=50)
    for choice, files in (("merge", 3), ("keep", 9)):
        target = tmp_path / choice
        rewrite(source, target, **CLUSTERED, small_partitions=choice)
        assert len(files_of(target)) == files
        assert multiset(in_arrow(target)) == multiset(in_arrow(source))
    big = rewrite(source, tmp_path / "big", **{**CLUSTERED, "row_group_rows": 150}, small_partitions="keep")
    assert big.after.files == 3


def test_partitions_within_partitions_and_without_rows(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    for number, folder in enumerate(("a=1", "a=1/b=2", "a=1/b=2/c=3", "a=2/b=1", ".")):
        pq.write_table(events(200, seed=number), made(source / folder) / "x.parquet")
    pq.write_table(events(0), made(source / "a=5") / "x.parquet")
    expected = multiset(Table(str(source)).read())
    for settings in (CLUSTERED, {**CLUSTERED, "goal": "size", "small_partitions": "keep"}, CLUSTERED):
        report = rewrite(source, target, **settings, threads=2)
        assert report.written == 6
        assert multiset(Table(str(target)).read()) == expected
        assert rewrite(source, target, **settings).finished == 6
    for path in files_of(source / "a=1" / "b=2"):
        path.unlink()
    assert rewrite(source, target, **CLUSTERED).taken_away == 2
    assert multiset(Table(str(target)).read()) == multiset(Table(str(source)).read())


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.integers(1, 40))
def test_buckets_are_joined_while_they_fit(sizes: list[int], limit: int) -> None:
    joined = join_buckets(sizes, limit)
    assert [bucket for first, stop in joined for bucket in range(first, stop)] == list(range(len(sizes)))
    for first, stop in joined:
        assert sum(sizes[first:stop]) <= limit or np.count_nonzero(sizes[first:stop]) == 1
    for (first, stop), (_, end) in pairwise(joined):
        assert sum(sizes[first:stop]) + next(size for size in sizes[stop:end]) > limit
