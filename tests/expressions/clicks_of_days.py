"""A table of clicks with columns of many types, and the values of expressions over it."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import polars as pl
import pyarrow as pa

from feedline.expressions import bind_expression, parse

TABLE = pa.table(
    {
        "ds": pa.array([date(2025, 12, 31), date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 3)]),
        "country": pa.array(["US", "DE", None, "FR"]).dictionary_encode(),
        "dwell": pa.array([1.0, None, float("nan"), 2.5], pa.float32()),
        "clicked": pa.array([True, False, None, True]),
        "n": pa.array([1, 2, None, -4], pa.int16()),
        "m": pa.array([1, -2, 3, None], pa.int64()),
        "price": pa.array([Decimal("0.10"), Decimal("1.00"), None, Decimal("2.00")], pa.decimal128(5, 2)),
        "history": pa.array([[1], [], None, [2, 3]]),
        "user": pa.array([{"country": "US", "vip": True}, {"country": None, "vip": False}, None, {"vip": None}]),
        "odd name": pa.array([1, 2, 3, 4]),
    }
)


FRAME = pl.DataFrame(TABLE)


SCHEMA = TABLE.schema


def values(text: str) -> list[object]:
    bound = bind_expression(parse(text), SCHEMA)
    return FRAME.lazy().select(bound.polars).collect(engine="in-memory").to_series().to_list()
