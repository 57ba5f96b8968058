"""Selecting rows: the counts of every row group against DuckDB, the report against an independent recount."""

from __future__ import annotations

import datetime
import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from warehouse_samples import write

from feedline.errors import TableChangedError
from feedline.expressions import bind_where
from feedline.warehouse.reading.fragment import UNCOUNTED
from feedline.warehouse.reading.row_filter import SAMPLED, UNSAMPLED, WHERE_TRUE
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.selection.pruning_report import deciding_parts
from feedline.warehouse.selection.select import Count, CountTask, Selection, count_task, screen_rows, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.storage import content_store


def numbers(selection: Selection) -> dict[str, tuple[int, int]]:
    """How many row groups and rows a selection took, by reason."""
    names = ("by_partition", "by_statistics", "whole", "counted", "kept")
    shares = {name: getattr(selection.report, name) for name in names}
    return {name: (share.row_groups, share.rows) for name, share in shares.items()}


ATOMS = [  # the same condition for Feedline and for DuckDB, over columns of `events`
    ("i >= 3", "i >= 3"),
    ("i == 2", "i = 2"),
    ("i != 2", "i <> 2"),
    ("i in [0, 5]", "i in (0, 5)"),
    ("i not in [1, 2]", "i not in (1, 2)"),
    ("1 < i <= 4", "1 < i and i <= 4"),
    ("f < 0.25", "f < 0.25"),
    ("f >= -0.5", "f >= -0.5"),
    ("f32 <= 0.1", "f32 <= 0.1::float"),
    ('s == "b"', "s = 'b'"),
    ('s in ["a", "zz"]', "s in ('a', 'zz')"),
    ('s > "am"', "s > 'am'"),
    ("s is None", "s is null"),
    ("i is not None", "i is not null"),
    ("flag", "flag"),
    ("not flag", "not flag"),
    ('d >= "2026-01-03"', "d >= date '2026-01-03'"),
    ('t < "2026-01-01T00:00:02"', "t < timestamp '2026-01-01 00:00:02'"),
    ("p < 1.5", "p < 1.5"),
    ('ds == "2026-01-02"', "ds = date '2026-01-02'"),
    ('ds > "2026-01-01"', "ds > date '2026-01-01'"),
    ("ds is None", "ds is null"),
    ('c != "x"', "c <> 'x'"),
    ("part < 2", "part < 2"),
    ("i + part > 4", "i + part > 4"),
    ("s.str.len_chars() == 1", "length(s) = 1"),
]


@st.composite
def conditions(draw: st.DrawFn) -> tuple[str, str]:
    text, sql = draw(st.sampled_from(ATOMS))
    for _ in range(draw(st.integers(0, 3))):
        more, more_sql = draw(st.sampled_from(ATOMS))
        joined = draw(st.sampled_from(["and", "or", "and not", "or not"]))
        text, sql = f"({text}) {joined} ({more})", f"({sql}) {joined} ({more_sql})"
    return text, sql


def events(rng: np.random.Generator, rows: int, spread: int) -> pa.Table:
    """Rows whose values lie close together, so that statistics can decide something."""
    start = int(rng.integers(0, 5))
    ints = rng.integers(start, start + spread, rows)
    share = float(rng.choice([0.0, 0.3, 1.0], p=[0.5, 0.45, 0.05]))

    def column(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind, mask=rng.random(rows) < share)

    moments = [datetime.datetime(2026, 1, 1, 0, 0, int(i)) for i in ints]
    return pa.table(
        {
            "i": column(ints.tolist(), pa.int32()),
            "f": column((ints / 4 - 1).tolist(), pa.float64()),
            "f32": column((ints / 10).tolist(), pa.float32()),
            "s": column([["a", "b", "am", "zz", "é", ""][i % 6] for i in ints], pa.string()),
            "flag": column((ints > 3).tolist(), pa.bool_()),
            "d": column(
                [moment.date() + datetime.timedelta(int(i)) for moment, i in zip(moments, ints, strict=True)],
                pa.date32(),
            ),
            "t": column(moments, pa.timestamp("us")),
            "p": column([round(i / 2, 2) for i in ints], pa.float64()).cast(pa.decimal128(9, 2)),
        }
    )


