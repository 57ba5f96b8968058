"""Requests as `build` writes them: exploded, they are the impressions that DuckDB joins, in the order of `optimize`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_logs import (
    CANDIDATES,
    END_NS,
    REQUESTS,
    as_rows,
    drawn_logs,
    joined_by_sql,
    spec_of,
    table_bytes,
    write_logs,
)

from feedline import Pipeline, Table
from feedline.config.build_spec import BuildSpec
from feedline.errors import DataError, TableArgumentError
from feedline.warehouse.building import partition
from feedline.warehouse.building.build import CLOSED, BuildReport, build, look
from feedline.warehouse.optimize.optimize import TaskRunner, optimize
from feedline.warehouse.optimize.recipe import Settings
from feedline.warehouse.parquet.request_rows import impressions_of, requests_of
from feedline.warehouse.parquet.writer import Limits

KEPT = ("request_id", "user_id", "ts", "age", "hist_0")
NAMES = (*KEPT, *(name for name in CANDIDATES if name not in ("position", "tags")))  # without what SQL leaves open
ONE = TaskRunner(threads=1, memory_bytes=1 << 30)
SMALL = TaskRunner(threads=2, memory_bytes=1)


def built(spec: BuildSpec, runner: TaskRunner = ONE) -> BuildReport:
    return build(spec, now_ns=END_NS, until_ns=END_NS, runner=runner)


def logs_of(seed: int, **options: Any) -> dict[str, pa.Table]:
    return drawn_logs(seed, whole_requests=True, **options)


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets, units and row groups of a few rows."""
    monkeypatch.setattr(partition, "_LEAST_JOIN_ROWS", 40)
    monkeypatch.setattr(partition, "_BUCKET_OF_ROWS", 20)
    monkeypatch.setattr(partition, "UNIT_BYTES", 4000)
    monkeypatch.setattr(
        partition, "_LIMITS", Limits(row_group_rows=12, row_group_bytes=None, file_bytes=partition._LIMITS.file_bytes)
    )


def exploded(folder: Path) -> pa.Table:
    """The impressions that a pipeline over requests delivers, without its shuffle."""
    document: dict[str, Any] = {
        "version": 1,
        "name": "requests",
        "work_dir": str(folder / "work"),
        "source": {"table": str(folder / "out"), "explode": list(CANDIDATES)},
        "features": {"extra": [*KEPT, *CANDIDATES]},
        "batch": {"size": 32, "tail": "partial"},
        "shuffle": "off",
    }
    parts: dict[str, list[Any]] = {name: [] for name in (*KEPT, *CANDIDATES)}
    for batch in Pipeline.from_dict(document).batches():
        for name, values in parts.items():
            values += batch.extra[name].tolist()
    return pa.table(parts)


@pytest.mark.usefixtures("few_rows")
def test_exploded_rows_are_the_impressions_of_sql(tmp_path: Path) -> None:
    logs = logs_of(1, rows=120)
    write_logs(logs, tmp_path / "logs")
    report = built(spec_of(tmp_path, layout=REQUESTS))
    samples = joined_by_sql(logs, "last").sql("select * from samples").to_arrow_table()
    at = samples.schema.get_field_index("ts")
    samples = samples.set_column(at, "ts", samples["ts"].cast(pa.int64()))
    assert as_rows(exploded(tmp_path), NAMES) == as_rows(samples, NAMES)

    lists = ", ".join(f"unnest({name}) as {name}" for name in CANDIDATES)
    files = f"read_parquet('{tmp_path}/out/**/*.parquet')"
    rows = f"select {', '.join(KEPT)}, {lists} from {files}"
    unnested = duckdb.sql(f"select * replace (epoch_us(ts) as ts) from ({rows})")
    assert as_rows(unnested.to_arrow_table(), NAMES) == as_rows(samples, NAMES)

    counts = [each.record.counts for each in report.partitions if each.record]
    assert sum(each.rows for each in counts) == samples.num_rows
    impressions = built(spec_of(tmp_path, out="rows"))
    assert [each.record.counts for each in impressions.partitions if each.record] == counts


@pytest.mark.usefixtures("few_rows")
def test_requests_lie_as_optimize_writes_them(tmp_path: Path) -> None:
    write_logs(logs_of(3), tmp_path / "logs")
    report = built(spec_of(tmp_path, layout=REQUESTS))
    built(spec_of(tmp_path, out="rows"))
    settings = Settings(
        rows="request",
        by=("request_id",),
        candidates=CANDIDATES,
        sort_by=("position", "ts", "request_id", "item_id", "user_id"),
        keep_nullable=True,
    )
    optimize(Table(tmp_path / "rows").snapshot(), str(tmp_path / "optimized"), settings, runner=ONE)
    found, expected = Table(tmp_path / "out").read(), Table(tmp_path / "optimized").read()
    assert found.to_pylist() == expected.select(found.schema.names).to_pylist()
    rows, groups = dict[str, int](), 0
    for path in (tmp_path / "out").rglob("*.parquet"):
        metadata = pq.read_metadata(path)
        groups += metadata.num_row_groups
        noted = requests_of(metadata.metadata, "it")
        assert noted is not None
        assert (noted.by, noted.candidates) == (("request_id",), CANDIDATES)
        stored = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
        counts = impressions_of(metadata.metadata, CANDIDATES, stored)
        assert counts is not None
        assert counts.max() <= 24  # about as many as a row group of impressions has
        rows[path.parent.name] = rows.get(path.parent.name, 0) + int(counts.sum())
    assert groups > 10
    assert rows == {each.folder: each.record.counts.rows for each in report.partitions if each.record}


