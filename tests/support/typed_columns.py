"""A table with a column of each type of the language, and how the values of an expression over it are checked."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest

from feedline.errors import ExpressionError
from feedline.expressions import bind_expression, parse
from feedline.expressions.row_preservation import offending_node

NAN, INF = float("nan"), float("inf")
TABLE = pa.table(
    {
        "i": pa.array([-128, 5, None], pa.int8()),
        "u": pa.array([2**64 - 1, 7, None], pa.uint64()),
        "f": pa.array([-1.5, NAN, None], pa.float32()),
        "g": pa.array([2.5, INF, None], pa.float64()),
        "m": pa.array([Decimal("1.25"), Decimal("-0.50"), None], pa.decimal128(6, 2)),
        "b": pa.array([True, False, None]),
        "s": pa.array([" Éa-a", "b12", None]),
        "n": pa.array(["12", "1.5", None]),
        "w": pa.array(["20260102 030405", "2026-01-02", None]),
        "d": pa.array([date(2024, 12, 30), date(1969, 12, 31), None]),
        "t": pa.array([datetime(2024, 2, 29, 23, 4, 5, 678_901), datetime(1969, 12, 31, 23, 59, 59, 500_000), None]),
        "z": pa.array([datetime(2026, 7, 1, 22, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC), None]).cast(
            pa.timestamp("ms", "Europe/Berlin")
        ),
        "l": pa.array([[100, 100, None, -3], [], None], pa.list_(pa.int8())),
        "k": pa.array([[1.5, NAN, None], [NAN], None], pa.list_(pa.float32())),
        "x": pa.array([[1, 2], [3, None], None], pa.list_(pa.uint16(), 2)),
        "y": pa.array([{"a": 1, "c": {"e": "v"}}, {"a": None, "c": None}, None]),
        "p": pa.array([[("a", 1.5), ("a", 2.5)], [("b", None)], None], pa.map_(pa.string(), pa.float32())),
        "q": pa.array([[(-1, "v")], [], None], pa.map_(pa.int16(), pa.string())),
    }
)
FRAME = pl.DataFrame(TABLE)


def matches(value: object, expected: object) -> bool:
    if isinstance(expected, list) and isinstance(value, list):
        return len(value) == len(expected) and all(map(matches, value, expected))
    if isinstance(expected, float) and isinstance(value, float):
        return (math.isnan(expected) and math.isnan(value)) or math.isclose(value, expected, rel_tol=1e-14)
    return type(value) is type(expected) and value == expected


def assert_evaluates(text: str, dtype: pl.DataType, expected: list[object]) -> None:
    """Check the values of an expression, the type that it promises and has, and that it keeps rows apart."""
    bound = bind_expression(parse(text), TABLE.schema)
    series = FRAME.lazy().select(bound.polars.alias("result")).collect(engine="in-memory")["result"]
    assert bound.dtype == dtype, text
    assert series.dtype == dtype, text
    assert matches(series.to_list(), expected), (text, series.to_list())
    assert offending_node(bound.polars) is None, text


def assert_refused(text: str, message: str) -> None:
    """Check the message of an error, and that carets show its position."""
    with pytest.raises(ExpressionError) as caught:
        bind_expression(parse(text), TABLE.schema)
    assert message in str(caught.value)
    assert "^" in str(caught.value).splitlines()[-1]