def warehouse(root: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    null = "__HIVE_DEFAULT_PARTITION__"
    for ds in ("2026-01-01", "2026-01-02", null):
        for c in ("x", "y%2Fz"):
            table = events(rng, int(rng.integers(0, 25)), int(rng.integers(1, 4)))
            part = int(rng.integers(1, 4))
            write(root, {f"ds={ds}/c={c}/part={part}/f.parquet": table}, row_group_size=6)


def counted_by_duckdb(snapshot: Snapshot, sql: str) -> list[int]:
    """Kept rows per row group: DuckDB reads each file, numbers its rows, and gets the keys as constants."""
    counts = []
    for index, path in enumerate(snapshot.files["path"].to_pylist()):
        keys = dict(snapshot.partition_of(index))
        kinds = {"ds": "date", "c": "varchar", "part": "bigint"}
        constants = ", ".join(
            f"{'null' if value is None else repr(str(value))}::{kinds[name]} as {name}" for name, value in keys.items()
        )
        kept = duckdb.sql(
            f"with t as (select *, {constants} from read_parquet('{snapshot.uri}/{path}', file_row_number=true, "
            f"hive_partitioning=false)) select file_row_number from t where {sql}"
        ).fetchnumpy()["file_row_number"]
        groups = snapshot.rows_per_row_group[snapshot.file_of_row_group == index]
        edges = np.concatenate([[0], np.cumsum(groups)])
        counts += np.histogram(kept, edges)[0].tolist() if len(groups) else []
    return counts


@pytest.fixture(scope="module")
def tables() -> Iterator[Callable[[int], Snapshot]]:
    with tempfile.TemporaryDirectory() as folder:
        known: dict[int, Snapshot] = {}

        def table(seed: int) -> Snapshot:
            if seed not in known:
                warehouse(Path(folder) / str(seed), seed)
                known[seed] = take_snapshot(f"{folder}/{seed}")
            return known[seed]

        yield table


@examples(40, by_day=6)
@given(st.integers(0, 7), conditions())
def test_counts_are_duckdbs(tables: Callable[[int], Snapshot], seed: int, condition: tuple[str, str]) -> None:
    snapshot = tables(seed)
    where = bind_where(condition[0], snapshot.schema)
    with tempfile.TemporaryDirectory() as work_dir:
        selection = select_rows(snapshot, where, work_dir=work_dir)
    expected = counted_by_duckdb(snapshot, condition[1])
    assert selection.rows.dtype == np.int64
    assert selection.rows.tolist() == expected
    screened = screen_rows(snapshot, where).rows
    assert all(found in (UNCOUNTED, count) for found, count in zip(screened.tolist(), expected, strict=True))
    report = selection.report
    assert (report.kept.row_groups, report.kept.rows) == (sum(count > 0 for count in expected), sum(expected))
    pruned = (report.by_partition, report.by_statistics, report.by_bloom)
    parts = (*pruned, report.whole, report.by_position, report.counted)
    assert sum(part.row_groups for part in parts) == report.table.row_groups == len(expected)
    assert sum(part.rows for part in parts) == report.table.rows == snapshot.rows


def test_without_a_filter_all_rows_are_taken_whole(ladder: Snapshot, tmp_path: Path) -> None:
    selection = select_rows(ladder, None, work_dir=str(tmp_path / "w"))
    assert selection.rows.tolist() == [10] * 20
    assert numbers(selection)["whole"] == (20, 200)
    assert selection.report.counted_bytes == 0
    assert not (tmp_path / "w").exists()


def test_the_pass_runs_on_any_map_with_small_picklable_tasks(
    ladder: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedline.warehouse.selection.waves._TASK_ROWS", 30)
    where = bind_where("y < 3", ladder.schema)
    seen: list[CountTask] = []

    def pickling(function: Callable[[CountTask], tuple[Count, ...]], tasks: list[CountTask]) -> list[tuple[Count, ...]]:
        seen.extend(tasks)
        wired = [pickle.dumps((function, task)) for task in tasks]
        assert max(map(len, wired)) < 4_000
        return [call(task) for call, task in map(pickle.loads, wired)]

    selection = select_rows(ladder, where, work_dir=str(tmp_path / "w"), map=pickling)
    assert selection.rows.tolist() == [3] * 20
    assert len(seen) > 4
    assert sum(len(fragment.row_groups) for task in seen for fragment in task.fragments) == 20
    assert sum(len(count_task(task)) for task in seen) == 20


def refuse(function: object, tasks: list[CountTask]) -> list[tuple[Count, ...]]:
    raise AssertionError("counted again")


def test_counts_are_stored_per_snapshot_and_filter(ladder: Snapshot, tmp_path: Path) -> None:
    work_dir = str(tmp_path / "w")
    where = bind_where("y < 3", ladder.schema)
    first = select_rows(ladder, where, work_dir=work_dir)
    assert not first.report.cached
    again = select_rows(ladder, where, work_dir=work_dir, map=refuse)
    assert again.report.cached
    assert again.rows.tolist() == first.rows.tolist()
    assert select_rows(ladder, bind_where("y < 4", ladder.schema), work_dir=work_dir).rows.tolist() == [4] * 20
    os.utime(f"{ladder.uri}/ds=2026-01-01/f.parquet", ns=(0, 0))
    later = take_snapshot(ladder.uri)
    assert not select_rows(later, where, work_dir=work_dir).report.cached


def test_ranks_that_start_together_count_once(ladder: Snapshot, tmp_path: Path) -> None:
    where = bind_where("y < 3", ladder.schema)
    every, several, counted = threading.Barrier(4), threading.Event(), []

    def noting(function: Callable[[CountTask], tuple[Count, ...]], tasks: list[CountTask]) -> list[tuple[Count, ...]]:
        counted.append(len(tasks))
        if len(counted) > 1:
            several.set()
        several.wait(0.2)  # time for another rank to begin, were it let
        return [function(task) for task in tasks]

    def rank(_: int) -> Selection:
        every.wait()
        return select_rows(ladder, where, work_dir=str(tmp_path / "w"), map=noting)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(rank, range(4)))
    assert len(counted) == 1
    assert sorted(selection.report.cached for selection in found) == [False, True, True, True]
    assert all(selection.rows.tolist() == [3] * 20 for selection in found)


def test_counts_of_other_row_groups_are_not_used(ladder: Snapshot, tmp_path: Path) -> None:
    work_dir = str(tmp_path / "w")
    where = bind_where("y < 3", ladder.schema)
    select_rows(ladder, where, work_dir=work_dir)
    (file,) = (tmp_path / "w" / "counts").iterdir()
    (good,) = content_store.load(work_dir, f"counts/{file.name}", tables=1)
    for table in (good.slice(1), good.drop_columns(["matched"])):
        content_store.create(work_dir, f"counts/{file.name}", [table])
        again = select_rows(ladder, where, work_dir=work_dir)
        assert not again.report.cached
        assert again.rows.tolist() == [3] * 20


def test_a_file_that_changed_ends_the_pass(ladder: Snapshot, tmp_path: Path) -> None:
    shutil.rmtree(f"{ladder.uri}/ds=2026-01-01")
    with pytest.raises(TableChangedError, match=r"ds=2026-01-01/f.parquet is gone"):
        select_rows(ladder, bind_where("y < 3", ladder.schema), work_dir=str(tmp_path / "w"))


def test_the_report_lists_pruned_row_groups_by_reason(ladder: Snapshot, tmp_path: Path) -> None:
    where = bind_where('ds == "2026-01-02" and x >= 35', ladder.schema)
    selection = select_rows(ladder, where, work_dir=str(tmp_path / "w"))
    assert numbers(selection) == {
        "by_partition": (10, 100),
        "by_statistics": (3, 30),
        "whole": (6, 60),
        "counted": (1, 10),
        "kept": (7, 65),
    }
    assert selection.rows.tolist() == [0] * 13 + [5] + [10] * 6
    size = duckdb.sql(
        "select total_compressed_size from parquet_metadata(?) where path_in_schema = 'x' and row_group_id = 3",
        params=[f"{ladder.uri}/ds=2026-01-02/f.parquet"],
    ).fetchall()[0][0]
    assert selection.report.counted_bytes == size


def test_columns_are_needed_only_in_row_groups_that_nothing_decides() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("k", pa.int64())])
    where = bind_where("a > 1", schema)
    sample = bind_sample(Sample(fraction=0.5, seed=1, key=("k",), where="b == 0"), schema)
    proofs = np.array([0, WHERE_TRUE, UNSAMPLED, SAMPLED, WHERE_TRUE | UNSAMPLED], np.uint8)
    found = [(set(names), at.tolist()) for names, at in deciding_parts(proofs, where, sample)]
    assert found == [
        ({"a"}, [True, False, True, True, False]),
        ({"b"}, [True, True, False, False, False]),
        ({"k"}, [True, True, False, True, False]),
    ]
    whole = np.array([True, False, False, False, False])
    weighed = [at.tolist() for _, at in deciding_parts(proofs, where, sample, whole=whole, weigh=True)]
    assert weighed[0][0] is False
    assert weighed[1][0] is True  # the weight of a row that stays
    assert weighed[2][0] is False


def test_without_filter_and_sample_nothing_is_needed() -> None:
    assert [names for names, _ in deciding_parts(np.zeros(2, np.uint8), None, None)] == [frozenset()] * 3
