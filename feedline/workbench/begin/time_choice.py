"""Choose the features of times: the hour and the day of the week, which come again; the date does not.

Pure.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from feedline.workbench.begin.init_plan import PlannedFeature
from feedline.workbench.begin.quoting import column_expr
from feedline.workbench.profile.table_facts import ColumnProfile, TimeCandidate

_WEEKDAY = "day of the week, 1 for Monday"
PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def choose_times(column: ColumnProfile, candidate: TimeCandidate | None) -> list[tuple[str, PlannedFeature]]:
    """The features of a date, a time or a count since 1970, each with the end of its name; none if it has no part that
    comes again."""
    name, kind = column_expr(column.name), column.type
    first, last = _moment(column.first), _moment(column.last)
    if kind.startswith("duration"):
        return [("", _number(column, f"{name}.dt.total_seconds()", "seconds"))]
    if kind.startswith(("time32", "time64")):
        return [("_hour", _part(column, f"{name}.dt.hour()", 24, "hour of the day"))]
    if column.role == "string":
        parts = [
            ("_hour", f'{name}.str.slice(11, 2).try_cast("int64")', 24, "hour of the day"),
            ("_weekday", f'{name}.str.head(10).str.to_date("%Y-%m-%d").dt.weekday()', 8, _WEEKDAY),
        ]
    elif kind.startswith(("int", "uint")):
        if candidate is None or candidate.unit is None:
            return []
        first, last = _moment(candidate.first), _moment(candidate.last)
        hour, day = 3600 * PER_S[candidate.unit], 86400 * PER_S[candidate.unit]
        parts = [
            ("_hour", f"{name} // {hour} % 24", 24, f"hour of the day, UTC, of {candidate.unit} since 1970"),
            ("_weekday", f"({name} // {day} + 3) % 7 + 1", 8, _WEEKDAY),
        ]
    else:
        parts = [
            ("_hour", f"{name}.dt.hour()", 24, "hour of the day"),
            ("_weekday", f"{name}.dt.weekday()", 8, _WEEKDAY),
        ]
    if kind.startswith("date") or (first is not None and last is not None and _is_day(first) and _is_day(last)):
        parts = [part for part in parts if part[0] != "_hour"]
    if first is not None and last is not None and last - first < timedelta(days=7):
        parts = [part for part in parts if part[0] != "_weekday"]
    return [(end, _part(column, expr, size, reason)) for end, expr, size, reason in parts]


def _part(column: ColumnProfile, expr: str, size: int, reason: str) -> PlannedFeature:
    """A number below `size` as an id; a null has the id 0 of weekdays, which begin at 1, and 24 of hours."""
    rows, null = (size, 0) if size == 8 else (size + 1, size)
    return PlannedFeature(
        name=column.name,
        group="categorical",
        column=column.name,
        expr=expr,
        ops=({"fill_null": null}, {"modulo": rows}),
        reason=reason,
    )


def _number(column: ColumnProfile, expr: str, reason: str) -> PlannedFeature:
    return PlannedFeature(
        name=column.name,
        group="dense",
        column=column.name,
        expr=expr,
        ops=("standardize", {"fill_null": 0}),
        reason=reason,
    )


def _is_day(moment: datetime) -> bool:
    return moment.time() == datetime.min.time()


def _moment(text: str | None) -> datetime | None:
    """The moment, without its zone; None for none, or one beyond Python's years."""
    try:
        return None if text is None else datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        return None
