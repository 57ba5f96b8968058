"""Literals of every type compare exactly: checked against rational numbers, numpy, datetime and zoneinfo."""

from __future__ import annotations

import math
import operator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import ExpressionError
from feedline.expressions import bind_where
from feedline.expressions.predicates import And, Comparison, Membership, Or

OPERATORS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
OPS = st.sampled_from([*OPERATORS])


def kept(text: str, column: pa.Array) -> list[bool | None]:
    bound = bind_where(text, pa.schema([("x", column.type)]))
    frame = pl.DataFrame({"x": pl.Series(pl.from_arrow(column))})
    return frame.lazy().select(bound.polars).collect(engine="in-memory").to_series().to_list()


def truth(op: str, value: object, literal: object) -> bool | None:
    return None if value is None else OPERATORS[op](value, literal)


@examples(60)
@given(st.sampled_from(INTEGERS), OPS, st.data())
def test_an_integer_column_compares_exactly_with_any_number(kind: pa.DataType, op: str, data: st.DataObject):
    low, high = (np.iinfo(kind.to_pandas_dtype()).min, np.iinfo(kind.to_pandas_dtype()).max)
    near = st.sampled_from([low, low + 1, -1, 0, 1, 2**53, 2**53 + 1, high - 1, high])
    values = [v if v is None or low <= v <= high else None for v in data.draw(st.lists(st.none() | near, min_size=1))]
    edges = near.flatmap(lambda at: st.integers(at - 2, at + 2))
    literal = data.draw(
        edges
        | st.sampled_from([10**30, -(10**30), 0.5, 1e300, -1e300])
        | st.integers(-(10**37), 10**37)
        | st.floats(allow_nan=False, allow_infinity=False)
        | edges.map(float)
    )
    column = pa.array(values, kind)
    expected = [truth(op, value, Fraction(literal)) for value in values]
    assert kept(f"x {op} {literal!r}", column) == expected
    assert_leaves_hold_in(kind, f"x {op} {literal!r}")
    inside = [None if value is None else value == Fraction(literal) for value in values]
    assert kept(f"x in [{literal!r}]", column) == inside
    assert kept(f"not (x {op} {literal!r})", column) == [None if t is None else not t for t in expected]


def assert_leaves_hold_in(kind: pa.DataType, text: str) -> None:
    """What is compared with statistics is a value of the column's own type."""
    predicate = bind_where(text, pa.schema([("x", kind)])).predicate
    for leaf in predicate.items if isinstance(predicate, And | Or) else (predicate,):
        assert isinstance(leaf, Comparison)
        assert type(leaf.value) is int
        pa.scalar(leaf.value, kind)  # raises if the type cannot hold it


WIDTHS = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64}


@examples(60)
@given(st.sampled_from([*WIDTHS]), OPS, st.data())
def test_a_float_column_means_the_nearest_float_of_its_width(kind: pa.DataType, op: str, data: st.DataObject):
    width = WIDTHS[kind]
    literal = data.draw(
        st.sampled_from([0.1, 0.3, -0.0, 0, 1, 16777217, 2**53 + 1, 65504, 65519, 3.4e38])
        | st.floats(-1e4, 1e4, allow_nan=False)
        | st.integers(-60000, 60000)
    )
    with np.errstate(over="ignore"):
        bound = width(literal)
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0, 0.1, float(bound)]
    bits = {np.float16: 16, np.float32: 32, np.float64: 64}[width]
    numbers = data.draw(st.lists(st.sampled_from(special) | st.floats(width=bits), min_size=1, max_size=8))
    values = np.array(numbers, width)
    if np.isinf(bound):
        return  # beyond the largest float: the test below
    expected = [bool(truth(op, value, bound)) for value in values]
    column = pa.array(values, kind)
    assert kept(f"x {op} {literal!r}", column) == expected
    assert kept(f"not x {op} {literal!r}", column) == [not t for t in expected]
    assert kept(f"x in [{literal!r}]", column) == [bool(value == bound) for value in values]
    assert kept(f"x not in [{literal!r}]", column) == [not bool(value == bound) for value in values]


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("literal", [1e39, -1e39, 3.5e38, 10**38 - 1])
def test_a_number_beyond_the_largest_float_is_still_finite(op: str, literal: float):
    largest = float(np.finfo(np.float32).max)
    values = [math.nan, math.inf, -math.inf, largest, -largest, 0.0]
    expected = [OPERATORS[op](value, float(literal)) for value in values]
    assert kept(f"x {op} {literal!r}", pa.array(values, pa.float32())) == expected
    assert kept(f"x {op} {literal!r}", pa.array([None], pa.float32())) == [None]


