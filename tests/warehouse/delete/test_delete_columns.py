"""Deletions from tables with column files: rows and columns that stay are those that DuckDB leaves, at any moment."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from column_sources import DAYS, SeededValues, add_seeded, seeded, write_days
from deleted_rows import delete_from, dying_deletion
from drawn_examples import examples
from forked import forked
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline import Table
from feedline.errors import TableChangedError, TableError, TableNotFoundError
from feedline.warehouse.columns.change import add_columns, drop_columns
from feedline.warehouse.columns.commit import HIDDEN
from feedline.warehouse.delete import rewrite
from feedline.warehouse.delete.deletion_log import logged_files
from feedline.warehouse.snapshot.take import take_snapshot

KINDS = {"x": "int", "y": "string", "z": "list", "f": "flag"}
CONDITIONS = [  # in the language of expressions, and in SQL; of the columns that are there
    ("id % 5 == 0", "id % 5 = 0", ""),
    ("id < 70", "id < 70", ""),
    ('ds == "2026-01-02"', "ds = date '2026-01-02'", ""),
    ("x > 300", "x > 300", "x"),
    ("x is None", "x is null", "x"),
    ('y in ["2-3", "1-7"] or id == 5', "y in ('2-3', '1-7') or id = 5", "y"),
    ("z.list.len() == 2 and price < 100", "len(z) = 2 and price < 100", "z"),
    ("f", "f", "f"),
]
CHANGES = st.one_of(
    st.tuples(
        st.just("add"),
        st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2, unique=True),
        st.sets(st.sampled_from(DAYS), min_size=1),
        st.integers(1, 3),
    ),
    st.tuples(st.just("drop"), st.sampled_from(sorted(KINDS))),
    st.tuples(st.just("delete"), st.sampled_from(CONDITIONS)),
)


def left(rows: pa.Table, sql: str) -> pa.Table:
    """What DuckDB leaves of rows."""
    return duckdb.sql(f"select * from rows where not coalesce(({sql}), false)").to_arrow_table()


class Oracle:
    """The rows of a table in memory, whose columns are added by numpy, and whose rows DuckDB deletes."""

    def __init__(self, root: Path) -> None:
        self.rows = pa.concat_tables(
            pq.read_table(path, partitioning=None).append_column("ds", pa.array([path.parent.name[3:]] * size))
            for path in sorted(root.glob("ds=*/*.parquet"))
            for size in [pq.read_metadata(path).num_rows]
        )
        self.rows = self.rows.set_column(3, "ds", self.rows["ds"].cast(pa.date32()))

    def add(self, name: str, days: set[str], seed: int) -> None:
        ids = self.rows["id"].to_numpy()
        new = seeded(ids, KINDS[name], seed)
        chosen = pa.array(np.isin([str(day) for day in self.rows["ds"].to_pylist()], sorted(days)))
        old = self.rows[name] if name in self.rows.column_names else pa.nulls(len(ids), new.type)
        values = [n if c else o for c, n, o in zip(chosen.to_pylist(), new.to_pylist(), old.to_pylist(), strict=True)]
        self.drop(name)
        self.rows = self.rows.append_column(name, pa.array(values, new.type))

    def drop(self, name: str) -> None:
        if name in self.rows.column_names:
            self.rows = self.rows.drop_columns(name)

    def delete(self, sql: str) -> int:
        before = len(self.rows)
        self.rows = left(self.rows, sql)
        return before - len(self.rows)


def assert_same_rows(got: pa.Table, expected: pa.Table) -> None:
    assert sorted(got.column_names) == sorted(expected.column_names)
    got, expected = got.sort_by("id"), expected.sort_by("id")
    for name in expected.column_names:
        assert got[name].to_pylist() == expected[name].to_pylist(), name


def column_files(root: Path) -> list[Path]:
    return sorted((root / "_columns" / "files").rglob("*.columns"))


def assert_aligned(root: Path) -> None:
    """No column file, read or not, holds other rows than its base file: what was deleted is nowhere."""
    for path in column_files(root):
        base = root / "/".join(path.relative_to(root / "_columns" / "files").parts[1:]).removesuffix(".columns")
        mine, its = pq.read_metadata(path), pq.read_metadata(base)
        groups = range(its.num_row_groups)
        assert [mine.row_group(group).num_rows for group in groups] == [its.row_group(g).num_rows for g in groups]


def compare(root: Path, work_dir: str, changes: list[tuple]) -> None:
    oracle = Oracle(root)
    for change in changes:
        if change[0] == "add":
            _, names, days, seed = change
            days = days & {str(day) for day in oracle.rows["ds"].to_pylist()}
            if not days:
                continue
            where = f"ds in {sorted(days)}"
            add_columns(str(root), SeededValues(tuple((n, KINDS[n]) for n in names), seed), where=where, replaced=True)
            for name in names:
                oracle.add(name, days, seed)
        elif change[0] == "drop":
            if change[1] in oracle.rows.column_names:
                drop_columns(str(root), [change[1]])
                oracle.drop(change[1])
        elif change[1][2] in {"", *oracle.rows.column_names}:
            where, sql, _ = change[1]
            report = delete_from(root, where, verify=True)
            assert (report.rows, report.is_met) == (oracle.delete(sql), True)
            if not len(oracle.rows):
                assert not column_files(root)
                return
        assert_same_rows(Table(root).read(), oracle.rows)
        assert_aligned(root)
        kept, fresh = take_snapshot(str(root), work_dir=work_dir), take_snapshot(str(root))
        assert kept.id == fresh.id
        assert kept.row_groups.equals(fresh.row_groups)
    assert not (root / HIDDEN).exists()


@examples(9, by_day=3)
@given(changes=st.lists(CHANGES, min_size=2, max_size=4), rows=st.sampled_from([1, 64, 200]))
def test_what_stays_is_what_duckdb_leaves(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple], rows: int
) -> None:
    root = write_days(tmp_path_factory.mktemp("table"), rows=rows)
    compare(root, str(tmp_path_factory.mktemp("work")), [("add", ["x", "y"], set(DAYS), 1), *changes])


@pytest.mark.nightly
@settings(max_examples=60, deadline=None)
@given(changes=st.lists(CHANGES, min_size=2, max_size=8), rows=st.sampled_from([1, 64, 200]))
def test_what_stays_is_what_duckdb_leaves_after_many_changes(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple], rows: int
) -> None:
    root = write_days(tmp_path_factory.mktemp("table"), rows=rows)
    compare(root, str(tmp_path_factory.mktemp("work")), changes)


# -- one table --------------------------------------------------------------------------------------------------------

WHERE = 'x % 3 == 0 or ds == "2026-01-03"'
SQL = "x % 3 = 0 or ds = date '2026-01-03'"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table below, to copy."""
    root = write_days(tmp_path_factory.mktemp("kept") / "t")
    for name in "xyz":
        add_seeded(root, name, KINDS[name])
    add_seeded(root, "x", seed=2, where='ds == "2026-01-02"', replaced=True)
    drop_columns(str(root), ["z"])
    return root


