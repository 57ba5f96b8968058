"""Declare the methods in namespaces: `dt` for dates and timestamps, `str` for strings, `list` for lists.

Pure. They are Polars' own methods under Polars' names, with int64 integers, literal patterns and sums that cannot wrap.
No method looks beyond its own row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import polars as pl

from feedline.expressions import literals
from feedline.expressions.functions.signatures import Function, Parameter
from feedline.expressions.literals import LiteralComparison
from feedline.expressions.nodes import Constant
from feedline.expressions.operators import BOOL, FLOAT64, INT64, UINT64, Operand, compare_operands, result
from feedline.expressions.spans import Fault, Span
from feedline.expressions.types import (
    BOOLEAN,
    DATE,
    DECIMAL,
    DURATION,
    INTEGER,
    LIST,
    NUMBERS,
    STRING,
    TIME,
    TIMESTAMP,
    inner_type,
    kind,
    type_name,
)

_DAYS = frozenset({DATE, TIMESTAMP})
_CLOCK = frozenset({TIMESTAMP, TIME})
_TEXT = pl.String()
_DURATION = re.compile(r"[1-9][0-9]{0,5}(?:us|ms|s|m|h|d|w|mo|q|y)")
_FORMAT = re.compile(r"(?:[^%]|%(?:[YmdHMSyjbBeaATFRpI%]|[369]f|\.[369]?f))*")
MAX_ZEROS = 256  # of `zfill`: a wider column is a mistake, and memory


def _method(
    name: str,
    receiver: frozenset[str],
    compute: Callable[..., pl.Expr],
    dtype: pl.DataType | None,
    summary: str,
    *parameters: Parameter,
) -> Function:
    """A method whose result has a fixed type, or the receiver's where `dtype` is None."""

    def build(x: Operand, *values: object, span: Span) -> Operand:
        expr = compute(x.expr, *values)
        if dtype == INT64:
            expr = expr.cast(INT64)
        return result(expr, dtype or x.dtype, span, [x], extra=2 + len(values))

    return Function(name=name, receiver=receiver, build=build, summary=summary, parameters=parameters)


def _integer(name: str, default: object = ...) -> Parameter:
    return Parameter(name=name, accepts="integer", default=default)


def _count(name: str, default: object = ...) -> Parameter:
    return Parameter(name=name, accepts="integer", default=default, minimum=0)


def _text(name: str, default: object = ...) -> Parameter:
    return Parameter(name=name, accepts="text", default=default)


# --- dt -----------------------------------------------------------------------------------------------------


def _truncate(x: Operand, every: str, *, span: Span) -> Operand:
    if not _DURATION.fullmatch(every):
        raise Fault(f'not a duration: got {every!r}, expected one like "15m", "1h" or "1d"', span)
    return result(x.expr.dt.truncate(every), x.dtype, span, [x])


def _zone(convert: bool) -> Callable[..., Operand]:
    def build(x: Operand, time_zone: str, *, span: Span) -> Operand:
        assert isinstance(x.dtype, pl.Datetime)
        try:
            dtype = pl.select(pl.lit(0).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(time_zone)).dtypes[0]
        except pl.exceptions.PolarsError:
            raise Fault(f"unknown time zone: got {time_zone!r}, expected a name such as Europe/Berlin", span) from None
        assert isinstance(dtype, pl.Datetime)
        if convert:
            expr = x.expr.dt.convert_time_zone(time_zone)
        else:
            if x.dtype.time_zone is not None:
                raise Fault(f"{type_name(x.dtype)} has a time zone: write `.dt.convert_time_zone(...)`", x.span)
            expr = x.expr.dt.replace_time_zone(time_zone, ambiguous="earliest", non_existent="null")
        return result(expr, pl.Datetime(x.dtype.time_unit, dtype.time_zone), span, [x])

    return build


