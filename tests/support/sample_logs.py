"""Small random logs of impressions, clicks, orders and users, and what DuckDB says of the table that they make."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline.config.build_spec import BuildSpec, load_build_spec

DAY_S = 86_400
FIRST_S = 20_454 * DAY_S  # 2026-01-01
END_NS = (FIRST_S + 365 * DAY_S) * 10**9

SAMPLES = """
version: 1
impressions: {{table: {logs}/impressions, key: [request_id, item_id], time: ts}}
outcomes:
  click:
    {{table: {logs}/clicks, key: [request_id, item_id], time: ts, within: 30m, attribution: {rule},
     label:
       {{clicked: exists, clicks: count, dwell: sum(dwell_ms), longest: max(dwell_ms), first_dwell: first(dwell_ms)}}}}
  order:
    {{table: {logs}/orders, key: [user_id, item_id], time: ts, within: 2h, attribution: {rule},
     label: {{ordered: exists, paid: sum(price), last_note: last(note)}}}}
features: {{user: {{table: {logs}/users, key: user_id, time: since}}}}
lateness: 1h
late: {late}
out: {{table: {out}, by: day(ts), {layout}}}
"""
ROWS = "cluster_by: user_id, sort_by: ts, dedup: {user: [age, hist_*]}"
CANDIDATES = (
    *("item_id", "position", "tags", "clicked", "clicks", "dwell", "longest", "first_dwell"),
    *("ordered", "paid", "last_note"),
)
REQUESTS = f"rows: request, request: request_id, sort_by: position, candidates: [{', '.join(CANDIDATES)}]"


def times(seconds: Sequence[float] | np.ndarray[Any, Any]) -> pa.Array:
    micros = np.round(np.asarray(seconds, np.float64) * 1e6).astype(np.int64)
    return pa.array(micros).cast(pa.timestamp("us"))


def drawn_logs(
    seed: int, *, rows: int = 150, days: int = 2, grain_s: int = 60, whole_requests: bool = False
) -> dict[str, pa.Table]:
    """Logs with ties, duplicates, conflicts, orphans and nulls. grain_s: times are multiples of it. whole_requests:
    the impressions of a request are of one user and time."""
    random = np.random.default_rng(seed)
    span = days * DAY_S

    def moments(count: int) -> np.ndarray[Any, Any]:
        return FIRST_S + random.integers(0, span // grain_s, count) * grain_s

    request, item = (random.integers(0, high, rows) for high in (rows // 3, 4))
    user = request % (rows // 10)
    of_row = request if whole_requests else np.arange(rows)
    at = moments(rows)[of_row]
    impressions = pa.table(
        {
            "request_id": pa.array(request, mask=random.random(rows) < 0.02),
            "item_id": pa.array(item),
            "user_id": pa.array([f"u{each}" for each in user], mask=(random.random(rows) < 0.03)[of_row]),
            "ts": times(at),
            "position": pa.array(random.integers(0, 3, rows).astype(np.int8)),
            "tags": pa.array([[int(each)] * int(each % 3) for each in random.integers(0, 9, rows)]),
        }
    )
    impressions = _repeated(random, impressions)
    of = random.integers(0, rows, rows)
    clicks = pa.table(
        {
            "request_id": pa.array(np.where(random.random(rows) < 0.1, rows, request[of]).astype(np.int32)),
            "item_id": pa.array(item[of]),
            "ts": times(at[of] + random.integers(-2, 40, rows) * grain_s),
            "dwell_ms": pa.array(random.integers(0, 50, rows), mask=random.random(rows) < 0.1),
        }
    )
    orders = pa.table(
        {
            "user_id": pa.array([f"u{each}" for each in user[of]], mask=random.random(rows) < 0.03),
            "item_id": pa.array(item[of].astype(np.int16)),
            "ts": times(at[of] + random.integers(-5, 200, rows) * grain_s),
            "price": pa.array(random.integers(1, 400, rows) / 4),
            "note": pa.array([f"n{each}" for each in random.integers(0, 5, rows)], mask=random.random(rows) < 0.2),
        }
    )
    users = pa.table(
        {
            "user_id": pa.array([f"u{each}" for each in random.integers(0, rows // 10 + 2, rows // 2)]),
            "since": times(moments(rows // 2) - random.integers(0, 2, rows // 2) * DAY_S),
            "age": pa.array(random.integers(18, 60, rows // 2)),
            "hist_0": pa.array([[float(each)] * int(each % 4) for each in random.integers(0, 9, rows // 2)]),
        }
    )
    frame = users.to_pandas().drop_duplicates(["user_id", "since"])  # an order among equal times is Feedline's own
    users = users.take(pa.array(frame.index.to_numpy()))
    return {
        "impressions": impressions,
        "clicks": _repeated(random, clicks),
        "orders": _repeated(random, orders),
        "users": users,
    }


def _repeated(random: np.random.Generator, table: pa.Table) -> pa.Table:
    again = table.take(pa.array(random.integers(0, table.num_rows, table.num_rows // 12)))
    return pa.concat_tables([table, again])


def write_logs(logs: dict[str, pa.Table], folder: Path, seed: int = 0, *, files: int = 2) -> None:
    """Write logs as folders of some files, the rows in a random order."""
    random = np.random.default_rng(seed)
    for name, table in logs.items():
        target = folder / name
        shutil.rmtree(target, ignore_errors=True)
        order = random.permutation(table.num_rows)
        parts = random.integers(0, files, table.num_rows)
        for part in range(files):
            path = target / f"arrived={part}" / f"{random.integers(1 << 30)}.parquet"
            path.parent.mkdir(parents=True)
            pq.write_table(table.take(pa.array(order[parts == part])), path, row_group_size=50)


def spec_of(
    folder: Path, *, rule: str = "last", late: str = "drop", out: str = "out", layout: str = ROWS, more: str = ""
) -> BuildSpec:
    path = folder / "samples.yaml"
    text = SAMPLES.format(logs=folder / "logs", out=folder / out, rule=rule, late=late, layout=layout)
    path.write_text(text + more)
    return load_build_spec(path)


IDENTITY = ("request_id", "item_id", "user_id")
_LABELS = {
    "click": "count(*) as clicks, sum(dwell_ms)::bigint as dwell, max(dwell_ms) as longest, "
    "first(dwell_ms order by ts, dwell_ms) filter (where dwell_ms is not null) as first_dwell",
    "order": "count(*) as orders, sum(price) as paid, "
    "last(note order by ts, note) filter (where note is not null) as last_note",
}
_OUTCOMES = {"click": ("clicks", ("request_id", "item_id"), 30), "order": ("orders", ("user_id", "item_id"), 120)}


def joined_by_sql(logs: dict[str, pa.Table], rule: str) -> duckdb.DuckDBPyConnection:
    """A database with the tables `samples`, and `counts_click`, `counts_order` by day.

    Columns of an impression that was logged with several values at its first time are null in `samples`.
    """
    database = duckdb.connect()
    for name, table in logs.items():
        database.register(f"{name}_log", table)
    database.execute("""
        create table logged as select *, ts::date as day from impressions_log
            where request_id is not null and item_id is not null;
        create table kept as select request_id, item_id, user_id, day, min(ts) as ts from logged group by all;
        create table plain as
            select request_id, item_id, user_id, day, ts, any_value(position) as position, any_value(tags) as tags
            from (select distinct request_id, item_id, user_id, day, ts, position, tags from logged)
            group by all having count(*) = 1;
    """)
    columns = ["k.*, p.position, p.tags"]
    joins = [_matched("plain", "p", (*IDENTITY, "day", "ts"))]
    for name, (log, keys, minutes) in _OUTCOMES.items():
        on = " and ".join(f"t.{key} = o.{key}" for key in keys)
        keyed = " and ".join(f"{key} is not null" for key in keys)
        by = ", ".join(
            f"t.{column} {'desc nulls last' if rule == 'last' else 'asc nulls first'}" for column in ("ts", *IDENTITY)
        )
        chosen = "" if rule == "all" else f"qualify row_number() over (partition by o.n order by {by}) = 1"
        database.execute(f"""
            create table {log} as select *, row_number() over () as n
                from (select distinct * from {log}_log where {keyed});
            create table touches_{name} as select t.*, o.n from logged t join {log} o
                on {on} and t.ts < o.ts and o.ts <= t.ts + interval {minutes} minute;
            create table pairs_{name} as select distinct request_id, item_id, user_id, day, n from (
                select t.*, o.n from logged t join {log} o
                on {on} and t.ts < o.ts and o.ts <= t.ts + interval {minutes} minute {chosen});
            create table labels_{name} as select p.request_id, p.item_id, p.user_id, p.day, {_LABELS[name]}
                from pairs_{name} p join {log} o using (n) group by all;
            create table counts_{name} as
                with logged as (select ts::date as day, count(*) as logged,
                                count(*) filter (where not ({keyed})) as keyless from {log}_log group by all),
                own as (select ts::date as day, count(*) as own,
                        count(*) filter (where n not in (select n from touches_{name})) as unmatched
                        from {log} group by all),
                joined as (select day, count(distinct n) as joined from pairs_{name} group by all)
                select days.day, coalesce(logged, 0) as logged, coalesce(logged - keyless - own, 0) as duplicates,
                    coalesce(keyless, 0) as keyless, coalesce(unmatched, 0) as unmatched, coalesce(joined, 0) as joined
                from (select distinct day from kept) days left join logged using (day) left join own using (day)
                left join joined using (day);
        """)
        joins.append(_matched(f"labels_{name}", f"of_{name}", (*IDENTITY, "day")))
    columns.append(
        "coalesce(clicks, 0) > 0 as clicked, coalesce(clicks, 0) as clicks, dwell, longest, first_dwell, "
        "coalesce(orders, 0) > 0 as ordered, paid, last_note, u.age, u.hist_0"
    )
    asof = "asof left join users_log u on k.user_id = u.user_id and k.ts > u.since"
    database.execute(f"create table samples as select {', '.join(columns)} from kept k {asof} {' '.join(joins)}")
    return database


def _matched(table: str, name: str, columns: Sequence[str]) -> str:
    on = " and ".join(f"k.{column} is not distinct from {name}.{column}" for column in columns)
    return f"left join {table} as {name} on {on}"


def as_rows(table: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows in an order of their own."""
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True), key=repr)


def table_bytes(folder: Path) -> dict[str, bytes]:
    """What readers see of a table: the bytes of its files and markers, by path."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("_build.json", "_build.lock")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