@pytest.fixture
def table(tmp_path: Path, kept: Path) -> Path:
    """x in two versions, y, and z, which was dropped: the second day has four column files."""
    return Path(shutil.copytree(kept, tmp_path / "t"))


def test_row_groups_of_column_files_are_copied_too(tmp_path: Path) -> None:
    root = write_days(tmp_path / "t", rows=20_000, row_group_rows=5_000, days=DAYS[:1])
    add_seeded(root, "x")
    [old] = column_files(root)
    before, content = pq.read_metadata(old), old.read_bytes()
    report = delete_from(root, "x == 6001")
    [new] = column_files(root)
    after, now = pq.read_metadata(new), new.read_bytes()
    assert (report.rows, report.column_files_rewritten, report.column_files_removed) == (1, 1, 1)
    assert report.copied_bytes > report.encoded_bytes
    for group in (0, 2, 3):
        chunks = [side.row_group(group).column(0) for side in (before, after)]
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        sizes = [chunk.total_compressed_size for chunk in chunks]
        pages = [raw[start : start + size] for raw, start, size in zip((content, now), starts, sizes, strict=True)]
        assert pages[0] == pages[1]


def test_old_column_files_are_removed_and_logged(table: Path) -> None:
    rows, old = Table(table).read(), column_files(table)
    dry = delete_from(table, WHERE, dry_run=True)
    assert column_files(table) == old
    report = delete_from(table, WHERE, verify=True)
    assert (dry.column_files_rewritten, report.column_files_rewritten) == (4, 4)
    assert report.column_files_removed == len(old) == 10
    assert not set(old) & set(column_files(table))
    assert_same_rows(Table(table).read(), left(rows, SQL))
    log = json.loads(Path(report.log).read_text())
    assert {name for file in log["found"]["files"] for name in file["column_files"]} == {
        str(path.relative_to(table)) for path in old
    }
    assert {str(path) for path in old} < logged_files(str(table))  # whose entries leave caches
    assert not [path for path in (table / "_columns").rglob("*") if path.is_dir() and not list(path.iterdir())]