@given(st.integers(0, 4), OPS, st.integers(-(10**6), 10**6), st.integers(0, 5), st.lists(st.integers(-999, 999)))
def test_a_decimal_column_compares_with_the_digits_as_written(
    scale: int, op: str, digits: int, at: int, units: list[int]
):
    literal = Decimal(digits).scaleb(-at)
    values = [Decimal(unit).scaleb(-scale) for unit in units]
    text = f"{literal:f}" if at else str(digits)
    if float(text) != 0 and len(text.strip("-0.")) > 15:
        return
    column = pa.array([*values, None], pa.decimal128(6, scale))
    expected = [OPERATORS[op](value, literal) for value in values]
    assert kept(f"x {op} {text}", column) == [*expected, None]
    assert kept(f"x in [{text}]", column) == [*(value == literal for value in values), None]


MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


@given(st.sampled_from([*UNITS]), OPS, MOMENTS, st.integers(-3, 3), st.sampled_from([0, 1, 999]))
def test_a_timestamp_column_compares_exactly(unit: str, op: str, moment: datetime, steps: int, microseconds: int):
    if unit == "ns":
        moment = moment.replace(year=1700 + moment.year % 500, day=min(moment.day, 28))
    step = timedelta(microseconds=UNITS[unit])
    epoch = datetime(1970, 1, 1)
    whole = epoch + (moment - epoch) // step * step
    value = whole + steps * step
    literal = whole + timedelta(microseconds=microseconds)
    column = pa.array([value, None], pa.timestamp(unit))
    assert kept(f'x {op} "{literal.isoformat()}"', column) == [OPERATORS[op](value, literal), None]
    assert kept(f'x in ["{literal.isoformat(sep=" ")}"]', column) == [value == literal, None]


@pytest.mark.parametrize("literal", ["1500-01-01", "2400-01-01T00:00:00.5"])
@pytest.mark.parametrize("op", OPERATORS)
def test_a_moment_beyond_nanoseconds_is_before_or_after_all(literal: str, op: str):
    column = pa.array([-(2**63), 0, 2**63 - 1, None], pa.timestamp("ns"))
    before = literal < "1900"
    expected = {"==": False, "!=": True, "<": not before, "<=": not before, ">": before, ">=": before}[op]
    assert kept(f'x {op} "{literal}"', column) == [expected] * 3 + [None]


@given(OPS, st.dates(date(1, 1, 2), date(9999, 12, 30)), st.integers(-1, 1), st.sampled_from(["", "T00:00", "T12:30"]))
def test_a_date_column_compares_with_dates_and_moments(op: str, day: date, steps: int, time: str):
    value = day + timedelta(days=steps)
    literal = datetime.fromisoformat(f"{day.isoformat()}{time}")
    expected = OPERATORS[op](datetime(value.year, value.month, value.day), literal)
    assert kept(f'x {op} "{day.isoformat()}{time}"', pa.array([value, None], pa.date32())) == [expected, None]


ZONES = ["Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "Australia/Lord_Howe", "UTC"]
LOCAL = st.datetimes(datetime(1971, 1, 1), datetime(2037, 1, 1)) | st.sampled_from(
    [
        datetime(2026, 3, 29, 2, 30),  # skipped in Berlin
        datetime(2026, 10, 25, 2, 30),  # twice in Berlin
        datetime(2018, 11, 4),  # midnight skipped in São Paulo
        datetime(2018, 2, 17, 23, 30),  # twice in São Paulo
        datetime(2025, 10, 5, 2, 15),  # half an hour skipped on Lord Howe
    ]
)


@given(st.sampled_from(ZONES), OPS, LOCAL, st.integers(-1, 1))
def test_a_local_time_means_the_column_s_own_zone(zone: str, op: str, local: datetime, steps: int):
    instant = local.replace(tzinfo=ZoneInfo(zone), fold=0).astimezone(UTC)
    value = instant + timedelta(microseconds=steps)
    column = pa.array([value, None], pa.timestamp("us", zone))
    assert kept(f'x {op} "{local.isoformat()}"', column) == [OPERATORS[op](value, instant), None]


@given(st.sampled_from(ZONES), OPS, LOCAL, st.sampled_from(["Z", "+02:00", "-0330", "+14:00"]), st.integers(-1, 1))
def test_an_offset_means_that_instant(zone: str, op: str, local: datetime, offset: str, steps: int):
    instant = datetime.fromisoformat(f"{local.isoformat()}{offset}")
    value = instant + timedelta(microseconds=steps)
    column = pa.array([value, None], pa.timestamp("us", zone))
    assert kept(f'x {op} "{local.isoformat()}{offset}"', column) == [OPERATORS[op](value, instant), None]


def test_the_predicate_of_a_zoned_timestamp_is_an_aware_datetime():
    schema = pa.schema([("x", pa.timestamp("ms", "Europe/Berlin")), ("y", pa.timestamp("us"))])
    expected = Comparison(column="x", op=">=", value=datetime(2025, 12, 31, 23, tzinfo=UTC))
    assert bind_where('x >= "2026-01-01"', schema).predicate == expected
    assert bind_where('y >= "2026-01-01"', schema).predicate == Comparison(
        column="y", op=">=", value=datetime(2026, 1, 1)
    )


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2)])
def test_bytes(kind: pa.DataType):
    column = pa.array([b"US", b"\xff\x00", None], kind)
    assert kept('x == b"US"', column) == [True, False, None]
    assert kept(r'x > b"\xfe"', column) == [False, True, None]
    assert kept(r'x in [b"US", b"\xff\x00"]', column) == [True, True, None]


