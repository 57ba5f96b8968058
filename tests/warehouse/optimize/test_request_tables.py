"""`optimize --rows` makes requests of impressions and back, as DuckDB does, and refuses what is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optimized import files_of, in_arrow, in_duckdb, in_polars, made, multiset, rewrite
from request_tables import grouped, impression_table, impressions, unnested

from feedline import Table
from feedline.errors import DataError, TableArgumentError, TableError
from feedline.warehouse.optimize.recipe import Settings
from feedline.warehouse.parquet.request_rows import (
    REQUESTS_KEY,
    ROWS_KEY,
    RequestColumns,
    as_impressions,
    as_requests,
    impressions_of,
)

KEPT = ("age", "country", "history", "ds")
LISTS = ("position", "item_id", "clicked", "price", "word", "tags")
BY_REQUEST: dict[str, Any] = {"cluster_by": ("request_id",), "sort_by": ("position",)}
REQUESTS: dict[str, Any] = {"rows": "request", "by": ("request_id",), "sort_by": ("position",), "row_group_rows": 100}


@pytest.mark.parametrize(
    ("candidates", "memory_bytes"),
    [
        ((), 30_000),
        (LISTS, None),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in (((), None), (LISTS, 30_000))),
    ],
)
def test_requests_are_those_that_duckdb_groups(
    tmp_path: Path, memory_bytes: int | None, candidates: tuple[str, ...]
) -> None:
    source, target = impression_table(tmp_path / "in"), tmp_path / "out"
    report = rewrite(source, target, **REQUESTS, candidates=candidates, memory_bytes=memory_bytes)
    assert report.requests == RequestColumns(by=("request_id",), candidates=report.requests.candidates)
    assert set(report.requests.candidates) == set(LISTS)
    expected = grouped(source, "request_id", KEPT, LISTS, "position")
    for read in (in_arrow, in_duckdb, in_polars):
        rows = sorted(read(target).to_pylist(), key=lambda row: row["request_id"])
        assert [{name: str(row[name]) for name in expected[0]} for row in rows] == [
            {name: str(value) for name, value in row.items()} for row in expected
        ], read


def test_footers_name_candidates_and_count_impressions(tmp_path: Path) -> None:
    source, target = impression_table(tmp_path / "in"), tmp_path / "out"
    rewrite(source, target, **REQUESTS)
    for path in files_of(target):
        file = pq.ParquetFile(path)
        assert RequestColumns.from_json(file.metadata.metadata[REQUESTS_KEY], "it").by == ("request_id",)
        lists = [file.read_row_group(i)["item_id"].to_pylist() for i in range(file.num_row_groups)]
        counts = [sum(map(len, each)) for each in lists]
        stored = list(map(len, lists))
        assert json.loads(file.metadata.metadata[ROWS_KEY]) == [list(pair) for pair in zip(stored, counts, strict=True)]
        assert impressions_of(file.metadata.metadata, ["item_id"], stored).tolist() == counts
        assert impressions_of(file.metadata.metadata, ["item_id", "age"], stored) is None
        assert impressions_of(file.metadata.metadata, ["item_id"], [*stored[1:], stored[0] + 1]) is None  # rewritten
        assert file.num_row_groups > 1
        assert max(counts) < 150  # about as many impressions as a row group has rows


def test_impressions_come_back_and_other_layouts_keep_requests(tmp_path: Path) -> None:
    source = impression_table(tmp_path / "in")
    rewrite(source, tmp_path / "requests", **REQUESTS)
    rewrite(tmp_path / "requests", tmp_path / "rows", rows="impression")
    assert multiset(in_arrow(tmp_path / "rows")) == multiset(in_arrow(source))
    names = ("request_id", *KEPT, *LISTS)
    assert Table(str(tmp_path / "rows")).read(list(names)).cast(
        Table(str(source)).read(list(names)).schema
    ).to_pylist() == [{**row, "ds": row["ds"]} for row in unnested(tmp_path / "requests", names, LISTS)]
    report = rewrite(tmp_path / "requests", tmp_path / "again", cluster_by=("country",), sort_by=("request_id",))
    assert report.requests is not None
    rewrite(
        tmp_path / "again", tmp_path / "rows2", rows="impression", cluster_by=("request_id",), sort_by=("position",)
    )
    assert multiset(in_arrow(tmp_path / "rows2")) == multiset(in_arrow(source))
    assert REQUESTS_KEY not in pq.read_metadata(files_of(tmp_path / "rows2")[0]).metadata


def test_a_second_run_has_nothing_to_do_and_another_key_writes_anew(tmp_path: Path) -> None:
    source, target = impression_table(tmp_path / "in"), tmp_path / "out"
    assert rewrite(source, target, **REQUESTS).written == 2
    assert rewrite(source, target, **REQUESTS).finished == 2
    assert rewrite(source, target, **REQUESTS, candidates=(*LISTS, "country")).written == 2


def test_default_order_is_the_tables(tmp_path: Path) -> None:
    table = impressions(30, seed=4)
    pq.write_table(table, made(tmp_path / "in") / "0.parquet", row_group_size=20)
    rewrite(tmp_path / "in", tmp_path / "out", rows="request", by=("request_id",))
    expected: dict[int, list[int]] = {}
    for row in table.to_pylist():
        expected.setdefault(row["request_id"], []).append(row["item_id"])
    assert {row["request_id"]: row["item_id"] for row in in_arrow(tmp_path / "out").to_pylist()} == expected


def test_bad_input_is_refused_by_name(tmp_path: Path) -> None:
    source = impression_table(tmp_path / "in")
    with pytest.raises(DataError, match=r"'word' must be equal in all rows of a request.*as candidates: .*word"):
        rewrite(source, tmp_path / "out", **REQUESTS, candidates=("position", "item_id", "clicked", "price", "tags"))
    table = impressions(20)
    nulls = pa.array([None, *table["request_id"].to_pylist()[1:]], pa.int64())
    pq.write_table(table.set_column(0, "request_id", nulls), made(tmp_path / "nulls") / "0.parquet")
    with pytest.raises(DataError, match="column 'request_id' of the request's key is null"):
        rewrite(tmp_path / "nulls", tmp_path / "out2", **REQUESTS)
    alone = table.take(pa.array(np.unique(table["request_id"].to_numpy(), return_index=True)[1]))
    pq.write_table(alone, made(tmp_path / "alone") / "0.parquet")
    with pytest.raises(DataError, match="no column differs within a request of request_id"):
        rewrite(tmp_path / "alone", tmp_path / "out3", **REQUESTS)
    uneven = pa.table({"a": [[1, 2], [3]], "b": [[1, 2], [3, 4]]})
    pq.write_table(uneven, made(tmp_path / "uneven") / "0.parquet")
    with pytest.raises(DataError, match=r"got 1 in 'a' and 2 in 'b' \(.*0\.parquet.*row group 0, row 1\)"):
        rewrite(tmp_path / "uneven", tmp_path / "out4", rows="impression", candidates=("a", "b"))
    with pytest.raises(TableError, match="footers that do not name them"):
        rewrite(tmp_path / "uneven", tmp_path / "out5", rows="impression")
    with pytest.raises(TableError, match="column 'age' has type float"):
        rewrite(source, tmp_path / "out6", rows="impression", candidates=("age",))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": "request"}, "got no --by"),
        ({"rows": "sideways"}, "rows is unknown"),
        ({"by": ("a",)}, "--by names what makes a request: got --rows keep"),
        ({"candidates": ("a",)}, "--candidates names the lists of requests: got --rows keep"),
        ({"rows": "request", "by": ("a",), "candidates": ("a", "b")}, "identifies the request"),
        ({"rows": "request", "by": ("a",), "cluster_by": ("b",)}, "got --cluster-by too"),
        ({"rows": "request", "by": ("a",), "dedup": (("g", ("b",)),)}, "got --dedup too"),
        ({"rows": "request", "by": ("a",), "small_partitions": "keep"}, "got --small-partitions keep too"),
        ({"rows": "request", "by": ("a",), "history": "b", "sort_by": ("c",)}, "got --history too"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TableArgumentError, match=message):
        Settings(**settings)


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.none() | st.text(max_size=3)), max_size=4), max_size=8))
def test_grouping_undoes_exploding(requests: list[list[tuple[int, str | None]]]) -> None:
    columns = RequestColumns(by=("id",), candidates=("item", "word"))
    filled = [candidates for candidates in requests if candidates]
    table = pa.table(
        {
            "id": pa.array(range(len(requests)), pa.int64()),
            "item": pa.array([[i for i, _ in each] for each in requests], pa.list_(pa.int64())),
            "word": pa.array([[w for _, w in each] if each else None for each in requests], pa.list_(pa.string())),
        }
    )
    rows = as_impressions(table, columns.candidates, "it")
    assert rows.to_pylist() == [
        {"id": id, "item": item, "word": word} for id, each in enumerate(requests) for item, word in each
    ]
    assert [row["word"] for row in as_requests(rows, columns).to_pylist()] == [[w for _, w in each] for each in filled]