@pytest.mark.usefixtures("few_rows")
def test_bytes_depend_on_the_logs_alone_and_late_rows_rebuild(tmp_path: Path) -> None:
    logs = logs_of(4, rows=120, days=1)
    write_logs({**logs, "clicks": logs["clicks"].slice(30)}, tmp_path / "logs")
    spec = spec_of(tmp_path, layout=REQUESTS, late="rebuild")
    built(spec)
    early = table_bytes(tmp_path / "out")
    path = tmp_path / "logs" / "clicks" / "arrived=9" / "late.parquet"
    path.parent.mkdir()
    pq.write_table(logs["clicks"].slice(0, 30), path)
    built(spec, SMALL)
    late = table_bytes(tmp_path / "out")
    assert late.keys() >= early.keys()
    assert late != early
    again = built(spec)
    assert (again.built, {each.state for each in again.partitions}) == ((), {CLOSED})
    shutil.rmtree(tmp_path / "out")
    write_logs(logs, tmp_path / "logs", 1, files=3)
    built(spec)
    assert table_bytes(tmp_path / "out") == late


def test_a_request_keeps_the_negatives_that_are_kept(tmp_path: Path) -> None:
    write_logs(logs_of(5, rows=300, days=1), tmp_path / "logs")
    more = "negatives: {where: not clicked, keep: 0.25, weight: w}\n"
    built(spec_of(tmp_path, out="rows", more=more))
    layout = REQUESTS.replace("candidates: [", "candidates: ['w*', ")
    built(spec_of(tmp_path, layout=layout, more=more))
    rows, requests = Table(tmp_path / "rows").read(), Table(tmp_path / "out").read()
    lists = {name: [value for each in requests[name].to_pylist() for value in each] for name in ("item_id", "w")}
    ids = np.repeat(requests["request_id"].to_pylist(), [len(each) for each in requests["w"].to_pylist()])
    names = ("request_id", "item_id", "w")
    assert as_rows(pa.table({"request_id": ids, **lists}), names) == as_rows(rows, names)
    days = zip(*(requests[name].to_pylist() for name in ("ds", "request_id")), strict=True)
    assert len(set(days)) == requests.num_rows  # a row of each request, and none without candidates


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("request: request_id", "request: [request]", "out.request names column 'request', which is not in the"),
        ("request: request_id", "request: hist_0", "out.request names column 'hist_0' of type list"),
        ("[item_id", "[item", "out.candidates names column 'item', which is not in the table's columns. Did you mean"),
        ("[item_id", "['device_*'", "out.candidates matches no column: got 'device_*'"),
        ("[item_id", "['*_id'", "out.candidates names 'request_id', which identifies the request"),
        ("[item_id", "[place", "out.candidates names column 'place' of type struct"),
        ("sort_by: position", "sort_by: place", "out.sort_by names column 'place' of type struct"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    logs = logs_of(6, rows=60)
    places = pa.array([{"x": 1}] * logs["impressions"].num_rows)
    logs["impressions"] = logs["impressions"].append_column("place", places)
    write_logs(logs, tmp_path / "logs", files=1)
    with pytest.raises(TableArgumentError) as error:
        look(spec_of(tmp_path, layout=REQUESTS.replace(old, new)), now_ns=END_NS, runner=ONE)
    assert message in str(error.value)


def test_values_that_differ_within_a_request_are_refused_by_name(tmp_path: Path) -> None:
    logs = logs_of(7, rows=60)
    table = logs["impressions"]
    logs["impressions"] = table.set_column(2, "user_id", pa.array([None, *table["user_id"].to_pylist()[1:]]))
    write_logs(logs, tmp_path / "logs", files=1)
    spec = spec_of(tmp_path, layout=REQUESTS.replace(" paid,", " user_id,"))
    with pytest.raises(DataError, match=r"'paid' must be equal in all rows of a request: .* as candidates: .*paid"):
        built(spec)
    assert not list((tmp_path / "out").glob("ds=*"))
    of_users = REQUESTS.replace("request: request_id", "request: user_id")
    of_users = of_users.replace("[item_id", "[request_id, ts, age, hist_0, item_id")
    with pytest.raises(DataError, match="column 'user_id' of the request's key is null in some row"):
        built(spec_of(tmp_path, layout=of_users))