_DT = (
    _method("dt.year", _DAYS, lambda e: e.dt.year(), INT64, "the year"),
    _method("dt.iso_year", _DAYS, lambda e: e.dt.iso_year(), INT64, "the year of the ISO week"),
    _method("dt.quarter", _DAYS, lambda e: e.dt.quarter(), INT64, "1 to 4"),
    _method("dt.month", _DAYS, lambda e: e.dt.month(), INT64, "1 to 12"),
    _method("dt.week", _DAYS, lambda e: e.dt.week(), INT64, "the ISO week, 1 to 53"),
    _method("dt.day", _DAYS, lambda e: e.dt.day(), INT64, "the day of the month, 1 to 31"),
    _method("dt.weekday", _DAYS, lambda e: e.dt.weekday(), INT64, "1 for Monday to 7 for Sunday"),
    _method("dt.ordinal_day", _DAYS, lambda e: e.dt.ordinal_day(), INT64, "the day of the year, 1 to 366"),
    _method("dt.days_in_month", _DAYS, lambda e: e.dt.days_in_month(), INT64, "28 to 31"),
    _method("dt.is_leap_year", _DAYS, lambda e: e.dt.is_leap_year(), BOOL, "whether the year is a leap year"),
    _method("dt.hour", _CLOCK, lambda e: e.dt.hour(), INT64, "0 to 23, in the column's time zone"),
    _method("dt.minute", _CLOCK, lambda e: e.dt.minute(), INT64, "0 to 59"),
    _method("dt.second", _CLOCK, lambda e: e.dt.second(), INT64, "0 to 59"),
    _method("dt.millisecond", _CLOCK, lambda e: e.dt.millisecond(), INT64, "0 to 999, of the second"),
    _method("dt.microsecond", _CLOCK, lambda e: e.dt.microsecond(), INT64, "0 to 999,999, of the second"),
    _method("dt.date", frozenset({TIMESTAMP}), lambda e: e.dt.date(), pl.Date(), "the date, in the column's time zone"),
    _method(
        "dt.epoch",
        _DAYS,
        lambda e, unit: e.dt.epoch(unit),
        INT64,
        "units since 1970-01-01 UTC, rounded down",
        Parameter(name="time_unit", accepts="text", default="us", choices=("d", "s", "ms", "us", "ns")),
    ),
    Function(
        name="dt.truncate",
        receiver=_DAYS,
        build=_truncate,
        parameters=(_text("every"),),
        summary='rounded down to a multiple of `"15m"`, `"1h"`, `"1d"`, `"1w"`, `"1mo"` ...',
    ),
    Function(
        name="dt.convert_time_zone",
        receiver=frozenset({TIMESTAMP}),
        build=_zone(True),
        parameters=(_text("time_zone"),),
        summary="the same instant in another time zone; a column without one is read as UTC",
    ),
    Function(
        name="dt.replace_time_zone",
        receiver=frozenset({TIMESTAMP}),
        build=_zone(False),
        parameters=(_text("time_zone"),),
        summary="a column without a time zone read as local time: the earlier of two, null where the clock skips it",
    ),
    *(
        _method(
            f"dt.total_{unit}",
            frozenset({DURATION}),
            lambda e, unit=unit: getattr(e.dt, f"total_{unit}")(),
            INT64,
            f"whole {unit} of the difference of two timestamps, towards 0",
        )
        for unit in ("days", "hours", "minutes", "seconds", "milliseconds", "microseconds")
    ),
)

# --- str ----------------------------------------------------------------------------------------------------


def _parse(name: str, dtype: pl.DataType, parse: Callable[..., pl.Expr], summary: str) -> Function:
    def build(x: Operand, form: str, *, span: Span) -> Operand:
        if not _FORMAT.fullmatch(form):
            raise Fault(f'the format is unknown: got {form!r}, expected one like "%Y-%m-%d %H:%M:%S"', span)
        try:
            pl.select(parse(pl.lit("0"), form))
        except pl.exceptions.PolarsError:
            raise Fault(f"the format does not make a full {kind(dtype)}: got {form!r}", span) from None
        return result(parse(x.expr, form), dtype, span, [x])

    return Function(
        name=name, receiver=frozenset({STRING}), build=build, parameters=(_text("format"),), summary=summary
    )


def _zfill(x: Operand, length: int, *, span: Span) -> Operand:
    if length > MAX_ZEROS:
        raise Fault(f"the length must be at most {MAX_ZEROS}: got {length}", span)
    return result(x.expr.str.zfill(length), _TEXT, span, [x])


def _split(x: Operand, by: str, *, span: Span) -> Operand:
    if not by:
        raise Fault("the separator must not be empty", span)
    return result(x.expr.str.split(by), pl.List(pl.String), span, [x])