def test_files_without_such_rows_keep_their_column_files(table: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in column_files(table) if "ds=2026-01-02" not in str(path)}
    delete_from(table, 'ds == "2026-01-02" and x == 402')
    now = {path: path.stat().st_mtime_ns for path in column_files(table) if "ds=2026-01-02" not in str(path)}
    assert now == before


def test_all_rows_may_go_and_other_files_may_come_in_their_place(table: Path) -> None:
    other = table.parent / "other"
    shutil.copytree(table / "ds=2026-01-03", other)
    delete_from(table, 'ds == "2026-01-03"')
    shutil.move(other, table / "ds=2026-01-03")
    read = Table(table).read(where='ds == "2026-01-03"')
    assert len(read) == read["x"].null_count == 200
    add_seeded(table, "y", "string", where='ds == "2026-01-03"')
    read = Table(table).read(where='ds == "2026-01-03"')
    assert (read["x"].null_count, read["y"].null_count < 200) == (200, True)
    assert delete_from(table, "id >= 0", verify=True).is_met
    assert not column_files(table)


def test_a_base_file_that_was_rewritten_by_others_is_refused(table: Path) -> None:
    path = table / "ds=2026-01-01" / "part-0.parquet"
    pq.write_table(pq.read_table(path, partitioning=None).slice(1), path)
    with pytest.raises(TableChangedError, match="of another base file"):
        delete_from(table, WHERE)


def test_columns_that_are_added_meanwhile_stop_the_deletion(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, write = Table(table).read(), rewrite.write_without

    def add_first(*arguments: Any) -> Any:
        monkeypatch.setattr(rewrite, "write_without", write)
        add_seeded(table, "f", "flag")
        return write(*arguments)

    monkeypatch.setattr(rewrite, "write_without", add_first)
    with pytest.raises(TableError, match="was created by another run meanwhile"):
        delete_from(table, WHERE)
    assert_same_rows(Table(table).read().drop_columns("f"), rows)
    assert delete_from(table, WHERE, verify=True).is_met
    assert_same_rows(Table(table).read().drop_columns("f"), left(rows, SQL))
    assert_aligned(table)


# -- kills ------------------------------------------------------------------------------------------------------------


def by_day(rows: pa.Table) -> dict[str, pa.Table]:
    return {str(day): rows.filter(pc.equal(rows["ds"], day)) for day in rows["ds"].unique()}


def killed(table: Path, where: str, place: str, turn: int) -> None:
    process = forked(dying_deletion, str(table), where, place, turn)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    process.close()


OFTEN = [("log", 1), ("write", 2), ("commit", 1), ("move", 2), ("removal", 2)]
RARELY = [("write", 5), ("move", 1), ("move", 3), ("removal", 1), ("log", 2), ("release", 1), ("release", 2)]


@pytest.mark.parametrize(
    ("place", "turn"), [*OFTEN, *(pytest.param(*moment, marks=pytest.mark.nightly) for moment in RARELY)]
)
def test_a_killed_run_leaves_old_or_new_rows_of_each_file(table: Path, place: str, turn: int) -> None:
    rows = Table(table).read()
    before, after = by_day(rows), by_day(left(rows, SQL))
    killed(table, WHERE, place, turn)
    found = by_day(Table(table).read())
    assert after.keys() <= found.keys() <= before.keys()
    for day, of_day in found.items():
        assert of_day.equals(before[day]) or of_day.equals(after.get(day))
    report = delete_from(table, WHERE, verify=True)
    assert report.is_met
    assert_same_rows(Table(table).read(), left(rows, SQL))
    assert_aligned(table)
    assert not (table / HIDDEN).exists()


def test_another_deletion_may_follow_a_killed_one(table: Path) -> None:
    """The killed one has committed column files of which it has not replaced the base files."""
    rows = Table(table).read()
    killed(table, "x % 3 == 0", "move", 2)
    assert_same_rows(Table(table).read(), rows)
    delete_from(table, "id == 5", verify=True)
    delete_from(table, "y == '1-3'", verify=True)
    assert_same_rows(Table(table).read(), left(rows, "id = 5 or y = '1-3'"))
    assert_aligned(table)
    assert len(column_files(table)) == 6


def test_what_a_killed_run_has_left_of_a_table_without_rows_is_removed(table: Path) -> None:
    killed(table, "id >= 0", "removal", 4)
    assert len(column_files(table)) == 10
    with pytest.raises(TableNotFoundError):
        delete_from(table, "id >= 0")
    assert not column_files(table)
