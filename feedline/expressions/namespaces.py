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
from feedline.expressions.literals import LiteralComparison
from feedline.expressions.nodes import Constant, Fault, Span
from feedline.expressions.operators import BOOL, FLOAT64, INT64, UINT64, Operand, compare_operands, result
from feedline.expressions.signatures import Function, Parameter
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

_RECEIVERS = {"str": frozenset({STRING}), "list": frozenset({LIST})}
_DAYS = frozenset({DATE, TIMESTAMP})
_CLOCK = frozenset({TIMESTAMP, TIME})
_STAMPS = frozenset({TIMESTAMP})
_TEXT = pl.String()
_DURATION = re.compile(r"[1-9][0-9]{0,5}(?:us|ms|s|m|h|d|w|mo|q|y)")
_FORMAT = re.compile(r"(?:[^%]|%(?:[YmdHMSyjbBeaATFRpI%]|[369]f|\.[369]?f))*")
MAX_ZEROS = 256  # of `zfill`: a wider column is a mistake, and memory


def _own(name: str, expr: pl.Expr, **arguments: object) -> pl.Expr:
    """Polars' own method of that name and namespace."""
    namespace, _, method = name.partition(".")
    call: pl.Expr = getattr(getattr(expr, namespace), method)(**arguments)
    return call


def _method(
    name: str,
    dtype: pl.DataType | None,
    summary: str,
    *parameters: Parameter,
    receiver: frozenset[str] | None = None,
    **options: object,
) -> Function:
    """Polars' method with the parameters' names and further options; of the receiver's type where `dtype` is None."""

    def build(x: Operand, *values: object, span: Span) -> Operand:
        arguments = dict(zip((parameter.name for parameter in parameters), values, strict=True))
        expr = _own(name, x.expr, **arguments, **options)
        if dtype == INT64:
            expr = expr.cast(INT64)
        return result(expr, dtype or x.dtype, span, [x], extra=2 + len(values))

    return Function(name, receiver or _RECEIVERS[name.partition(".")[0]], build, summary, parameters)


def _integer(name: str) -> Parameter:
    return Parameter(name, "integer")


def _count(name: str, default: object = ...) -> Parameter:
    return Parameter(name, "integer", default, minimum=0)


def _text(name: str, default: object = ...) -> Parameter:
    return Parameter(name, "text", default)


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


_ZONE = (_text("time_zone"),)
_DT = (
    _method("dt.year", INT64, "the year", receiver=_DAYS),
    _method("dt.iso_year", INT64, "the year of the ISO week", receiver=_DAYS),
    _method("dt.quarter", INT64, "1 to 4", receiver=_DAYS),
    _method("dt.month", INT64, "1 to 12", receiver=_DAYS),
    _method("dt.week", INT64, "the ISO week, 1 to 53", receiver=_DAYS),
    _method("dt.day", INT64, "the day of the month, 1 to 31", receiver=_DAYS),
    _method("dt.weekday", INT64, "1 for Monday to 7 for Sunday", receiver=_DAYS),
    _method("dt.ordinal_day", INT64, "the day of the year, 1 to 366", receiver=_DAYS),
    _method("dt.days_in_month", INT64, "28 to 31", receiver=_DAYS),
    _method("dt.is_leap_year", BOOL, "whether the year is a leap year", receiver=_DAYS),
    _method("dt.hour", INT64, "0 to 23, in the column's time zone", receiver=_CLOCK),
    _method("dt.minute", INT64, "0 to 59", receiver=_CLOCK),
    _method("dt.second", INT64, "0 to 59", receiver=_CLOCK),
    _method("dt.millisecond", INT64, "0 to 999, of the second", receiver=_CLOCK),
    _method("dt.microsecond", INT64, "0 to 999,999, of the second", receiver=_CLOCK),
    _method("dt.date", pl.Date(), "the date, in the column's time zone", receiver=_STAMPS),
    _method(
        "dt.epoch",
        INT64,
        "units since 1970-01-01 UTC, rounded down",
        Parameter("time_unit", "text", "us", choices=("d", "s", "ms", "us", "ns")),
        receiver=_DAYS,
    ),
    Function(
        "dt.truncate",
        _DAYS,
        _truncate,
        'rounded down to a multiple of `"15m"`, `"1h"`, `"1d"`, `"1w"`, `"1mo"` ...',
        (_text("every"),),
    ),
    Function(
        "dt.convert_time_zone",
        _STAMPS,
        _zone(True),
        "the same instant in another time zone; a column without one is read as UTC",
        _ZONE,
    ),
    Function(
        "dt.replace_time_zone",
        _STAMPS,
        _zone(False),
        "a column without a time zone read as local time: the earlier of two, null where the clock skips it",
        _ZONE,
    ),
    *(
        _method(
            f"dt.total_{unit}",
            INT64,
            f"whole {unit} of the difference of two timestamps, towards 0",
            receiver=frozenset({DURATION}),
        )
        for unit in ("days", "hours", "minutes", "seconds", "milliseconds", "microseconds")
    ),
)

# --- str ----------------------------------------------------------------------------------------------------


def _parse(name: str, dtype: pl.DataType, summary: str, **options: object) -> Function:
    def build(x: Operand, form: str, *, span: Span) -> Operand:
        if not _FORMAT.fullmatch(form):
            raise Fault(f'the format is unknown: got {form!r}, expected one like "%Y-%m-%d %H:%M:%S"', span)
        try:
            pl.select(_own(name, pl.lit("0"), format=form, strict=False, **options))
        except pl.exceptions.PolarsError:
            raise Fault(f"the format does not make a full {kind(dtype)}: got {form!r}", span) from None
        return result(_own(name, x.expr, format=form, strict=False, **options), dtype, span, [x])

    return Function(name, _RECEIVERS["str"], build, summary, (_text("format"),))