def test_an_empty_list_holds_nothing_and_null_stays_null():
    assert kept("x in []", pa.array([1, None])) == [False, None]
    assert kept("x not in []", pa.array(["a", None])) == [True, None]
    assert kept("x in []", pa.array([1.0, math.nan, None])) == [False, False, None]
    assert kept("x in [2.5, 1e30]", pa.array([1, None])) == [False, None]


def test_values_of_a_list_are_bound_and_deduplicated():
    schema = pa.schema([("x", pa.float32()), ("y", pa.int8())])
    tenth = float(np.float32(0.1))
    assert bind_where("x in [0.1, 0.1, 1, 1e300]", schema).predicate == Membership(column="x", values=(tenth, 1.0))
    assert bind_where("y in [3, 3.0, 2.5, 1000]", schema).predicate == Membership(column="y", values=(3,))


WRONG = [
    (pa.string(), "5", "the literal does not fit string: got the integer 5, expected a string such as"),
    (pa.string(), "True", "got the boolean True, expected a string"),
    (pa.string(), 'b"a"', "got the bytes b'a', expected a string"),
    (pa.int64(), '"5"', "the literal does not fit int64: got the string '5', expected a number"),
    (pa.int64(), "True", "got the boolean True, expected a number"),
    (pa.float32(), '"5"', "the literal does not fit float32"),
    (pa.bool_(), "1", "the literal does not fit bool: got the integer 1, expected True or False"),
    (pa.decimal128(5, 2), '"1"', "the literal does not fit decimal(5, 2)"),
    (pa.date32(), "20260101", "the literal does not fit date: got the integer 20260101, expected a date such as"),
    (pa.date32(), '"20260101"', "the literal does not fit date"),
    (pa.date32(), '"2026-02-30"', "'2026-02-30' is not a valid date or time: day is out of range for month"),
    (pa.date32(), '"2026-02-20T00:00Z"', "a date has no time zone"),
    (
        pa.timestamp("us"),
        "0",
        "the literal does not fit timestamp[us]: got the integer 0, expected a date or timestamp",
    ),
    (pa.timestamp("us"), '"2026-01-01T00:00:00Z"', "timestamp[us] has no time zone"),
    (pa.timestamp("us"), '"2026-01-01T25:00"', "is not a valid date or time: hour must be in 0..23"),
    (pa.timestamp("us"), '"2026-01-01T00:00:00.1234567"', "the literal does not fit timestamp[us]"),
    (pa.timestamp("us"), '"\u0662026-01-01"', "the literal does not fit timestamp[us]"),
    (pa.timestamp("us", "Asia/Tokyo"), '"0001-01-01"', "a timestamp must lie in the years 1 to 9999 (UTC)"),
    (pa.timestamp("us", "UTC"), '"2026-01-01T00:00+25:00"', "is not a valid date or time"),
    (pa.duration("us"), "5", "duration[us] has no literals: got the integer 5. compare `x.dt.total_seconds()`"),
    (pa.time64("us"), '"12:00"', "time cannot be compared"),
    (pa.list_(pa.int8()), "5", "list<int8> cannot be compared. Write `.list.contains(value)`"),
    (pa.struct([("a", pa.int8())]), "5", "struct<a: int8> cannot be compared"),
    (pa.null(), "5", "null cannot be compared"),
]


@pytest.mark.parametrize(("kind", "literal", "message"), WRONG)
def test_a_literal_of_another_kind_is_an_error(kind: pa.DataType, literal: str, message: str):
    for text in (f"x == {literal}", f"{literal} == x"):
        with pytest.raises(ExpressionError) as caught:
            bind_where(text, pa.schema([("x", kind)]))
        assert message in str(caught.value)
