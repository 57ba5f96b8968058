"""Bind a literal to the type of a column, once for pruning and for filtering.

Pure. Integers, decimals, dates and timestamps are multiples of a unit (1, 10**-scale, a day, a microsecond ...), so a
literal is a rational number of units and a comparison with it is *exact*: with the floor f of a literal q between two
units, `x < q` is `x <= f`, `x >= q` is `x > f`, `x == q` is false; beyond the type's range the answer is constant.
Floats take the nearest value of their own width, so `p <= 0.1` on a float32 column means float32's 0.1. "Always" and
"never" are written as comparisons too (`x == v or x != v`), which keeps them null where the column is null.

A timestamp string without an offset is in the column's own time zone; a date is its midnight.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Literal

import polars as pl

from feedline.dataclass import dataclass
from feedline.expressions.nodes import Constant, Fault
from feedline.expressions.predicates import Operator
from feedline.expressions.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL,
    FLOAT,
    INTEGER,
    INTEGER_RANGES,
    STRING,
    TIMESTAMP,
    kind,
    type_name,
)

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY_US = 86_400_000_000
_FIRST_US = (datetime.min - _EPOCH) // _MICROSECOND
_LAST_US = (datetime.max - _EPOCH) // _MICROSECOND
_UNITS_PER_US = {"ms": Fraction(1, 1000), "us": Fraction(1), "ns": Fraction(1000)}
_FLOATS: dict[type[pl.DataType], tuple[str, float]] = {
    pl.Float16: ("<e", 65504.0),
    pl.Float32: ("<f", float.fromhex("0x1.fffffep+127")),
    pl.Float64: ("<d", float.fromhex("0x1.fffffffffffffp+1023")),
}
_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)
OPERATORS: dict[Operator, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EXPECTATIONS = {
    INTEGER: "a number",
    FLOAT: "a number",
    DECIMAL: "a number",
    STRING: 'a string such as "US"',
    BINARY: 'bytes such as b"US"',
    BOOLEAN: "True or False",
    DATE: 'a date such as "2026-01-31"',
    TIMESTAMP: 'a date or timestamp such as "2026-01-31" or "2026-01-31T12:00:00"',
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """`column op value`, with a value of the column's type."""

    op: Operator
    value: object


@dataclass(frozen=True, slots=True)
class LiteralComparison:
    """A comparison in values of the column's type: a leaf, or two joined by `and` (never true), `or` (always true)."""

    connective: Literal["and", "or"]
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class _Grid:
    """A type whose values are whole units: its range in units, and conversions from a literal and to a value."""

    low: int
    high: int
    spot: int  # a unit that `value` can represent, as far from real data as possible
    position: Callable[[Constant], Fraction]
    value: Callable[[int], object]


def compare_literal(op: Operator, constant: Constant, dtype: pl.DataType) -> LiteralComparison:
    """`x op constant` for an x of that type. Raises Fault where such a literal cannot be compared with that type."""
    if kind(dtype) == FLOAT:
        return _compare_float(op, constant, dtype)
    grid = _grid(dtype)
    if grid is None:
        if kind(dtype) == BOOLEAN and op not in ("==", "!="):
            raise Fault("booleans have no order: compare with `==` or `!=`", constant.span)
        return LiteralComparison("and", (Leaf(op, _plain(constant, dtype)),))
    # int8: x < 2.5 is x <= 2, x >= 2.5 is x > 2, x == 2.5 is never true, x < 300 is always true
    position = grid.position(constant)
    floor = position.numerator // position.denominator
    exact = floor == position
    if not grid.low <= floor <= grid.high:
        return _constant(op in (("<", "<=", "!=") if floor > grid.high else (">", ">=", "!=")), grid.value(grid.spot))
    if not exact:
        if op in ("==", "!="):
            return _constant(op == "!=", grid.value(grid.spot))
        op = "<=" if op in ("<", "<=") else ">"
    return LiteralComparison("and", (Leaf(op, grid.value(floor)),))


def list_members(constants: Sequence[Constant], dtype: pl.DataType) -> LiteralComparison | tuple[object, ...]:
    """The values of a list that the type can hold; a `LiteralComparison` that is never true where there are none."""
    values = [value for constant in constants for value in _equal_values(constant, dtype)]
    if values:
        return tuple(dict.fromkeys(values))
    if kind(dtype) == FLOAT:
        return _constant(False, _FLOATS[type(dtype)][1])
    grid = _grid(dtype)
    plain = {STRING: "", BINARY: b"", BOOLEAN: False}.get(kind(dtype))
    return _constant(False, plain if grid is None else grid.value(grid.spot))


