"""The facts of the rows to learn from, beside what their values predict of the held-out rows.

Runs in: the process of `feedline init`. All is of the sample that a profile has read.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from feedline.warehouse.storage.parallel import in_threads
from feedline.workbench.begin.figures import percent
from feedline.workbench.begin.init_plan import Choices, HeldOut, LabelChoice
from feedline.workbench.begin.time_choice import PER_S
from feedline.workbench.begin.value_gains import LabelTargets
from feedline.workbench.profile.column_measures import frame_column
from feedline.workbench.profile.profile_table import table_facts_of
from feedline.workbench.profile.table_facts import ColumnProfile, TableFacts
from feedline.workbench.profile.table_sample import ProfileOptions, TableSample

_ROWS = 20_000  # compared, about: every so many of the sample's
_FEW_NUMBERS = 9  # distinct ones, from which on numbers may be ids
_SAME = 0.9  # of the moments of two columns that are one
_OTHERS = 5  # of rows that a hash holds out, every fifth is predicted


def facts_of_learnt(
    taken: TableSample, facts: TableFacts, choices: Choices, label: LabelChoice, held_out: HeldOut
) -> TableFacts:
    """The table's facts, those of columns of the rows to learn from alone. facts: of all rows."""
    where = " and ".join(each for each in (label.where, held_out.train) if each) or None
    learnt = taken.select(where)
    if not learnt.sample.rows.num_rows:  # the sample has none of them
        return facts
    options = ProfileOptions(
        label=label.column, time=choices.time or None, session=choices.session or None, values=True
    )
    found = table_facts_of(learnt, options)
    labelled = taken.select(label.where)
    if held_out.train is None:
        teaches = np.random.default_rng(0).permutation(labelled.sample.rows.num_rows) % _OTHERS != 0
    else:
        teaches = labelled.keeps(held_out.train)
    columns = _with_gains(found, labelled, label.column, teaches)
    columns = _with_moments(replace(found, columns=columns, times=facts.times), learnt, choices.time or None)
    return replace(found, uri=facts.uri, where=None, columns=columns, times=facts.times)


def _with_gains(
    facts: TableFacts, taken: TableSample, label: str, teaches: npt.NDArray[np.bool_]
) -> tuple[ColumnProfile, ...]:
    rows = taken.sample.rows
    step = max(rows.num_rows // _ROWS, 1)
    targets = LabelTargets(frame_column(rows[label]).gather_every(step), teaches[::step])
    # the same of rows that are spread over the table: what is unknown of a sample need not be unknown to the table
    again = np.random.default_rng(1).permutation(len(teaches[::step])) < int(teaches[::step].sum())
    spread = None if taken.sample.whole else LabelTargets(frame_column(rows[label]).gather_every(step), again)
    if not targets.is_usable:
        return facts.columns

    def measure(column: ColumnProfile) -> ColumnProfile:
        if column.name == label or column.name not in rows.column_names or not _may_be_ids(column):
            return column
        series = frame_column(rows[column.name]).gather_every(step)
        try:
            gain = targets.gain_of(series)
        except (Exception, pl.exceptions.PanicException):  # one odd column, whatever the error, is not judged
            return column
        unknown = gain.unknown
        if spread is not None:
            unknown = max(0.0, unknown - spread.gain_of(series).unknown)
        reason = None
        if gain.are_ids and column.role == "numeric":
            reason = (
                f"ids: one by one they tell {percent(max(gain.values, 0.0))} of the label's variance, as numbers "
                f"{percent(max(gain.number or 0.0, 0.0))}"
            )
        return replace(column, unknown=unknown, gain=max(gain.values, gain.number or 0.0), as_ids=reason)

    return tuple(in_threads(measure, facts.columns))


def _with_moments(facts: TableFacts, taken: TableSample, time: str | None) -> tuple[ColumnProfile, ...]:
    """The columns, those of times marked whose moments are those of the chosen time, or of a column before them."""
    units = {each.column: each.unit for each in facts.times}
    seen: dict[str, pl.Series] = {}
    marks: dict[str, str] = {}
    names = [each.column for each in facts.times if each.column in taken.sample.rows.column_names]
    for name in sorted(names, key=lambda each: each != time):
        hours = _hours(frame_column(taken.sample.rows[name]), units[name])
        if hours is None:
            continue
        same = next((other for other, hour in seen.items() if _are_same(hours, hour)), None)
        if same is None:
            seen[name] = hours
        else:
            marks[name] = same
    return tuple(replace(each, same_moment=marks.get(each.name)) for each in facts.columns)


def _hours(times: pl.Series, unit: str | None) -> pl.Series | None:
    """Whole hours since 1970."""
    if times.dtype == pl.String:
        days = times.str.head(10).str.to_date("%Y-%m-%d", strict=False)
        hours = times.str.slice(11, 2).cast(pl.Int64, strict=False).fill_null(0)
        return days.cast(pl.Int32).cast(pl.Int64) * 24 + hours
    if times.dtype == pl.Date:
        return times.cast(pl.Int32).cast(pl.Int64) * 24
    if isinstance(times.dtype, pl.Datetime):
        return times.to_physical() // (3600 * PER_S[times.dtype.time_unit])
    return times.cast(pl.Int64, strict=False) // (3600 * PER_S[unit]) if unit is not None else None


def _are_same(one: pl.Series, other: pl.Series) -> bool:
    """Whether nearly all moments are within an hour of each other; of dates alone, on the same day."""
    are_days = any((each.drop_nulls() % 24 == 0).all() for each in (one, other))
    off = (one // 24 - other // 24) if are_days else (one - other)
    near = (off.abs() <= (0 if are_days else 1)).drop_nulls()
    return len(near) > 0 and int(near.sum()) >= _SAME * len(near)


def _may_be_ids(column: ColumnProfile) -> bool:
    values = column.vocabulary
    if values is None or column.all_null or column.constant or column.id_like or column.time_like is not None:
        return False
    if column.role == "numeric":
        return column.type.startswith(("int", "uint")) and values.sample >= _FEW_NUMBERS
    return column.role in ("category", "string")
