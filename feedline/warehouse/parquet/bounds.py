"""Decode the bounds of column statistics into typed Arrow arrays.

Pure; runs where a snapshot is taken. Fixed-width values of many row groups are decoded together. A bound is unknown
(null) if it has the wrong length, does not fit the column's type, is not valid UTF-8, or is NaN. If one bound of a pair
is unknown or the pair is out of order, both are.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from feedline.warehouse.parquet.schemas import is_bytes, is_text
from feedline.warehouse.parquet.thrift import BOOLEAN, BYTE_ARRAY, DOUBLE, FIXED, FLOAT, INT32, INT64

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_STORED = {BOOLEAN: "u1", INT32: "<i4", INT64: "<i8", FLOAT: "<f4", DOUBLE: "<f8"}

Raw = Sequence[bytes | None]


def day_of(value: object) -> int | None:
    """The days of a date since 1970; None for all else."""
    if isinstance(value, datetime.datetime) or not isinstance(value, datetime.date):
        return None
    return value.toordinal() - _EPOCH.toordinal()


def instant_of(value: object, *, per_second: int, aware: bool) -> int | None:
    """A datetime in a unit of which a second has so many, since 1970; None if the unit is too coarse for it, and for
    all else. aware: with a zone."""
    if not isinstance(value, datetime.datetime) or (value.tzinfo is not None) != aware:
        return None
    since = (value if aware else value.replace(tzinfo=datetime.UTC)) - _EPOCH
    micros = (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds
    whole, rest = divmod(micros * per_second, 10**6)
    return None if rest else whole


def has_bounds(kind: pa.DataType) -> bool:
    """Whether bounds are kept for columns of this type."""
    if pat.is_floating(kind):
        return not pat.is_float16(kind)
    tests = (pat.is_integer, pat.is_boolean, pat.is_date32, pat.is_timestamp, pat.is_decimal)
    return is_binary_like(kind) or any(test(kind) for test in tests)


def is_binary_like(kind: pa.DataType) -> bool:
    """Whether columns of this type hold strings or bytes, whose bounds a writer may truncate."""
    return is_text(kind) or is_bytes(kind)


def bounds_of(low: Raw, high: Raw, physical: int, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """The bounds of one column, one pair per row group, in the column's type; either both are null or neither."""
    lows, highs = _decode(low, physical, kind), _decode(high, physical, kind)
    ordered = pc.fill_null(pc.less_equal(lows, highs), False)  # NaN and null are neither
    null = pa.scalar(None, kind)
    return pc.if_else(ordered, lows, null), pc.if_else(ordered, highs, null)


def _decode(raw: Raw, physical: int, kind: pa.DataType) -> pa.Array:
    if pat.is_decimal(kind):
        return _decimals(raw, physical, kind)
    if is_binary_like(kind):
        return pa.array([_utf8(value) for value in raw] if is_text(kind) else list(raw), kind)
    return _numbers(raw, physical, kind)


def _numbers(raw: Raw, physical: int, kind: pa.DataType) -> pa.Array:
    if physical not in _STORED:
        return pa.nulls(len(raw), kind)
    stored = np.dtype(_STORED[physical])
    if None not in raw and set(map(len, filter(None, raw))) == {stored.itemsize} and b"" not in raw:  # as most are
        valid, buffer = np.ones(len(raw), np.bool_), b"".join(filter(None, raw))
    else:
        valid = np.array([value is not None and len(value) == stored.itemsize for value in raw], np.bool_)
        blank = bytes(stored.itemsize)
        buffer = b"".join(
            value if fits and value is not None else blank for value, fits in zip(raw, valid, strict=True)
        )
    values = np.frombuffer(buffer, stored)
    if pat.is_boolean(kind):
        return pa.array(values != 0, mask=~valid)
    if pat.is_date32(kind) or pat.is_timestamp(kind):
        return pa.array(values, mask=~valid).view(kind)
    if pat.is_unsigned_integer(kind):
        values = values.view(stored.str.replace("i", "u"))
    dtype = np.dtype(kind.to_pandas_dtype())
    converted = values.astype(dtype)
    valid &= (converted == values) | (values != values)
    return pa.array(converted, kind, mask=~valid)


def _decimals(raw: Raw, physical: int, kind: pa.DataType) -> pa.Array:
    """Decode unscaled integers: little-endian of fixed width, or big-endian of at least the bytes that digits need."""
    order: Any = "big" if physical in (BYTE_ARRAY, FIXED) else "little"
    limit = 10**kind.precision
    min_bytes = {INT32: 4, INT64: 8, FIXED: limit.bit_length() // 8 + 1}.get(physical, 1)
    values: list[Decimal | None] = []
    for value in raw:
        whole = value is not None and (len(value) >= min_bytes if order == "big" else len(value) == min_bytes)
        unscaled = int.from_bytes(value or b"", order, signed=True) if whole else None
        fits = unscaled is not None and -limit < unscaled < limit
        values.append(Decimal(f"{unscaled}E{-kind.scale}") if fits else None)
    return pa.array(values, kind)


def _utf8(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:  # cut in the middle of a character
        return None
