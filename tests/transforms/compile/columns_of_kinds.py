"""A row of columns of every kind, and features over them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa

from feedline.config.features import FeatureSpec, OpCall

SCHEMA = pa.schema(
    [
        ("price", pa.float32()),
        ("count", pa.int16()),
        ("paid", pa.bool_()),
        ("item_id", pa.int64()),
        ("huge_id", pa.uint64()),
        ("country", pa.string()),
        ("city", pa.dictionary(pa.int32(), pa.string())),
        ("amount", pa.decimal128(10, 2)),
        ("history", pa.list_(pa.int32())),
        ("scores", pa.list_(pa.float64())),
        ("tags", pa.large_list(pa.string())),
        ("triple", pa.list_(pa.int32(), 3)),
        ("flags", pa.list_(pa.bool_())),
        ("ts", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("user", pa.struct([("id", pa.int64())])),
        ("raw", pa.binary()),
        ("nothing", pa.null()),
        ("never_read", pa.int64()),
    ]
)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ROWS: dict[str, list[Any]] = {
    "price": [1.5, None, 3.0, 0.0],
    "count": [1, -2, 3, None],
    "paid": [True, False, None, True],
    "item_id": [10, -1, 2**40, None],
    "huge_id": [1, 2**63, 3, None],
    "country": ["DE", None, "Côte d'Ivoire", "US"],
    "city": ["Bonn", "Bonn", None, "Ulm"],
    "amount": [Decimal("1.25"), None, Decimal("-3.10"), Decimal("0.00")],
    "history": [[1, 2, 3], [], None, [4]],
    "scores": [[0.5], None, [1.5, 2.5], []],
    "tags": [["a", "b"], None, [], ["a"]],
    "triple": [[1, 2, 3], None, [4, 5, 6], [7, 8, 9]],
    "flags": [[True], [], None, [False]],
    "ts": [NOON, None, NOON, NOON],
    "day": [date(2026, 1, 2)] * 4,
    "user": [{"id": 1}, {"id": 2}, None, {"id": 4}],
    "raw": [b"\0\1", b"", None, b"x" * 20],
    "nothing": [None] * 4,
    "never_read": [1, 2, 3, 4],
}
TABLE = pa.table(ROWS, schema=SCHEMA)


def feature(group: Any, name: str, *ops: Any, column: str | None = None, expr: str | None = None) -> FeatureSpec:
    """A feature as the spec layer hands it over: an op is a word or a map of one key."""
    calls = []
    for index, op in enumerate(ops):
        [(word, arguments)] = op.items() if isinstance(op, dict) else [(op, {})]
        value = arguments if isinstance(arguments, dict) else {"": arguments}
        calls.append(OpCall(op=word, arguments=json.dumps(value), path=("features", group, name, index)))
    source = None if expr is not None else column or name
    return FeatureSpec(
        name=name, group=group, column=source, expr=expr, ops=tuple(calls), path=("features", group, name)
    )


def frame(table: pa.Table = TABLE) -> pl.DataFrame:
    found = pl.from_arrow(table)
    assert isinstance(found, pl.DataFrame)
    return found
