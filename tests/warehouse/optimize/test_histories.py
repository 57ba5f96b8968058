"""`optimize --history` stores each key's events together, in order, with an index of them, for every engine."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from optimized import files_of, in_arrow, in_duckdb, in_polars, multiset, rewrite
from page_decoding import pages_in

from feedline import Table
from feedline.errors import TableArgumentError
from feedline.native import parquet as native
from feedline.native.parquet import DICTIONARY_PAGE
from feedline.warehouse.histories.event_index import EventIndex, HashRanges, hashes_of, read_event_index
from feedline.warehouse.optimize.recipe import Settings
from feedline.warehouse.parquet.history_note import STRIPE_ROWS

HISTORY: dict[str, Any] = {"history": "user", "sort_by": ("ts", "no"), "row_group_rows": 1024}
FEW_BYTES: dict[str, Any] = {"memory_bytes": 200_000, "file_bytes": 30_000}  # several tasks, each of several files
SPELLED = {
    "int32": lambda user: user,
    "string": "user-{}".format,
    "date32": lambda user: datetime.date.fromordinal(user + 1),
}


def log(rows: int, seed: int = 0, *, users: int = 300, kind: str = "int32") -> pa.Table:
    """Events in the order of a log: users by a heavy tail, some null; times with many ties, some null; lists."""
    rng = np.random.default_rng(seed)
    user = (users * rng.random(rows) ** 4).astype(np.int64)
    ts = np.sort(rng.integers(0, rows // 4 + 1, rows)) + seed * rows
    keys = pa.array([SPELLED[kind](int(one)) for one in user], kind)
    return pa.table(
        {
            "item": rng.integers(0, 10**6, rows),
            "user": keys if seed % 2 else pa.array(keys.to_pylist(), kind, mask=user == 5),
            "ts": pa.array(ts * 10**6, pa.timestamp("us"), mask=rng.random(rows) < 0.01),
            "no": pa.array(rng.integers(0, 3, rows), pa.int8()),
            "seen": np.arange(rows) + seed * rows,  # the order of the source
            "action": pa.array(["view", "buy", "like"]).take(pa.array(rng.integers(0, 3, rows))),
            "ids": pa.array([[int(one)] * (one % 3) for one in user], pa.list_(pa.int64())),
        }
    )


def warehouse(root: Path, *, days: int = 3, rows: int = 2000, kind: str = "int32", **options: Any) -> Path:
    """Write days of the log, in two files each."""
    for day in range(days):
        for file in range(2):
            path = root / f"ds=2026-01-{day + 1:02d}" / f"hour={file}" / "x.parquet"
            path.parent.mkdir(parents=True)
            pq.write_table(log(rows, 2 * day + file, kind=kind, **options), path, row_group_size=750)
    return root


def indexes(root: Path) -> Iterator[tuple[Path, EventIndex]]:
    for path in files_of(root):
        index = read_event_index(pq.read_metadata(path).metadata, str(path))
        assert index is not None
        yield path, index


def assert_histories(root: Path) -> None:
    """Check keys, orders, row groups and pages, and indexes against pandas."""
    found: list[Any] = []
    for path, index in indexes(root):
        rows = pq.read_table(path, partitioning=None).to_pandas(integer_object_nulls=True)
        keys = rows["user"].astype(object).where(rows["user"].notna(), None)
        named = keys[keys.notna()]
        groups = pd.Series(named.index, index=named.index).groupby(named, sort=False).agg(["min", "max", "count"])
        assert (groups["max"] - groups["min"] + 1 == groups["count"]).all(), "a key's rows are apart"
        assert index.keys.to_pylist() == groups.index.tolist()
        starts, stops = index.runs(pa.array([*groups.index, None], index.keys.type))
        assert starts.tolist() == [*groups["min"], 0]
        assert stops.tolist() == [*(groups["max"] + 1), 0]
        assert (len(keys) - len(named)) == (index.starts[0] if len(index.starts) else len(keys))
        found += [*dict.fromkeys(keys)]
        times = rows["ts"].astype("datetime64[us]").astype(np.int64).to_numpy()  # NaT is int64's minimum
        assert index.times.tolist() == times[:: index.stripe_rows].tolist()
        order = list(zip(times, rows["no"], rows["seen"], strict=True))
        assert all(a < b for (a, b), same in zip(pairwise(order), keys.eq(keys.shift())[1:], strict=True) if same)
    assert len(found) == len(set(found)), "a key is in two files"
    ranges = HashRanges.of([index for _, index in indexes(root)], str(root))
    assert (ranges.files[1:] > ranges.files[:-1]).all()
    for place, (_, index) in zip(
        range(len(ranges.files)), (pair for pair in indexes(root) if len(pair[1].keys)), strict=True
    ):
        assert [set(one.tolist()) for one in ranges.candidates(hashes_of(index.keys))] == [{place}, {place + 1}]


def assert_stripes(path: Path) -> None:
    """Check that row groups but the last of a file hold whole stripes, and pages one each."""
    content, metadata = pa.memory_map(str(path)).read_buffer(), pq.read_metadata(path)
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    assert all(group.num_rows % STRIPE_ROWS == 0 for group in groups[:-1])
    for group in groups:
        for chunk in map(group.column, range(metadata.num_columns)):
            if chunk.path_in_schema.startswith("ids"):
                continue
            assert chunk.has_offset_index
            if not native.COMPILED:  # which finds the pages
                continue
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            pages = pages_in(content.slice(start, chunk.total_compressed_size), chunk.num_values)
            rows = [page.values for page in pages if page.kind != DICTIONARY_PAGE]
            *full, last = rows
            assert full == [STRIPE_ROWS] * len(full)
            assert 0 < last <= STRIPE_ROWS
            assert sum(rows) == group.num_rows


@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        pytest.param(kind, limits, marks=() if (kind, limits) == ("string", FEW_BYTES) else pytest.mark.nightly)
        for kind in SPELLED
        for limits in ({}, FEW_BYTES)
    ],
)
def test_events_of_all_days_are_one_table_of_histories(tmp_path: Path, kind: str, limits: dict[str, Any]) -> None:
    source, target = warehouse(tmp_path / "in", kind=kind), tmp_path / "out"
    report = rewrite(source, target, **HISTORY, **limits)
    assert (report.written, report.after.rows) == (1, report.before.rows)
    paths = files_of(target)
    assert {path.parent for path in paths} == {target}
    assert len({path.name[:9] for path in paths}) > 2 if limits else len(paths) == 1
    assert_histories(target)
    for path in paths:
        assert_stripes(path)
    expected = multiset(in_arrow(source).cast(in_arrow(target).schema))
    for read in (in_arrow, in_duckdb, in_polars):
        assert multiset(read(target).cast(in_arrow(target).schema)) == expected, read
    again = rewrite(source, target, **HISTORY, **limits)
    assert (again.written, again.finished) == (0, 1)


def test_a_key_of_many_row_groups_stays_in_one_file(tmp_path: Path) -> None:
    rows, rng = 50_000, np.random.default_rng(0)
    user = np.concatenate([np.full(rows, 77), rng.integers(0, 3000, 15_000)])
    table = pa.table({"user": user, "ts": rng.permutation(len(user)), "no": np.zeros(len(user), np.int8)})
    table = table.append_column("seen", pa.array(np.arange(len(user))))
    pq.write_table(table.take(pa.array(rng.permutation(len(user)))), tmp_path / "in.parquet", row_group_size=15_000)
    rewrite(tmp_path / "in.parquet", tmp_path / "out", **{**HISTORY, "row_group_rows": 4096}, file_bytes=75_000)
    assert_histories(tmp_path / "out")
    found = [(index.runs(pa.array([77])), index.rows) for _, index in indexes(tmp_path / "out")]
    assert len(found) > 1
    assert [stop[0] - start[0] for (start, stop), _ in found if stop[0]] == [int((user == 77).sum())]
    assert all(pq.read_metadata(path).num_rows for path in files_of(tmp_path / "out"))


def test_rows_without_a_key_are_in_no_run(tmp_path: Path) -> None:
    table = pa.table({"user": pa.nulls(3000, pa.int64()), "ts": np.arange(3000), "no": np.zeros(3000)})
    pq.write_table(table, tmp_path / "in.parquet")
    rewrite(tmp_path / "in.parquet", tmp_path / "out", **HISTORY, file_bytes=1)
    ((path, index),) = indexes(tmp_path / "out")
    assert_stripes(path)
    assert (index.rows, len(index.keys), index.times.tolist()) == (3000, 0, list(range(0, 3000, STRIPE_ROWS)))
    assert index.runs(pa.array([0, None]))[1].tolist() == [0, 0]
    assert len(HashRanges.of([index], "out").files) == 0


def test_a_day_more_writes_the_table_anew(tmp_path: Path) -> None:
    source, target = warehouse(tmp_path / "in", days=1), tmp_path / "out"
    rewrite(source, target, cluster_by=("user",))
    assert len({path.parent for path in files_of(target)}) == 2
    rewrite(source, target, **HISTORY)
    assert {path.parent for path in files_of(target)} == {target}
    day = source / "ds=2026-01-02" / "hour=0"
    day.mkdir(parents=True)
    pq.write_table(log(4000, 9), day / "x.parquet")
    report = rewrite(source, target, **HISTORY)
    assert (report.written, report.finished) == (1, 0)
    assert multiset(in_arrow(target)) == multiset(in_arrow(source).cast(in_arrow(target).schema))
    assert_histories(target)


def test_keys_of_folders_may_sort_and_the_table_can_be_clustered_otherwise(tmp_path: Path) -> None:
    source = warehouse(tmp_path / "in", days=2)
    Table(source).optimize(tmp_path / "out", history="user", sort_by=["hour", "ts"], threads=1)
    events = f"read_parquet('{tmp_path}/out/*.parquet', file_row_number = true)"
    falls = 'hour < lag(hour) over (partition by "user" order by file_row_number)'
    found = duckdb.connect().execute(
        f"select count(*) filter (falls), count(*) from (select {falls} as falls from {events})"
    )
    assert found.fetchall() == [(0, 8_000)]
    rewrite(tmp_path / "out", tmp_path / "plain", cluster_by=("item",))
    metadata = pq.read_metadata(files_of(tmp_path / "plain")[0]).metadata
    assert read_event_index(metadata, "plain") is None, "its rows are in another order"


def test_a_dictionary_larger_than_a_page_is_not_chosen(tmp_path: Path) -> None:
    rows = 20_000
    table = log(rows, 1).append_column("few", pa.array(np.arange(rows) * 7919 % 4000 * 10**12))
    pq.write_table(table, tmp_path / "in.parquet")
    by_history = rewrite(tmp_path / "in.parquet", tmp_path / "out", **HISTORY, goal="size")
    by_cluster = rewrite(tmp_path / "in.parquet", tmp_path / "usual", cluster_by=("user",), goal="size")
    for report, encodings in ((by_history, {"action"}), (by_cluster, {"action", "few"})):
        choices = [choice.chosen for choice in report.choices if choice.chosen.encoding == "DICTIONARY"]
        assert {choice.leaf for choice in choices} & {"action", "few"} == encodings


def test_columns_stored_once_per_run_are_stored_in_every_row(tmp_path: Path) -> None:
    pq.write_table(log(3000, 1), tmp_path / "in.parquet")
    rewrite(tmp_path / "in.parquet", tmp_path / "once", cluster_by=("user",), dedup=(("g", ("action",)),))
    rewrite(tmp_path / "once", tmp_path / "out", **HISTORY)
    expected = pq.read_table(tmp_path / "in.parquet")
    assert in_arrow(tmp_path / "out").schema.names == expected.schema.names
    assert multiset(in_arrow(tmp_path / "out")) == multiset(expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"history": "user"}, "--history needs the time of its rows: got no --sort-by"),
        ({"history": "user", "sort_by": "ts", "cluster_by": "a"}, "got --cluster-by too. Leave --cluster-by out"),
        ({"history": "user", "sort_by": "ts", "dedup": {"g": "a"}}, "got --dedup too"),
        ({"history": "user", "sort_by": "ts", "small_partitions": "keep"}, "got --small-partitions keep too"),
    ],
)
def test_options_beside_history_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TableArgumentError, match=words):
        Settings.of(**options)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"history": "usr"}, r"--history names column 'usr', .*Did you mean 'user'\?"),
        ({"history": "price"}, "--history names column 'price' of type double: expected an integer, string, date"),
        ({"sort_by": ("no", "none")}, "--sort-by names column 'none' of type null: expected numbers, strings"),
        ({"sort_by": ("price",)}, "--sort-by names column 'price' of type double: expected the time: a date, a time"),
        ({"sort_by": ("wide",)}, "--sort-by names column 'wide' of type uint64: expected the time"),
        ({"sort_by": ("action", "ts")}, "--sort-by names column 'action' of type string: expected the time"),
    ],
)
def test_columns_that_make_no_history_are_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    table = log(10, 1).append_column("price", pa.array(np.zeros(10))).append_column("none", pa.nulls(10))
    pq.write_table(table.append_column("wide", pa.array(np.zeros(10, np.uint64))), tmp_path / "in.parquet")
    with pytest.raises(TableArgumentError, match=words):
        rewrite(tmp_path / "in.parquet", tmp_path / "out", **{**HISTORY, **settings})
    assert not (tmp_path / "out").exists()