def _replace(name: str, replace_: Callable[..., pl.Expr], summary: str) -> Function:
    def build(x: Operand, old: str, new: str, *, span: Span) -> Operand:
        if not old:
            raise Fault("the pattern to replace must not be empty", span)
        return result(replace_(x.expr, old, new), _TEXT, span, [x], extra=3)

    return Function(
        name=name,
        receiver=frozenset({STRING}),
        build=build,
        parameters=(_text("pattern"), _text("value")),
        summary=summary,
    )


def _string(
    name: str, compute: Callable[..., pl.Expr], dtype: pl.DataType, summary: str, *parameters: Parameter
) -> Function:
    return _method(f"str.{name}", frozenset({STRING}), compute, dtype, summary, *parameters)


_STR = (
    _string("len_chars", lambda e: e.str.len_chars(), INT64, "number of characters"),
    _string("len_bytes", lambda e: e.str.len_bytes(), INT64, "number of bytes in UTF-8"),
    _string("to_lowercase", lambda e: e.str.to_lowercase(), _TEXT, "in lower case"),
    _string("to_uppercase", lambda e: e.str.to_uppercase(), _TEXT, "in upper case"),
    _string(
        "starts_with", lambda e, t: e.str.starts_with(t), BOOL, "whether it begins with that string", _text("prefix")
    ),
    _string("ends_with", lambda e, t: e.str.ends_with(t), BOOL, "whether it ends with that string", _text("suffix")),
    _string(
        "contains",
        lambda e, t: e.str.contains(t, literal=True),
        BOOL,
        "whether that string, taken literally, is part of it",
        _text("pattern"),
    ),
    _string(
        "slice",
        lambda e, start, length: e.str.slice(start, length),
        _TEXT,
        "characters from a position (from 0, negative from the end)",
        _integer("offset"),
        _count("length", None),
    ),
    _string("head", lambda e, n: e.str.head(n), _TEXT, "the first n characters", _count("n")),
    _string("tail", lambda e, n: e.str.tail(n), _TEXT, "the last n characters", _count("n")),
    _string(
        "strip_chars",
        lambda e, t: e.str.strip_chars(t),
        _TEXT,
        "without these characters (default: white space) at both ends",
        _text("characters", None),
    ),
    _string("strip_prefix", lambda e, t: e.str.strip_prefix(t), _TEXT, "without that prefix", _text("prefix")),
    _string("strip_suffix", lambda e, t: e.str.strip_suffix(t), _TEXT, "without that suffix", _text("suffix")),
    _replace("str.replace", lambda e, old, new: e.str.replace(old, new, literal=True), "the first match replaced"),
    _replace("str.replace_all", lambda e, old, new: e.str.replace_all(old, new, literal=True), "every match replaced"),
    Function(
        name="str.zfill",
        receiver=frozenset({STRING}),
        build=_zfill,
        parameters=(_count("length"),),
        summary="padded with zeros on the left",
    ),
    Function(
        name="str.split",
        receiver=frozenset({STRING}),
        build=_split,
        parameters=(_text("by"),),
        summary="the list of strings between the separators",
    ),
    _parse(
        "str.to_date",
        pl.Date(),
        lambda e, form: e.str.to_date(form, strict=False),
        'the date in that format, such as `"%Y%m%d"`; null where it does not match',
    ),
    _parse(
        "str.to_datetime",
        pl.Datetime("us"),
        lambda e, form: e.str.to_datetime(form, strict=False, time_unit="us"),
        "the timestamp (microseconds, no time zone) in that format; null where it does not match",
    ),
)

# --- list ---------------------------------------------------------------------------------------------------


def _element_operand(expr: pl.Expr, dtype: pl.DataType, span: Span, x: Operand) -> Operand:
    """An element of a list in its language type: integers as int64, categories as strings."""
    if kind(dtype) == INTEGER and dtype != UINT64:
        expr, dtype = expr.cast(INT64), INT64
    elif isinstance(dtype, pl.Categorical | pl.Enum):
        expr, dtype = expr.cast(pl.String), _TEXT
    return result(expr, dtype, span, [x], extra=3)


def _element(name: str, compute: Callable[..., pl.Expr], summary: str, *parameters: Parameter) -> Function:
    def build(x: Operand, *values: object, span: Span) -> Operand:
        return _element_operand(compute(x.expr, *values), inner_type(x.dtype), span, x)

    return Function(
        name=f"list.{name}", receiver=frozenset({LIST}), build=build, summary=summary, parameters=parameters
    )


