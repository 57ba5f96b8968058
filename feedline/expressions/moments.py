"""Write dates and times of any year as strings: Python's calendar ends with the year 9999, Polars' with 262,142.

Pure. Years beyond 9999, and before 0, have a sign, as ISO 8601 writes them: `+10000-01-01`.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import polars as pl

_PER_DAY = {"D": 1, "s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_FIRST = date(2000, 1, 1)
_FIRST_DAY = (_FIRST - date(1970, 1, 1)).days
_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400  # after which the calendar repeats
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_text(count: int, unit: str, zone: str | None = None) -> str:
    """A date or time in ISO 8601: so many days (D), s, ms, us or ns since 1970, such as `2026-01-31T12:00:00+01:00`.

    zone: that it is an instant of, and is written in; in UTC where Python's calendar does not have it there.
    """
    offset = _offset(count, unit, zone) if zone is not None else timedelta()
    per_day = _PER_DAY[unit]
    days, rest = divmod(count + int(offset / timedelta(days=1) * per_day), per_day)
    cycles, day = divmod(days - _FIRST_DAY, _CYCLE_DAYS)  # day 800,000 -> 5 cycles of 400 years, and 58,558 days
    within = _FIRST + timedelta(days=day)
    year = within.year + _CYCLE_YEARS * cycles
    text = f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"
    text += f"-{within.month:02}-{within.day:02}"
    if unit == "D":
        return text
    per_second = per_day // 86_400
    seconds, fraction = divmod(rest, per_second)
    text += f"T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if fraction:
        digits = f"{fraction:0{len(str(per_second)) - 1}}"
        text += f".{digits:0<6}"
    return text if zone is None else text + datetime.min.replace(tzinfo=timezone(offset)).isoformat()[19:]


def _offset(count: int, unit: str, zone: str) -> timedelta:
    """The offset from UTC of an instant in a zone; none of one that Python's calendar does not have."""
    try:
        moment = _EPOCH + timedelta(seconds=count * 86_400 // _PER_DAY[unit])
        return moment.astimezone(ZoneInfo(zone)).utcoffset() or timedelta()
    except (OverflowError, ValueError, ZoneInfoNotFoundError):
        return timedelta()


def python_values(series: pl.Series) -> list[Any]:
    """The values as Python objects, dates and times as strings at any depth."""
    counts = _counted(series.dtype)
    if counts == series.dtype:
        return series.to_list()
    return [_python_value(value, series.dtype) for value in series.cast(counts).to_list()]


def _counted(dtype: Any) -> Any:
    """The type with whole numbers in place of dates, times and durations, at any depth."""
    match dtype:
        case pl.Date():
            return pl.Int32()
        case pl.Datetime() | pl.Duration() | pl.Time():
            return pl.Int64()
        case pl.List(inner=inner):
            return pl.List(_counted(inner))
        case pl.Array(inner=inner, size=size):
            return pl.Array(_counted(inner), size)
        case pl.Struct(fields=fields):
            return pl.Struct([pl.Field(field.name, _counted(field.dtype)) for field in fields])
    return dtype


def _python_value(value: Any, dtype: Any) -> Any:
    match dtype:
        case _ if value is None:
            return None
        case pl.Date():
            return moment_text(value, "D")
        case pl.Datetime(time_unit=unit, time_zone=zone):
            return moment_text(value, unit, zone)
        case pl.Time():
            return moment_text(value, "ns").partition("T")[2]
        case pl.Duration(time_unit=unit):
            return f"{value} {unit}"
        case pl.List(inner=inner) | pl.Array(inner=inner):
            return [_python_value(each, inner) for each in value]
        case pl.Struct(fields=fields):
            return {field.name: _python_value(value[field.name], field.dtype) for field in fields}
    return value