def _zfill(x: Operand, length: int, *, span: Span) -> Operand:
    if length > MAX_ZEROS:
        raise Fault(f"the length must be at most {MAX_ZEROS}: got {length}", span)
    return result(x.expr.str.zfill(length), _TEXT, span, [x])


def _split(x: Operand, by: str, *, span: Span) -> Operand:
    if not by:
        raise Fault("the separator must not be empty", span)
    return result(x.expr.str.split(by), pl.List(pl.String), span, [x])


def _replace(name: str, summary: str) -> Function:
    def build(x: Operand, old: str, new: str, *, span: Span) -> Operand:
        if not old:
            raise Fault("the pattern to replace must not be empty", span)
        return result(_own(name, x.expr, pattern=old, value=new, literal=True), _TEXT, span, [x], extra=3)

    return Function(name, _RECEIVERS["str"], build, summary, (_text("pattern"), _text("value")))


_STR = (
    _method("str.len_chars", INT64, "number of characters"),
    _method("str.len_bytes", INT64, "number of bytes in UTF-8"),
    _method("str.to_lowercase", _TEXT, "in lower case"),
    _method("str.to_uppercase", _TEXT, "in upper case"),
    _method("str.starts_with", BOOL, "whether it begins with that string", _text("prefix")),
    _method("str.ends_with", BOOL, "whether it ends with that string", _text("suffix")),
    _method(
        "str.contains", BOOL, "whether that string, taken literally, is part of it", _text("pattern"), literal=True
    ),
    _method(
        "str.slice",
        _TEXT,
        "characters from a position (from 0, negative from the end)",
        _integer("offset"),
        _count("length", None),
    ),
    _method("str.head", _TEXT, "the first n characters", _count("n")),
    _method("str.tail", _TEXT, "the last n characters", _count("n")),
    _method(
        "str.strip_chars",
        _TEXT,
        "without these characters (default: white space) at both ends",
        _text("characters", None),
    ),
    _method("str.strip_prefix", _TEXT, "without that prefix", _text("prefix")),
    _method("str.strip_suffix", _TEXT, "without that suffix", _text("suffix")),
    _replace("str.replace", "the first match replaced"),
    _replace("str.replace_all", "every match replaced"),
    Function("str.zfill", _RECEIVERS["str"], _zfill, "padded with zeros on the left", (_count("length"),)),
    Function("str.split", _RECEIVERS["str"], _split, "the list of strings between the separators", (_text("by"),)),
    _parse("str.to_date", pl.Date(), 'the date in that format, such as `"%Y%m%d"`; null where it does not match'),
    _parse(
        "str.to_datetime",
        pl.Datetime("us"),
        "the timestamp (microseconds, no time zone) in that format; null where it does not match",
        time_unit="us",
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


def _element(name: str, summary: str, *parameters: Parameter, **options: object) -> Function:
    def build(x: Operand, *values: object, span: Span) -> Operand:
        arguments = dict(zip((parameter.name for parameter in parameters), values, strict=True))
        return _element_operand(_own(name, x.expr, **arguments, **options), inner_type(x.dtype), span, x)

    return Function(name, _RECEIVERS["list"], build, summary, parameters)


def _reduction(name: str, summary: str, *, computes: bool = True) -> Function:
    def build(x: Operand, *, span: Span) -> Operand:
        inner = inner_type(x.dtype)
        if kind(inner) not in NUMBERS:
            raise Fault(f"`{name}` works on lists of numbers: got {type_name(x.dtype)}", x.span)
        if not computes and kind(inner) != DECIMAL:
            return _element_operand(_own(name, x.expr), inner, span, x)
        wide: pl.DataType = INT64 if kind(inner) == INTEGER and name != "list.mean" else FLOAT64
        if inner == UINT64 and wide == INT64:
            wide = UINT64
        lists = x.expr if inner == wide else x.expr.cast(pl.List(wide))
        return result(_own(name, lists), wide, span, [x], extra=2)

    return Function(name, _RECEIVERS["list"], build, summary)


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


_LIST = (
    _method("list.len", INT64, "number of elements, nulls included; null for a null list"),
    _method("list.n_unique", INT64, "number of distinct elements, null counting as one"),
    _reduction("list.sum", "the sum, nulls ignored, 0 for an empty list; int64 or float64"),
    _reduction("list.mean", "the mean, nulls ignored, null for an empty list; float64"),
    _reduction("list.min", "the smallest, nulls and NaN ignored, null for an empty list", computes=False),
    _reduction("list.max", "the largest, nulls and NaN ignored, null for an empty list", computes=False),
    _element("list.first", "the first element, null for an empty list"),
    _element("list.last", "the last element, null for an empty list"),
    _element(
        "list.get",
        "the element at a position (from 0, negative from the end), null out of range",
        _integer("index"),
        null_on_oob=True,
    ),
    Function(
        "list.contains",
        _RECEIVERS["list"],
        _contains,
        "whether the literal is an element; null for a null list",
        (Parameter("item", "literal"),),
    ),
    _method("list.head", None, "the first n elements", _count("n")),
    _method("list.tail", None, "the last n elements", _count("n")),
    _method(
        "list.slice",
        None,
        "elements from a position (from 0, negative from the end)",
        _integer("offset"),
        _count("length", None),
    ),
    _method("list.reverse", None, "in reverse order"),
    _method("list.sort", None, "in order, nulls first, NaN as the largest", Parameter("descending", "boolean", False)),
    _method("list.unique", None, "each element once, in order of first occurrence", maintain_order=True),
    _method("list.drop_nulls", None, "without nulls"),
)

METHODS: tuple[Function, ...] = (*_DT, *_STR, *_LIST)
