"""Tables of rows and of events, and the lists of events that rows see, by DuckDB's range join."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Pipeline, Table

ZURICH = "Europe/Zurich"
TIME = pa.timestamp("us")


def user_keys(numbers: Any, kind: pa.DataType) -> pa.Array:
    """Users in some type of keys; -1 is null."""
    spelled = {
        "string": "user-{}".format,
        "large_string": "user-{}".format,
        "date32[day]": lambda number: datetime.date.fromordinal(1 + number),
    }.get(str(kind), int)
    return pa.array([None if number < 0 else spelled(int(number)) for number in numbers], kind)


def event_table(rows: int, *, users: int = 12, times: int = 60, seed: int = 0, nulls: float = 0.05) -> pa.Table:
    """Events with many ties. `user` and the times are integers; `no` differs within a user's ties."""
    rng = np.random.default_rng(seed)
    ts = rng.integers(0, times, rows)

    def some(values: Any) -> pa.Array:
        return pa.array(values, mask=rng.random(rows) < nulls)

    return pa.table(
        {
            "user": pa.array(rng.integers(0, users, rows), mask=rng.random(rows) < nulls),
            "ts": some(ts),
            "known": some(ts + rng.integers(0, 5, rows)),
            "no": pa.array(rng.permutation(rows)),
            "item": some(rng.integers(0, 1000, rows)),
            "ratio": pa.array(rng.integers(0, 100, rows).astype(np.float32)),
            "kind": some(rng.choice(["listen", "like", "skip"], rows)),
        }
    )


def row_table(rows: int, *, users: int = 14, times: int = 70, seed: int = 1, nulls: float = 0.05) -> pa.Table:
    """Rows; some users have no events."""
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "id": np.arange(rows),
            "user": pa.array(rng.integers(0, users, rows), mask=rng.random(rows) < nulls),
            "at": pa.array(rng.integers(-2, times, rows), mask=rng.random(rows) < nulls),
            "price": rng.random(rows).astype(np.float32),
        }
    )


def with_types(table: pa.Table, key: pa.DataType, times: Mapping[str, pa.DataType]) -> pa.Table:
    """The table with its users and times in other types; a number of a time is a minute, or a day of dates."""
    numbers = [-1 if user is None else user for user in table["user"].to_pylist()]
    table = table.set_column(table.column_names.index("user"), "user", user_keys(numbers, key))
    for name, kind in times.items():
        values = table[name].combine_chunks()
        if pa.types.is_timestamp(kind):
            seconds = pa.array([None if value is None else value * 60 for value in values.to_pylist()], pa.int64())
            values = seconds.cast(pa.timestamp("s", kind.tz)).cast(kind)
        elif pa.types.is_date(kind):
            values = values.cast(pa.int32()).cast(kind)
        table = table.set_column(table.column_names.index(name), name, values.cast(kind))
    return table


