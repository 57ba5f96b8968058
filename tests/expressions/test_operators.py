"""Operators give exact values in wide types, or an error with a remedy."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest
from typed_columns import INF, NAN, assert_evaluates, assert_refused

from feedline.expressions import bind_where
from feedline.expressions.nodes import Constant, Fault, Span
from feedline.expressions.operators import MAX_SIZE, Operand, common_type, result
from feedline.expressions.predicates import Opaque


def test_nan_beside_nan_is_unequal_and_a_null_beside_it_is_null():
    nan = float("nan")
    frame = pl.DataFrame({"a": [nan, nan, None], "b": [nan, None, nan]})
    schema = pa.schema([("a", pa.float64()), ("b", pa.float64())])
    for op in ("==", "!=", "<", "<=", ">", ">="):
        found = frame.select(bind_where(f"a {op} b", schema).polars).to_series().to_list()
        assert found == [op == "!=", None, None]


CLOCKS: list[tuple[pa.DataType, int]] = [
    (pa.timestamp("s"), 10**9),
    (pa.timestamp("ms", "Europe/Berlin"), 10**6),
    (pa.timestamp("us", "Asia/Tokyo"), 10**3),
    (pa.timestamp("ns"), 1),
]


@pytest.mark.parametrize(("left", "right"), [(0, 3), (3, 0), (1, 2), (2, 1), (0, 0), (3, 3)])
def test_timestamps_of_different_units_and_zones_compare_as_moments(left: int, right: int):
    (a, a_ns), (b, b_ns) = CLOCKS[left], CLOCKS[right]
    pairs = [(0, 0), (0, 1), (1, 0), (1, a_ns), (-1, -1), (1, b_ns)]
    table = pa.table({"a": pa.array([p[0] for p in pairs], a), "b": pa.array([p[1] for p in pairs], b)})
    bound = bind_where("a < b", table.schema)
    found = pl.DataFrame(table).select(bound.polars).to_series().to_list()
    assert found == [p[0] * a_ns < p[1] * b_ns for p in pairs]


def test_unsigned_and_signed_integers_compare_exactly():
    table = pa.table({"u": pa.array([2**64 - 1, 0, 2**63], pa.uint64()), "i": pa.array([-1, 0, 2**63 - 1], pa.int64())})
    for text, expected in {
        "u == i": [False, True, False],
        "u > i": [True, False, True],
        "i <= u": [True, True, True],
    }.items():
        assert pl.DataFrame(table).select(bind_where(text, table.schema).polars).to_series().to_list() == expected


def test_decimals_of_different_scales_compare_exactly():
    kinds = [("a", pa.decimal128(5, 2)), ("b", pa.decimal128(20, 10)), ("c", pa.decimal128(38, 38))]
    table = pa.table([pa.array([Decimal("0.10")], kind) for _, kind in kinds], names=["a", "b", "c"])
    for text in ("a == b", "a >= b", "not a < b", "a == c"):
        assert pl.DataFrame(table).select(bind_where(text, table.schema).polars).to_series().to_list() == [True]


EXPECTED: dict[str, tuple[pl.DataType, list[object]]] = {
    "d - d": (pl.Duration("us"), [timedelta(0), timedelta(0), None]),
    "s + '/' + n": (pl.String(), [" Éa-a/12", "b12/1.5", None]),
    "u % 10": (pl.UInt64(), [5, 7, None]),
    "u // 2": (pl.UInt64(), [2**63 - 1, 3, None]),
    "u / 2": (pl.Float64(), [2.0**63, 3.5, None]),
    "i // -3": (pl.Int64(), [42, -2, None]),
    "i % -3": (pl.Int64(), [-2, -1, None]),
    "i // (i - 5)": (pl.Int64(), [0, None, None]),
    "i / (i - 5)": (pl.Float64(), [128 / 133, INF, None]),
    "g % 2": (pl.Float64(), [0.5, NAN, None]),
    "i ** 2": (pl.Float64(), [16384.0, 25.0, None]),
    "2 ** i": (pl.Float64(), [2.0**-128, 32.0, None]),
    "-i": (pl.Int64(), [128, -5, None]),
    "m * 2": (pl.Float64(), [2.5, -1.0, None]),
}


@pytest.mark.parametrize("text", EXPECTED)
def test_values_and_types_of_operators(text: str):
    assert_evaluates(text, *EXPECTED[text])


WRONG = {
    "u + 1": 'uint64 has no `+` here: cast it first, as in `x.cast("int64")`',
    "u % -1": "uint64 has no `%` here",
    "-u": "`-` needs a signed number: got uint64",
    "b + 1": '`+` needs numbers: got bool. Write `.cast("int64")`',
    "s + 1": "the literal does not fit string: got the integer 1",
    "i + 99999999999999999999": "the literal does not fit int64",
    "i / 0": "`/` by the literal zero",
    "i ** 2000": "the exponent is too large: got 2000, expected at most 1024",
    "t - z": "a timestamp with a time zone meets one without",
    "t + t": '`+` needs numbers: got timestamp[us]. Write `.dt.epoch("s")`',
    "l + 1": "`+` needs numbers: got list<int8>. A list has methods",
}


@pytest.mark.parametrize("text", WRONG)
def test_errors_of_operators(text: str):
    assert_refused(text, WRONG[text])


def operand(dtype: pl.DataType, **given: object) -> Operand:
    return Operand(expr=pl.col("x"), dtype=dtype, span=Span(0, 1), columns=frozenset({"x"}), **given)


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (pl.Int8(), pl.Int64()),
        (pl.UInt32(), pl.Int64()),
        (pl.UInt64(), pl.UInt64()),
        (pl.Float32(), pl.Float64()),
        (pl.Decimal(5, 2), pl.Float64()),
        (pl.String(), pl.String()),
    ],
)
def test_operands_widen_to_what_is_computed(dtype: pl.DataType, wide: pl.DataType):
    widened = operand(dtype, column="x").widen()
    assert widened.dtype == wide
    assert widened.column == (None if dtype != wide else "x")  # statistics are of the column's own type


def test_a_result_counts_its_parts_and_is_opaque_where_it_is_boolean():
    x, y = operand(pl.Int64(), size=3), replace(operand(pl.Int64(), size=2), columns=frozenset({"y"}))
    both = result(x.expr > y.expr, pl.Boolean(), Span(0, 9), [x, y, x], extra=2)
    assert (both.size, both.columns) == (10, {"x", "y"})
    assert both.predicate == Opaque(columns=frozenset({"x", "y"}))
    assert result(x.expr, pl.Int64(), Span(0, 1), [x]).predicate is None
    large = replace(x, size=MAX_SIZE)
    with pytest.raises(Fault, match="the expression grows too large: more than 60,000 operations"):
        result(x.expr, pl.Int64(), Span(0, 1), [large])


def test_values_unify_in_the_narrowest_type_that_holds_them():
    def common(*sides: pl.DataType | int | float | str | None) -> pl.DataType:
        span = Span(0, 1)
        operands = [operand(s) if isinstance(s, pl.DataType) else Constant(value=s, span=span) for s in sides]
        return common_type(operands, span)[1]

    assert common(pl.Int8(), pl.UInt32()) == pl.Int64()
    assert common(pl.UInt64(), 1) == pl.UInt64()
    assert common(pl.Int8(), 0.5) == pl.Float64()
    assert common(pl.Float32(), 0.5) == pl.Float32()
    assert common(pl.Float32(), pl.Float64()) == pl.Float64()
    assert common(pl.Null(), pl.Date()) == pl.Date()
    assert common(1, 0.5, None) == pl.Float64()
    assert common("a", None) == pl.String()
    with pytest.raises(Fault, match="the values have no common type: got string and int8"):
        common(pl.String(), pl.Int8())
    with pytest.raises(Fault, match="the type of the result is undetermined: every value is None"):
        common(None, None)
