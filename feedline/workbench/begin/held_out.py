"""Choose the rows that the model is evaluated on: the last part of the table's time, or a share by a hash.

Pure. Rows drawn at random share users, sessions and days with those that the model learns from, so a measure on them
promises too much. The order of choice: partition keys that are dates or parts of one (whole folders, which are never
read in training), then the chosen time. Without any, `source.sample` keeps the rows to learn from, and its rest is held
out: by the values of a session or an id where there is one, else by the place of a row.

A tenth of the rows is held out, and up to a fifth of small tables, as fewer than a thousand rows measure little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TypeAlias

import polars as pl

from feedline.expressions.moments import python_values
from feedline.workbench.begin.init_plan import HeldOut
from feedline.workbench.begin.quoting import column_expr, string_literal
from feedline.workbench.profile.table_facts import PartitionKey, TableFacts

SHARE, MOST = 0.1, 0.5  # of the rows: sought, and accepted
_SHARE_OF_FEW, _ENOUGH_ROWS, _LEAST_SHARE = 0.2, 1_000, 0.01
_FEWEST_KEYS = 1_000  # values of a session by which rows are held out: of few, a tenth is no tenth of the rows
_PERIODS = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1))
_FEWEST_PERIODS = 2  # in the held-out part, of those that its border is rounded to
_CALENDAR = ("date", "ds", "dt", "year", "quarter", "month", "week", "day", "hour")
KeyValue: TypeAlias = int | str | date


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRows:
    """The folders of a table by some of its keys: values of each, ascending, and the rows below them."""

    keys: tuple[str, ...]
    values: Sequence[tuple[KeyValue, ...]]
    rows: Sequence[int]


def held_out_share(rows: int) -> float:
    """The share of the rows to hold out."""
    return max(SHARE, min(_SHARE_OF_FEW, _ENOUGH_ROWS / max(rows, 1)))


def fewest_held_out(rows: int) -> int:
    """The fewest held-out rows that measure something."""
    return max(math.ceil(_LEAST_SHARE * rows), min(_ENOUGH_ROWS, math.ceil(SHARE * rows)), 1)


def calendar_keys(keys: Sequence[PartitionKey], time: str | None) -> list[tuple[str, ...]]:
    """Partition keys whose values together are a time, the best first: the chosen time, dates, years with months."""
    single = [key.name for key in keys if key.name == time or key.type.startswith("date")]
    parts = [key for key in keys if key.name.lower() in _CALENDAR and key.name not in single and _is_ordered(key)]
    parts.sort(key=lambda key: _CALENDAR.index(key.name.lower()))  # years before months
    varied = tuple(key.name for key in parts if key.values > 1)
    single.sort(key=lambda name: name != time)
    return [*((name,) for name in single), *([varied] if varied else [])]


def _is_ordered(key: PartitionKey) -> bool:
    """Whether the order of the values is that of time: of strings, "10" comes before "9"."""
    return not key.type.endswith("string") or len(key.first or "") == len(key.last or "")


def by_keys(folders: KeyRows, share: float) -> HeldOut | None:
    """The last folders, which have about this share of the rows; None where no border leaves enough on both sides."""
    index = late_border(folders.rows, share, fewest_held_out(sum(folders.rows)))
    if index is None:
        return None
    names, border = [column_expr(key) for key in folders.keys], [_literal(each) for each in folders.values[index]]
    what = " and ".join(folders.keys)
    return HeldOut(
        by=folders.keys,
        train=_compared(names, border, "<"),
        held_out=_compared(names, border, ">="),
        reason=f"the last {len(folders.rows) - index} of {len(folders.rows)} values of the partition key {what}: whole "
        "folders, later than all others",
    )


def late_border(rows: Sequence[int], share: float, fewest: float) -> int | None:
    """The index from which on about this share of the rows lies. rows: of each value, ascending by value. None where
    there is none with so many rows, and at most half of all."""
    total, late, best = sum(rows), 0, None
    for index in range(len(rows) - 1, 0, -1):
        late += rows[index]
        if fewest <= late <= MOST * total:
            off = abs(late - share * total)
            best = (off, index) if best is None or off < best[0] else best
    return None if best is None else best[1]


def by_time(name: str, times: pl.Series, share: float, rows: int) -> HeldOut | None:
    """The last of a column's values. times: sampled ones of a table with so many rows; strings are compared as they
    are stored. None where no border leaves enough on both sides."""
    times = times.drop_nulls()
    counts = times.value_counts(name="count").sort(times.name) if len(times) else None
    if counts is None:
        return None
    sizes = counts["count"].to_list()
    index = late_border(sizes, share, fewest_held_out(rows) / max(rows, 1) * len(times))
    if index is None:
        return None
    ends = counts[times.name][[index, len(counts) - 1]]
    if ends.dtype.is_temporal() and not all("0001-02" < text < "9999-12" for text in python_values(ends)):
        return None  # beyond the years that Python's calendar has, in some zone
    border, last = ends
    if isinstance(border, datetime) and isinstance(last, datetime):
        rounded = _rounded(border, last - border)
        late = int((times >= rounded).sum())
        border = rounded if late <= MOST * len(times) else border
    expr, text = column_expr(name), _literal(border)
    return HeldOut(
        by=(name,), train=f"{expr} < {text}", held_out=f"{expr} >= {text}", reason=f"the latest rows by {name}"
    )


def by_hash(facts: TableFacts, session: str | None) -> HeldOut:
    """A share of the rows by a hash. session: a column whose values stay on one side."""
    key = None
    if session is not None and not facts.column(session).type.startswith(("list", "struct", "map", "decimal")):
        values = facts.column(session).vocabulary
        key = session if values is not None and values.table >= _FEWEST_KEYS else None
    ids = [each.name for each in facts.columns if each.id_like and each.type.startswith(("int", "uint", "string"))]
    reason = "rows by a hash of their place in the table: another order of the files holds out other rows"
    if key is not None:
        reason = f"rows by a hash of {key}, so that its values are on one side"
    elif ids:
        key, reason = ids[0], f"rows by a hash of {ids[0]}, which names them"
    return HeldOut(
        by=() if key is None else (key,),
        sample={"fraction": round(1 - held_out_share(facts.rows), 2), **({} if key is None else {"key": [key]})},
        reason=reason,
    )


def _compared(names: Sequence[str], border: Sequence[str], sign: str) -> str:
    """`a < 1`, or of more names, the first of which decides: `(a < 1 or a == 1 and b < 2)`."""
    if len(names) == 1:
        return f"{names[0]} {sign} {border[0]}"
    rest = _compared(names[1:], border[1:], sign)
    return f"({names[0]} {sign[0]} {border[0]} or {names[0]} == {border[0]} and {rest})"


def _literal(value: object) -> str:
    if isinstance(value, date):  # and datetime
        return string_literal(value.isoformat())
    return string_literal(value) if isinstance(value, str) else repr(value)


def _rounded(moment: datetime, width: timedelta) -> datetime:
    """The moment rounded down to a period of which there are some in a width."""
    period = next((each for each in _PERIODS if width >= _FEWEST_PERIODS * each), None)
    if period is None:
        return moment
    midnight = datetime.min.replace(tzinfo=moment.tzinfo)
    return moment - (moment - midnight) % period
