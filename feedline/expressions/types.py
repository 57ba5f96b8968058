"""Describe column types in the language: their kinds, and their names in messages.

Pure; no data. Arrow types become the Polars types that `pl.from_arrow` gives, in which the columns arrive. A *kind* is
the unit of the language's rules: "integer" covers all widths, "timestamp" all units and zones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import polars as pl
import pyarrow as pa
import pyarrow.types as pat

INTEGER = "integer"
FLOAT = "float"
DECIMAL = "decimal"
BOOLEAN = "boolean"
STRING = "string"
BINARY = "binary"
DATE = "date"
TIMESTAMP = "timestamp"
TIME = "time"
DURATION = "duration"
LIST = "list"
STRUCT = "struct"
MAP = "map"
NULL = "null"
NUMBERS = frozenset({INTEGER, FLOAT, DECIMAL})

INTEGER_RANGES: dict[type[pl.DataType], tuple[int, int]] = {
    pl.Int8: (-(2**7), 2**7 - 1),
    pl.Int16: (-(2**15), 2**15 - 1),
    pl.Int32: (-(2**31), 2**31 - 1),
    pl.Int64: (-(2**63), 2**63 - 1),
    pl.UInt8: (0, 2**8 - 1),
    pl.UInt16: (0, 2**16 - 1),
    pl.UInt32: (0, 2**32 - 1),
    pl.UInt64: (0, 2**64 - 1),
}
_KINDS: dict[type[pl.DataType], str] = {
    **dict.fromkeys(INTEGER_RANGES, INTEGER),
    pl.Float16: FLOAT,
    pl.Float32: FLOAT,
    pl.Float64: FLOAT,
    pl.Decimal: DECIMAL,
    pl.Boolean: BOOLEAN,
    pl.String: STRING,
    pl.Binary: BINARY,
    pl.Date: DATE,
    pl.Datetime: TIMESTAMP,
    pl.Time: TIME,
    pl.Duration: DURATION,
    pl.List: LIST,
    pl.Struct: STRUCT,
    pl.Map: MAP,
    pl.Null: NULL,
}
CAST_TYPES: dict[str, pl.DataType] = {
    **{dtype.__name__.lower(): dtype() for dtype in INTEGER_RANGES},
    "float32": pl.Float32(),
    "float64": pl.Float64(),
    "bool": pl.Boolean(),
    "string": pl.String(),
}
MAX_DECIMAL_PRECISION = 38  # wider ones do not fit Polars' 128 bits


def kind(dtype: pl.DataType) -> str:
    """The kind of a type: one of this module's constants, or the type's own name for one outside the language."""
    return _KINDS.get(type(dtype), str(dtype))


def type_name(dtype: pl.DataType) -> str:
    """The type's name in messages: `int64`, `timestamp[us, UTC]`, `list<float32>`."""
    match dtype:
        case pl.Datetime(time_unit=unit, time_zone=zone):
            return f"timestamp[{unit}{f', {zone}' if zone else ''}]"
        case pl.Duration(time_unit=unit):
            return f"duration[{unit}]"
        case pl.Decimal(precision=precision, scale=scale):
            return f"decimal({precision}, {scale})"
        case pl.List(inner=inner):
            return f"list<{type_name(instance(inner))}>"
        case pl.Array(inner=inner, shape=(size,)):
            return f"list<{type_name(instance(inner))}>[{size}]"
        case pl.Map(key=key, value=value):
            return f"map<{type_name(instance(key))}, {type_name(instance(value))}>"
        case pl.Struct(fields=fields):
            return f"struct<{', '.join(f'{field.name}: {type_name(instance(field.dtype))}' for field in fields)}>"
        case pl.Boolean():
            return "bool"
    return type(dtype).__name__.lower()


def instance(dtype: Any) -> pl.DataType:
    """The instance of a nested type, which Polars may return as a class."""
    dtype_instance: pl.DataType = dtype() if isinstance(dtype, type) else dtype
    return dtype_instance


def inner_type(dtype: pl.DataType) -> pl.DataType:
    """The type of a list's elements."""
    assert isinstance(dtype, pl.List)
    return instance(dtype.inner)


def column_type(field: pa.Field) -> pl.DataType | None:
    """The Polars type of a column of that field; None where Polars has none."""
    return _polars_type(field.type)


@functools.lru_cache(maxsize=1024)  # hundreds of columns have few types
def _polars_type(kind: pa.DataType) -> pl.DataType | None:
    if holds(kind, _has_unknown_zone) or (not pat.is_struct(kind) and is_too_wide(kind)):
        return None  # Polars would panic, or fail at the first value; of a struct, other fields may be read
    bare = pa.schema([pa.field("column", kind)])
    try:
        return pl.DataFrame(bare.empty_table()).dtypes[0]
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException, NotImplementedError):
        return None


def _has_unknown_zone(kind: pa.DataType) -> bool:
    if not pat.is_timestamp(kind) or not kind.tz:
        return False
    try:
        ZoneInfo(kind.tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return True
    return False


def is_too_wide(kind: pa.DataType) -> bool:
    """Whether values, or values inside them, are decimals of more digits than Polars holds."""
    return holds(kind, lambda inner: bool(pat.is_decimal(inner) and inner.precision > MAX_DECIMAL_PRECISION))


def holds(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Whether the type, or one inside it, passes the test."""
    return test(kind) or any(holds(kind.field(index).type, test) for index in range(kind.num_fields))


def unknown_type_hint(kind: pa.DataType) -> str:
    """The remedy for a column of a type that Polars lacks."""
    if holds(kind, _has_unknown_zone):
        return ". Name a zone that the time zone database has, as its type in source.schema.columns"
    if is_too_wide(kind):
        return ". Rewrite it with at most 38 digits, or leave it out"
    return ". Leave the column out, or rewrite it in another type"


def has_strings(kind: pa.DataType) -> bool:
    """Whether the values, or the elements of lists, are strings or binary values."""
    values = kind.value_type if pat.is_list(kind) or pat.is_large_list(kind) else kind
    tests = (pat.is_string, pat.is_large_string, pat.is_binary, pat.is_large_binary)
    return any(test(values) for test in tests)


def language_type(dtype: pl.DataType) -> pl.DataType:
    """The type that the language gives a column: categories become strings, fixed-size lists become lists."""
    match dtype:
        case pl.Categorical() | pl.Enum():
            return pl.String()
        case pl.Array(inner=inner, shape=shape):
            return pl.List(inner) if len(shape) == 1 else dtype
    return dtype


def quote_name(name: str) -> str:
    """The name between backticks, shortened, so that a hostile name cannot flood a message."""
    return f"`{name if len(name) <= 60 else name[:57] + '...'}`"


def nearest(name: str, names: Iterable[str]) -> str:
    """`. Did you mean `x`?` for the nearest of the names; empty where none is near."""
    matches = get_close_matches(name[:200], list(names), n=1, cutoff=0.6)
    return f". Did you mean {quote_name(matches[0])}?" if matches else ""