def value_of(constant: Constant, dtype: pl.DataType) -> object:
    """The literal as a value of that type: exactly, or the nearest float. Raises Fault where the type has no such
    value."""
    if constant.value is None:
        return None
    for value in _equal_values(constant, dtype):
        return value
    what = "number" if kind(dtype) == FLOAT else "literal"
    raise Fault(f"the {what} does not fit {type_name(dtype)}: got {constant.value!r}", constant.span)


def _equal_values(constant: Constant, dtype: pl.DataType) -> tuple[object, ...]:
    """The value of that type that equals the literal, or the nearest float; none where the type has none."""
    if kind(dtype) == FLOAT:
        nearest = _nearest_float(constant, dtype)
        return () if abs(nearest) == float("inf") else (nearest,)
    grid = _grid(dtype)
    if grid is None:
        return (_plain(constant, dtype),)
    position = grid.position(constant)
    if position.denominator == 1 and grid.low <= position <= grid.high:
        return (grid.value(position.numerator),)
    return ()


def literal(value: object, dtype: pl.DataType) -> pl.Expr:
    """A bound value as a Polars literal of exactly that type."""
    if isinstance(dtype, pl.Datetime) and value is not None:
        return pl.lit(_units(value, dtype), dtype=pl.Int64).cast(dtype)
    return pl.lit(value, dtype=dtype)


