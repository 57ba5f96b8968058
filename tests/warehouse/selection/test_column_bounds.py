"""Bounds of columns meet literals in the column's own unit."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa


def test_literals_meet_bounds_in_the_columns_own_unit() -> None:
    from feedline.warehouse.selection.column_bounds import _unit

    noon = datetime.datetime(2026, 1, 1, 12, 0, 0, 500)
    aware = noon.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    micros = pa.scalar(noon, pa.timestamp("us")).value
    cases = [
        (pa.timestamp("us"), noon, micros),
        (pa.timestamp("ns"), noon, micros * 1000),
        (pa.timestamp("ms"), noon, None),
        (pa.timestamp("ms"), noon.replace(microsecond=0), micros // 1000),
        (pa.timestamp("us"), aware, None),
        (pa.timestamp("us", "UTC"), aware, micros - 7_200_000_000),
        (pa.timestamp("us", "UTC"), noon, None),
        (pa.date32(), datetime.date(1970, 1, 3), 2),
        (pa.date32(), noon, None),
        (pa.int32(), True, None),
        (pa.int32(), 7, 7),
        (pa.bool_(), True, 1),
        (pa.float32(), 7, 7.0),
        (pa.float64(), 2**60, None),
        (pa.float64(), "7", None),
        (pa.string(), b"x", None),
        (pa.binary(), b"x", b"x"),
        (pa.decimal128(5, 2), Decimal("1.5"), Decimal("1.5")),
        (pa.list_(pa.int8()), 1, None),
    ]
    for kind, literal, expected in cases:
        assert _unit(kind)(literal) == expected
