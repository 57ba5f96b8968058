"""What `optimize` stores in footers holds after a deletion: groups stored once per run, and the index of histories."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deleted_rows import delete_from, files_below
from event_tables import document, event_table, laid_out, lists_of, row_table, seen_by, write
from hypothesis import given
from hypothesis import strategies as st
from optimized import CLUSTERED, assert_clustered, multiset, rewrite, warehouse

from feedline import Pipeline, Table
from feedline.errors import TableError
from feedline.warehouse.optimize.landing import target_at
from feedline.warehouse.parquet.dedup_columns import RowGroupRuns, dedup_table, flag_column, keep_rows
from feedline.warehouse.parquet.history_note import NOTE_KEY, HistoryNote

GROUPS = (("session", ("session", "word", "ids")), ("price", ("price",)))


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40))
def test_rows_of_runs_that_stay_have_the_values_of_their_runs(rows: list[tuple[int, bool]]) -> None:
    values = [number for number, _ in rows]
    keep = np.array([stays for _, stays in rows], np.bool_)
    plain = pa.table(
        {
            "a": pa.array([None if each == 2 else each for each in values], pa.int64()),
            "b": pa.array([[each] * each for each in values], pa.list_(pa.int64())),
            "s": pa.array([{"x": each} for each in values], pa.struct([pa.field("x", pa.int64(), nullable=False)])),
            "row": np.arange(len(rows)),
        }
    )
    groups = {"g": ["a", "b", "s"]}
    stored, _ = dedup_table(plain, groups)
    kept, runs = keep_rows(stored, groups, keep)
    flags = kept[flag_column("g")].to_numpy()
    assert runs["g"] == RowGroupRuns.of(flags)
    assert not len(flags) or flags[0]
    starts = pa.array(np.maximum.accumulate(np.where(flags, np.arange(len(flags)), 0)))
    expanded = {name: kept[name].take(starts) for name in groups["g"]}
    expected = plain.filter(pa.array(keep))
    assert all(expanded[name].equals(expected[name]) for name in groups["g"])
    assert kept["row"].equals(expected["row"])
    assert int(flags.sum()) == len(set(np.cumsum(stored[flag_column("g")].to_numpy())[keep].tolist()))


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Clustered tables with a group, and with two, to copy."""
    folder = tmp_path_factory.mktemp("grouped")
    source = warehouse(folder / "in", days=2, rows=300, files=2)
    for number in (1, 2):
        rewrite(source, folder / str(number), **CLUSTERED, dedup=GROUPS[:number])
    return [folder / "1", folder / "2"]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("where", "sql"),
    [
        ("session in [1, 3, 17]", "session in (1, 3, 17)"),
        ("session is None or event % 3 == 0", "session is null or event % 3 = 0"),
        ('word == "w4" and price < 0.5', "word = 'w4' and price < 0.5::float"),
        ("ids.list.len() == 3", "len(ids) = 3"),
        ('ds == "2026-01-02" or event == 7', "ds = date '2026-01-02' or event = 7"),
    ],
)
def test_groups_stored_once_per_run_give_back_the_rows_that_stay(
    tmp_path: Path, grouped: list[Path], groups: int, where: str, sql: str
) -> None:
    folder = tmp_path
    shutil.copytree(grouped[groups - 1], folder / "out")
    before = Table(str(folder / "out")).read()
    report = delete_from(folder / "out", where, verify=True)
    with duckdb.connect() as connection:
        connection.register("rows", before)
        kept = connection.sql(f"select * from rows where not coalesce(({sql}), false)").to_arrow_table()
    after = Table(str(folder / "out")).read()
    assert after.equals(kept.cast(after.schema))
    assert report.rows == len(before) - len(after) > 0
    assert_clustered_as_stored(folder / "out")


def assert_clustered_as_stored(table: Path) -> None:
    """Every row group starts a run, and a key's rows lie together."""
    for path in files_below(table):
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            assert file.read_row_group(group)[flag_column("session")][0].as_py()


def test_optimize_takes_a_partition_with_deleted_rows_for_finished(tmp_path: Path) -> None:
    source, target = warehouse(tmp_path / "in", rows=200, files=1), tmp_path / "out"
    rewrite(source, target, **CLUSTERED)
    delete_from(target, "session == 5")
    rows = multiset(Table(str(target)).read())
    assert set(target_at(str(target)).notes_by_folder()) == {f"ds=2026-01-0{day}" for day in (1, 2, 3)}
    assert rewrite(source, target, **CLUSTERED).finished == 3
    assert multiset(Table(str(target)).read()) == rows
    assert_clustered(target)
    delete_from(source, "session == 5")
    assert rewrite(source, target, **CLUSTERED).written == 3
    assert multiset(Table(str(target)).read()) == rows


# -- histories --------------------------------------------------------------------------------------------------------

FEATURES: dict[str, Any] = {"extra": {"items": {"history": "events", "at": "at", "column": "item", "last": 6}}}


@pytest.mark.parametrize(
    ("where", "gone"),
    [
        ("item < 200", lambda events: pc.less(events["item"], 200)),
        ("user is None", lambda events: pc.is_null(events["user"])),
        ("no % 2 == 0 or user == 3", lambda events: pc.or_kleene(even(events["no"]), pc.equal(events["user"], 3))),
    ],
)
def test_lists_are_of_the_events_that_stay(tmp_path: Path, where: str, gone: Any) -> None:
    events, rows = event_table(2_500), row_table(150)
    folder = laid_out(events, tmp_path / "events", "ts", "no", file_bytes=20_000)
    assert len(files_below(folder)) > 1
    report = delete_from(folder, where, verify=True)
    left = events.filter(pc.invert(pc.fill_null(gone(events), False)))
    assert report.rows == len(events) - len(left) > 0
    write(rows, tmp_path / "rows")
    history = {"tie_break": "no"}
    path = document(tmp_path / "rows", folder, FEATURES, tmp_path / "work", history=history)
    seen = seen_by(rows, left, "item", pools=(("true", 6),), tie_break="no")
    assert lists_of(Pipeline.from_dict(path), "items") == {row: (items,) for row, (items, _) in seen.items()}
    for file in files_below(folder):
        metadata = pq.read_metadata(file)
        note = HistoryNote.from_json(metadata.metadata[NOTE_KEY], str(file))
        stored = pq.read_table(file)
        assert (note.rows, note.null_rows) == (len(stored), stored["user"].null_count)
        assert note.keys.to_pylist() == list(dict.fromkeys(stored["user"].drop_null().to_pylist()))
        assert metadata.row_group(0).column(0).has_offset_index


def even(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.equal(pc.bit_wise_and(column, 1), 0)


def test_flags_of_another_tool_are_refused(tmp_path: Path) -> None:
    """The rows of its runs are not known; the file stays as it is."""
    source = warehouse(tmp_path / "in", days=1, rows=100, files=1)
    rewrite(source, tmp_path / "out", **CLUSTERED, dedup=GROUPS[:1])
    [path] = files_below(tmp_path / "out")
    stored, notes = pq.read_table(path, partitioning=None), pq.read_metadata(path).metadata
    flags = stored[flag_column("session")].to_numpy().copy()
    flags[1:] = ~flags[1:]
    column = stored.schema.get_field_index(flag_column("session"))
    other = stored.set_column(column, stored.schema.field(column), pa.array(flags)).replace_schema_metadata(notes)
    pq.write_table(other, path)
    content = path.read_bytes()
    with pytest.raises(TableError, match="does not match its metadata"):
        delete_from(tmp_path / "out", "event == 107")
    assert path.read_bytes() == content