def _reduction(name: str, compute: Callable[[pl.Expr], pl.Expr], summary: str, *, computes: bool = True) -> Function:
    def build(x: Operand, *, span: Span) -> Operand:
        inner = inner_type(x.dtype)
        if kind(inner) not in NUMBERS:
            raise Fault(f"`{name}` works on lists of numbers: got {type_name(x.dtype)}", x.span)
        if not computes and kind(inner) != DECIMAL:
            return _element_operand(compute(x.expr), inner, span, x)
        wide: pl.DataType = INT64 if kind(inner) == INTEGER and name != "list.mean" else FLOAT64
        if inner == UINT64 and wide == INT64:
            wide = UINT64
        lists = x.expr if inner == wide else x.expr.cast(pl.List(wide))
        return result(compute(lists), wide, span, [x], extra=2)

    return Function(name=name, receiver=frozenset({LIST}), build=build, summary=summary)


def _contains(x: Operand, value: Constant, *, span: Span) -> Operand:
    inner = inner_type(x.dtype)
    if value.value is None:
        raise Fault("`list.contains` needs a value: got None", value.span)
    if kind(inner) not in NUMBERS | {STRING, BOOLEAN, DATE, TIMESTAMP}:
        raise Fault(f"`list.contains` works on lists of scalars: got {type_name(x.dtype)}", x.span)
    bound = literals.list_members([value], inner)
    if isinstance(bound, LiteralComparison):  # no element can be that value: false, and null for a null list
        length = replace(x, expr=x.expr.list.len().cast(INT64), dtype=INT64, column=None)
        return compare_operands("<", length, Constant(value=0, span=value.span), span)
    return result(x.expr.list.contains(literals.literal(bound[0], inner)), BOOL, span, [x], extra=2)


def _list(
    name: str, compute: Callable[..., pl.Expr], dtype: pl.DataType | None, summary: str, *parameters: Parameter
) -> Function:
    return _method(f"list.{name}", frozenset({LIST}), compute, dtype, summary, *parameters)


_LIST = (
    _list("len", lambda e: e.list.len(), INT64, "number of elements, nulls included; null for a null list"),
    _list("n_unique", lambda e: e.list.n_unique(), INT64, "number of distinct elements, null counting as one"),
    _reduction("list.sum", lambda e: e.list.sum(), "the sum, nulls ignored, 0 for an empty list; int64 or float64"),
    _reduction("list.mean", lambda e: e.list.mean(), "the mean, nulls ignored, null for an empty list; float64"),
    _reduction(
        "list.min",
        lambda e: e.list.min(),
        "the smallest, nulls and NaN ignored, null for an empty list",
        computes=False,
    ),
    _reduction(
        "list.max", lambda e: e.list.max(), "the largest, nulls and NaN ignored, null for an empty list", computes=False
    ),
    _element("first", lambda e: e.list.first(), "the first element, null for an empty list"),
    _element("last", lambda e: e.list.last(), "the last element, null for an empty list"),
    _element(
        "get",
        lambda e, index: e.list.get(index, null_on_oob=True),
        "the element at a position (from 0, negative from the end), null out of range",
        _integer("index"),
    ),
    Function(
        name="list.contains",
        receiver=frozenset({LIST}),
        build=_contains,
        parameters=(Parameter(name="item", accepts="literal"),),
        summary="whether the literal is an element; null for a null list",
    ),
    _list("head", lambda e, n: e.list.head(n), None, "the first n elements", _count("n")),
    _list("tail", lambda e, n: e.list.tail(n), None, "the last n elements", _count("n")),
    _list(
        "slice",
        lambda e, start, length: e.list.slice(start, length),
        None,
        "elements from a position (from 0, negative from the end)",
        _integer("offset"),
        _count("length", None),
    ),
    _list("reverse", lambda e: e.list.reverse(), None, "in reverse order"),
    _list(
        "sort",
        lambda e, descending: e.list.sort(descending=descending),
        None,
        "in order, nulls first, NaN as the largest",
        Parameter(name="descending", accepts="boolean", default=False),
    ),
    _list(
        "unique", lambda e: e.list.unique(maintain_order=True), None, "each element once, in order of first occurrence"
    ),
    _list("drop_nulls", lambda e: e.list.drop_nulls(), None, "without nulls"),
)

METHODS: tuple[Function, ...] = (*_DT, *_STR, *_LIST)
