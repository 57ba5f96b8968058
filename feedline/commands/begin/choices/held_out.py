"""Choose the rows that the model is evaluated on: the last part of the table's time.

Pure. Rows drawn at random share users, sessions and days with those that the model learns from, so a measure on them
promises too much. The order of choice: a partition key that is a date or a number (its last tenth, whole folders, which
are never read in training), then the chosen time, then an integer that names the row. Without any, `train.py` measures
on the last batches of the epoch, each before the model learns from it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta

from feedline.commands.begin.init_plan import HeldOut
from feedline.commands.begin.quoting import column_expr, string_literal
from feedline.profiling.table_facts import ColumnProfile, PartitionKey, TableFacts

SHARE = 0.1  # of the range of times
_IDS = 10  # ids ending in 9 are held out
_PERIODS = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1))
_FEWEST_PERIODS = 2  # in the held-out part of the range, of those between two of which its border lies
_CALENDAR = ("year", "month", "week", "day", "date", "ds", "dt", "hour")


def choose_held_out(facts: TableFacts, time: str | None, share: float = SHARE) -> list[HeldOut]:
    """Ways to hold rows out, the best first; whether there are rows on both sides is for the caller to count.

    share: of the range of the chosen time. Where few rows are far from the others, another share of the range has a
    tenth of the rows.
    """
    found = [_by_key(key) for key in _ordered(facts.partitions, time)]
    if time is not None and time not in {key.name for key in facts.partitions}:
        found.append(_by_time(facts, facts.column(time), share))
    found += [_by_id(column) for column in facts.columns if column.id_like and column.type.startswith("int")]
    return [each for each in found if each is not None]


def _ordered(keys: tuple[PartitionKey, ...], time: str | None) -> list[PartitionKey]:
    """Partition keys that may be times, the chosen time first, then the coarser before the finer, as in folders."""
    times = [key for key in keys if key.name == time or key.type.startswith("date") or key.name.lower() in _CALENDAR]
    return sorted(times, key=lambda key: key.name != time)


def _by_key(key: PartitionKey) -> HeldOut | None:
    if key.values < 2 or key.first is None or key.last is None:
        return None
    name = column_expr(key.name)
    if key.type.startswith("date"):
        last = date.fromisoformat(key.last[:10])
        days = (last - date.fromisoformat(key.first[:10])).days
        border = string_literal(
            (last - timedelta(days=round(SHARE * days) - 1 if SHARE * days >= 1 else 0)).isoformat()
        )
    elif key.type.startswith(("int", "uint")):
        width = int(key.last) - int(key.first)
        border = str(int(key.last) - max(0, round(SHARE * (width + 1)) - 1))
    elif key.type in ("string", "large_string"):
        border = string_literal(key.last)
    else:
        return None
    return HeldOut(
        by=key.name,
        train=f"{name} < {border}",
        held_out=f"{name} >= {border}",
        reason=f"the last of {key.values} values of the partition key {key.name}: whole folders, later than all others",
    )


def _by_time(facts: TableFacts, column: ColumnProfile, share: float) -> HeldOut | None:
    candidate = next((each for each in facts.times if each.column == column.name), None)
    first = candidate.first if candidate is not None and candidate.first else column.first
    last = candidate.last if candidate is not None and candidate.last else column.last
    name, reason = column_expr(column.name), f"the latest rows by {column.name}"
    if candidate is not None and candidate.unit is not None and column.numbers is not None:
        low, high = column.numbers.quantiles[0], column.numbers.quantiles[-1]
        border = str(max(int(high - share * (high - low)), int(low) + 1))
        return None if low >= high else _later(column.name, name, border, reason)
    if first is None or last is None:
        return None
    try:
        begin, end = datetime.fromisoformat(first), datetime.fromisoformat(last)
    except ValueError:  # beyond Python's years
        return None
    if begin >= end:
        return None
    moment = _rounded(end - share * (end - begin), share * (end - begin))
    if column.type.startswith("date"):
        moment += timedelta(days=1, microseconds=-1)  # the first whole day
    border = moment.date().isoformat() if column.type.startswith("date") else moment.isoformat()
    return _later(column.name, name, string_literal(border), reason)


def _later(column: str, name: str, border: str, reason: str) -> HeldOut:
    return HeldOut(by=column, train=f"{name} < {border}", held_out=f"{name} >= {border}", reason=reason)


def _rounded(moment: datetime, width: timedelta) -> datetime:
    """The moment rounded down to a period of which there are some in a width."""
    period = next((each for each in _PERIODS if width >= _FEWEST_PERIODS * each), None)
    if period is None:
        return moment
    midnight = datetime.min.replace(tzinfo=moment.tzinfo)
    return moment - (moment - midnight) % period


def _by_id(column: ColumnProfile) -> HeldOut:
    name = column_expr(column.name)
    found = HeldOut(
        by=column.name, train="", held_out="", reason=f"a tenth of the rows, by the last digit of {column.name}"
    )
    return replace(found, train=f"{name} % {_IDS} != 9", held_out=f"{name} % {_IDS} == 9")