def evaluate(leaf: Leaf, item: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """The leaf as a Polars expression; NaN, which Polars orders above infinity, fails every comparison but `!=`."""
    value = literal(leaf.value, dtype)
    if kind(dtype) == FLOAT and leaf.op in (">", ">="):
        top = pl.lit(float("inf"), dtype=dtype)
        return item.is_between(value, top, closed="right" if leaf.op == ">" else "both")
    return OPERATORS[leaf.op](item, value)


def evaluate_members(values: Sequence[object], item: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """`item in values` as a Polars expression, null for null."""
    if isinstance(dtype, pl.Datetime):
        units = [_units(value, dtype) for value in values]
        return item.is_in(pl.lit(units, dtype=pl.List(pl.Int64)).cast(pl.List(dtype)))
    return item.is_in(pl.lit(list(values), dtype=pl.List(dtype)))


def misfit_fault(constant: Constant, dtype: pl.DataType) -> Fault:
    """The fault of a literal that a type cannot be compared with."""
    names: dict[type, str] = {bool: "the boolean", int: "the integer", float: "the number", str: "the string"}
    shown = repr(constant.value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    got = f"{names.get(type(constant.value), 'the bytes')} {shown}"
    expected = _EXPECTATIONS.get(kind(dtype))
    if expected is None:
        remedy = {"duration": "compare `x.dt.total_seconds()`", "time": "compare `x.dt.hour()`"}.get(kind(dtype), "")
        return Fault(f"{type_name(dtype)} has no literals: got {got}. {remedy}".rstrip(". "), constant.span)
    return Fault(f"the literal does not fit {type_name(dtype)}: got {got}, expected {expected}", constant.span)


def _constant(always: bool, value: object) -> LiteralComparison:
    return LiteralComparison("or" if always else "and", (Leaf("==", value), Leaf("!=", value)))


def _compare_float(op: Operator, constant: Constant, dtype: pl.DataType) -> LiteralComparison:
    value = _nearest_float(constant, dtype)
    if abs(value) != float("inf"):
        return LiteralComparison("and", (Leaf(op, value),))
    top = _FLOATS[type(dtype)][1]
    if op in ("==", "!="):
        return _constant(op == "!=", top)
    if value > 0:  # a finite literal above the largest float: below infinity, above all else
        return LiteralComparison("and", (Leaf("<=" if op in ("<", "<=") else ">", top),))
    return LiteralComparison("and", (Leaf("<" if op in ("<", "<=") else ">=", -top),))


def _nearest_float(constant: Constant, dtype: pl.DataType) -> float:
    if isinstance(constant.value, bool) or not isinstance(constant.value, int | float):
        raise misfit_fault(constant, dtype)
    code, _ = _FLOATS[type(dtype)]
    value = float(constant.value)
    try:
        rounded: float = struct.unpack(code, struct.pack(code, value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return rounded + 0.0  # no negative zero: it equals zero, and statistics are compared by value


def _plain(constant: Constant, dtype: pl.DataType) -> object:
    value = constant.value
    fits = {STRING: str, BINARY: bytes, BOOLEAN: bool}.get(kind(dtype))
    if fits is None or not isinstance(value, fits):
        raise misfit_fault(constant, dtype)
    return value


def _grid(dtype: pl.DataType) -> _Grid | None:
    match dtype:
        case pl.Decimal(precision=precision, scale=scale):
            top = 10 ** (precision or 38) - 1
            return _Grid(
                -top, top, top, lambda c: _number(c, dtype) * Fraction(10) ** scale, lambda n: _decimal(n, scale)
            )
        case pl.Date():
            last = (date.max - _EPOCH.date()).days
            return _Grid(-(2**31), 2**31 - 1, last, lambda c: _days(c, dtype), _date)
        case pl.Datetime(time_unit=unit, time_zone=zone):
            return _timestamp_grid(dtype, unit, zone)
    limits = INTEGER_RANGES.get(type(dtype))
    return limits and _Grid(*limits, limits[1], lambda c: _number(c, dtype), lambda n: n)


def _timestamp_grid(dtype: pl.Datetime, unit: str, zone: str | None) -> _Grid:
    per_us = _UNITS_PER_US[unit]
    low, high = -(2**63), 2**63 - 1
    spot = min(int(_LAST_US * per_us), int(int(high / per_us) * per_us))
    epoch = _EPOCH_UTC if zone else _EPOCH
    return _Grid(
        low,
        high,
        spot,
        lambda c: _microseconds(c, dtype, zone) * per_us,
        lambda n: epoch + int(n / per_us) * _MICROSECOND,
    )


def _number(constant: Constant, dtype: pl.DataType) -> Fraction:
    value = constant.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise misfit_fault(constant, dtype)
    # for a decimal column the digits as written, for an integer column the float's exact value
    return Fraction(Decimal(repr(value))) if kind(dtype) == DECIMAL else Fraction(value)


def _decimal(units: int, scale: int) -> Decimal:
    digits = tuple(int(digit) for digit in str(abs(units)))
    return Decimal((int(units < 0), digits, -scale))  # no context: the default one rounds to 28 digits


def _date(days: int) -> date:
    return _EPOCH.date() + timedelta(days=days)


def _parse(constant: Constant, dtype: pl.DataType) -> tuple[datetime, timedelta | None, bool]:
    """Local time, offset from UTC if written, and whether a time of day was written."""
    match = _TIMESTAMP.fullmatch(constant.value) if isinstance(constant.value, str) else None
    if match is None:
        raise misfit_fault(constant, dtype)
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    microsecond = int((fraction or "0").ljust(6, "0"))
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), microsecond
        )
        offset = None if zone is None else _offset(zone)
    except ValueError as error:
        raise Fault(f"{constant.value!r} is not a valid date or time: {error}", constant.span) from None
    return moment, offset, hour is not None


def _offset(zone: str) -> timedelta:
    if zone == "Z":
        return timedelta()
    minutes = int(zone[1:3]) * 60 + int(zone[-2:])
    return timezone(timedelta(minutes=-minutes if zone[0] == "-" else minutes)).utcoffset(None)


def _days(constant: Constant, dtype: pl.DataType) -> Fraction:
    moment, offset, _ = _parse(constant, dtype)
    if offset is not None:
        raise Fault(f"a date has no time zone: got {constant.value!r}", constant.span)
    return Fraction((moment - _EPOCH) // _MICROSECOND, _DAY_US)


def _microseconds(constant: Constant, dtype: pl.DataType, zone: str | None) -> Fraction:
    moment, offset, _ = _parse(constant, dtype)
    if offset is not None and zone is None:
        raise Fault(f"{type_name(dtype)} has no time zone: got {constant.value!r}. Leave the offset out", constant.span)
    at = (moment - _EPOCH) // _MICROSECOND
    if offset is not None:
        at -= offset // _MICROSECOND
    elif zone is not None:
        at = _instant(at, zone)
    if not _FIRST_US <= at <= _LAST_US:
        raise Fault(f"a timestamp must lie in the years 1 to 9999 (UTC): got {constant.value!r}", constant.span)
    return Fraction(at)


def _instant(local: int, zone: str) -> int:
    """Microseconds since 1970 (UTC) of a local time: the earlier of two, the jump where the clock skips it."""

    def instant(at: int) -> int | None:
        wall = pl.Series([at], dtype=pl.Int64).cast(pl.Datetime("us"))
        moment = wall.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null").to_physical()
        return None if moment.has_nulls() else int(moment[0])

    moment_us = instant(local)
    if moment_us is None:  # skipped: read with the offset of the day before, as by a clock that was not moved
        day_before = instant(local - _DAY_US)
        moment_us = local if day_before is None else day_before + _DAY_US
    return moment_us


def _units(value: object, dtype: pl.Datetime) -> int:
    assert isinstance(value, datetime)
    since = value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)
    return int((since // _MICROSECOND) * _UNITS_PER_US[dtype.time_unit])