def write(table: pa.Table, folder: Path, *, files: int = 2, row_group_size: int = 40) -> Path:
    """The table in files of a folder, in its order."""
    folder.mkdir(parents=True)
    for file, first in enumerate(range(0, max(table.num_rows, 1), -(-max(table.num_rows, 1) // files))):
        part = table.slice(first, -(-max(table.num_rows, 1) // files))
        pq.write_table(part, folder / f"part-{file}.parquet", row_group_size=row_group_size)
    return folder


def laid_out(table: pa.Table, folder: Path, *sort_by: str, key: str = "user", **options: Any) -> Path:
    """The table as `optimize --history` writes it, in several small files."""
    source = write(table, folder.with_name(folder.name + "-source"), row_group_size=max(40, table.num_rows // 20))
    options = {"row_group_rows": 512, "file_bytes": 20_000, **options}
    Table(str(source)).optimize(str(folder), history=key, sort_by=sort_by, **options)
    return folder


def document(rows: Path, events: Path, features: Mapping[str, Any], work: Path, **changes: Any) -> dict[str, Any]:
    """A pipeline whose features read `events`. history: keys of the section."""
    history = {"table": str(events), "key": "user", "time": "ts", **changes.pop("history", {})}
    whole = {
        "version": 1,
        "name": "histories",
        "work_dir": str(work),
        "source": {"table": str(rows), "split_rows": 64},
        "histories": {"events": {key: value for key, value in history.items() if value is not None}},
        "features": {"dense": {"price": []}, **features, "extra": {"id": [], **features.get("extra", {})}},
        "batch": {"size": 16, "tail": "partial"},
        "shuffle": {"seed": 3, "window_rows": 1024},
        "cluster": {"threads": 1, "dashboard": False},
        "memory": "64MiB",
    }
    return whole | changes


def lists_of(pipeline: Pipeline, *names: str, **options: Any) -> dict[int, tuple[Any, ...]]:
    """What the batches of an epoch hold: by the id of a row the values of sparse or extra features."""
    found: dict[int, tuple[Any, ...]] = {}
    for batch in pipeline.batches(**options):
        columns = [_lists(batch, name) for name in names]
        for index, row in enumerate(np.asarray(batch.extra["id"]).tolist()):
            assert row not in found
            found[row] = tuple(column[index] for column in columns)
    return found


def _lists(batch: Any, name: str) -> list[Any]:
    if name in batch.extra:
        return list(batch.extra[name].to_pylist())
    ragged = batch.sparse[name]
    values, offsets = ragged.values.tolist(), ragged.offsets.tolist()
    return [values[first:stop] for first, stop in pairwise(offsets)]


def seen_by(
    rows: pa.Table,
    events: pa.Table,
    column: str,
    *,
    pools: Sequence[tuple[str, int]] = (("true", 5),),
    lag: str = "",
    known: str | None = None,
    tie_break: str | None = None,
    scan: int | None = None,
) -> dict[int, tuple[Any, ...]]:
    """By the id of a row what it sees of a column, and of which pools each event is (SQL conditions, each with its
    `last`). lag: what SQL subtracts from a row's time."""
    events = events.append_column("place", pa.array(np.arange(events.num_rows)))
    order = f"ts{f', {tie_break} NULLS FIRST' if tie_break else ''}, place"
    back = f"ts DESC{f', {tie_break} DESC NULLS LAST' if tie_break else ''}, place DESC"
    marks = ", ".join(
        f"CASE WHEN coalesce({where}, false) THEN row_number() OVER "
        f"(PARTITION BY row_id, coalesce({where}, false) ORDER BY {back}) END AS p{pool}"
        for pool, (where, _) in enumerate(pools)
    )
    bits = " + ".join(
        f"CASE WHEN p{pool} <= {last} THEN {1 << pool} ELSE 0 END" for pool, (_, last) in enumerate(pools)
    )
    query = f"""
        WITH joined AS (
            SELECT rows.id AS row_id, rows.at AS row_at, events.*
            FROM rows JOIN events ON rows.user = events.user AND events.ts < rows.at {lag}),
        scanned AS (SELECT *, row_number() OVER (PARTITION BY row_id ORDER BY {back}) AS nearest FROM joined),
        seen AS (SELECT * FROM scanned WHERE nearest <= {scan or 2**31} {f"AND {known} <= row_at" if known else ""}),
        marked AS (SELECT *, {marks} FROM seen),
        kept AS (SELECT *, {bits} AS pools FROM marked)
        SELECT row_id, list({column} ORDER BY {order}), list(pools ORDER BY {order}) FROM kept WHERE pools > 0
        GROUP BY row_id"""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", rows)
        connection.register("events", events)
        found = {
            row: (values, [int(each) for each in pools]) for row, values, pools in connection.sql(query).fetchall()
        }
    return {row: found.get(row, ([], [])) for row in rows["id"].to_pylist()}
