"""The facts of the rows to learn from, beside what their values predict of the held-out rows.

Runs in: the process of `feedline init`. All is of the sample that a profile has read.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from feedline.dataclass import dataclass
from feedline.warehouse.storage.parallel import in_threads
from feedline.workbench.begin.init_plan import Choices, HeldOut, LabelChoice, all_of
from feedline.workbench.begin.quoting import percent
from feedline.workbench.profile.column_measures import frame_column
from feedline.workbench.profile.profile_table import table_facts_of
from feedline.workbench.profile.roles import EPOCH_UNITS
from feedline.workbench.profile.table_facts import ColumnProfile, TableFacts
from feedline.workbench.profile.table_sample import ProfileOptions, TableSample

# --------------------------------------------------------------------------------------------------------------------
# Measure how well the values of a column predict the label of other rows, each value by itself or as a number. Some
# sampled rows teach, the others are predicted. By itself, a value predicts the mean label of its rows, shrunk towards
# the mean of all rows as far as values differ by chance (the empirical Bayes estimator of a one-way analysis of
# variance); values of one row, and those that teach nothing, share a prediction. As a number, it predicts by a curve
# and the steps of eight quantiles. A gain is the share of the label's variance that is explained.

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_MOST_CLASSES = 10  # of a label, each of which is predicted
_BINS, _DEGREE, _REACH = 8, 3, 3.0  # of a number's steps and curve; deviations beyond which numbers are alike
_FEWEST_ROWS = 50  # of either side; fewer say nothing
_CERTAIN, _NOTABLE = 3.0, 0.002  # standard errors, and the gain, by which values have to be better than numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueGain:
    """What the values of a column predict of other rows. unknown: the share of these whose value no teaching row has.
    values, number: gains of values by themselves, and as numbers (None of others). are_ids: values are better by more
    than chance."""

    unknown: float
    values: float
    number: float | None = None
    are_ids: bool = False


class LabelTargets:
    """A label as the numbers to predict, of sampled rows. teaches: bool [rows], the rows that teach."""

    def __init__(self, label: pl.Series, teaches: Flags) -> None:
        if label.dtype.is_numeric() or label.dtype == pl.Boolean:
            numbers = label.cast(pl.Float64).to_numpy()
            has_label = np.isfinite(numbers)
            low, high = np.quantile(numbers[has_label], (0.01, 0.99)) if has_label.any() else (0, 0)
            # outliers would decide alone; a rare 1 is none
            targets = (numbers if low == high else np.clip(numbers, low, high))[:, None]
        else:
            has_label = label.is_not_null().to_numpy()
            classes = label.drop_nulls().value_counts(sort=True)[label.name].head(_MOST_CLASSES)
            targets = np.stack([(label == value).fill_null(False).to_numpy() for value in classes], axis=1)
        self._rows = np.flatnonzero(has_label)
        self._teaches = teaches[self._rows]
        self._targets = targets[self._rows].astype(np.float64)
        self._mean = self._targets[self._teaches].mean(axis=0) if self._teaches.any() else np.zeros(targets.shape[1])
        self._spread = float(np.square(self._targets[~self._teaches] - self._mean).sum())
        self.is_usable = min(self._teaches.sum(), (~self._teaches).sum()) >= _FEWEST_ROWS and self._spread > 0

    def gain_of(self, column: pl.Series) -> ValueGain:
        """What a column predicts: of one with numbers also as numbers."""
        column = column.gather(self._rows)
        values = column.rank("dense").fill_null(0).to_numpy().astype(np.int64)
        counts = np.bincount(values[self._teaches], minlength=int(values.max(initial=0)) + 1).astype(np.float64)
        unknown = float(np.mean(counts[values[~self._teaches]] == 0))
        off = self._errors(self._by_values(values, counts))
        gain = 1 - float(off.sum()) / self._spread
        if not column.dtype.is_numeric():
            return ValueGain(unknown=unknown, values=gain)
        number_off = self._errors(self._by_number(column.cast(pl.Float64).to_numpy()))
        number = 1 - float(number_off.sum()) / self._spread
        better = number_off - off
        error = float(better.std()) / np.sqrt(len(better))
        are_ids = gain - number > _NOTABLE and float(better.mean()) > _CERTAIN * error
        return ValueGain(unknown=unknown, values=gain, number=number, are_ids=are_ids)

    def _errors(self, predicted: Floats) -> Floats:
        errors: Floats = np.square(self._targets[~self._teaches] - predicted).sum(axis=1)
        return errors

    def _by_values(self, values: npt.NDArray[np.int64], counts: Floats) -> Floats:
        known, others = values[self._teaches], values[~self._teaches]
        learnt = self._targets[self._teaches]
        is_rare = counts < 2
        predicted = np.empty((len(counts), learnt.shape[1]))
        for index, target in enumerate(learnt.T):
            mean = self._mean[index]
            sums = np.bincount(known, weights=target, minlength=len(counts)).astype(np.float64)
            rare = is_rare[known]
            # of a rare or unknown value: the mean of the rare ones, as of a value with so many rows
            shrunk = _prior_rows(target, counts, sums)
            predicted[:, index] = (sums + shrunk * mean) / np.maximum(counts + shrunk, 1e-9)
            predicted[is_rare, index] = (target[rare].sum() + shrunk * mean) / max(rare.sum() + shrunk, 1e-9)
        return predicted[others]

    def _by_number(self, numbers: Floats) -> Floats:
        teach = numbers[self._teaches]
        finite = teach[np.isfinite(teach)]
        scale = float(finite.std()) if len(finite) else 0.0
        if not scale or not np.isfinite(scale):
            return np.tile(self._mean, (int((~self._teaches).sum()), 1))
        place = np.clip((np.nan_to_num(numbers, nan=float(finite.mean())) - finite.mean()) / scale, -_REACH, _REACH)
        steps = np.unique(np.quantile(finite, np.linspace(0, 1, _BINS + 1)[1:-1]))
        bins = np.searchsorted(steps, np.nan_to_num(numbers, nan=float(finite.mean())), side="left")
        parts = [np.vander(place, _DEGREE + 1), np.eye(len(steps) + 1)[bins][:, 1:], ~np.isfinite(numbers)[:, None]]
        design = np.concatenate(parts, axis=1).astype(np.float64)
        found, *_ = np.linalg.lstsq(design[self._teaches], self._targets[self._teaches], rcond=None)
        predicted: Floats = design[~self._teaches] @ found
        return predicted


def _prior_rows(target: Floats, counts: Floats, sums: Floats) -> float:
    """The rows of the overall mean that a value's own mean is worth: the variance within values by that between."""
    present = counts > 0
    rows, values = len(target), int(present.sum())
    if values < 2 or rows <= values:
        return float(rows)
    means = sums[present] / counts[present]
    between = float(np.sum(counts[present] * np.square(means - target.mean()))) / (values - 1)
    within = float(np.sum(np.square(target)) - np.sum(counts[present] * np.square(means))) / (rows - values)
    size = (rows - float(np.sum(np.square(counts[present]))) / rows) / (values - 1)
    spread = (between - within) / size
    return float(rows) if spread <= 0 else min(max(within, 0.0) / spread, float(rows))


# --------------------------------------------------------------------------------------------------------------------

_ROWS = 20_000  # compared, about: every so many of the sample's
_FEW_NUMBERS = 9  # distinct ones, from which on numbers may be ids
_SAME = 0.9  # of the moments of two columns that are one
_OTHERS = 5  # of rows that a hash holds out, every fifth is predicted


def facts_of_learnt(
    taken: TableSample, facts: TableFacts, choices: Choices, label: LabelChoice, held_out: HeldOut
) -> TableFacts:
    """The table's facts, those of columns of the rows to learn from alone. facts: of all rows."""
    learnt = taken.select(all_of(label.where, held_out.train))
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
        unknown = max(0.0, gain.unknown - (0.0 if spread is None else spread.gain_of(series).unknown))
        by_value, by_number = (percent(max(share, 0.0)) for share in (gain.values, gain.number or 0.0))
        reason = f"ids: one by one they tell {by_value} of the label's variance, as numbers {by_number}"
        as_ids = reason if gain.are_ids and column.role == "numeric" else None
        return replace(column, unknown=unknown, gain=max(gain.values, gain.number or 0.0), as_ids=as_ids)

    return tuple(in_threads(measure, facts.columns))


def _with_moments(facts: TableFacts, taken: TableSample, time: str | None) -> tuple[ColumnProfile, ...]:
    units = {each.column: each.unit for each in facts.times}
    seen: dict[str, pl.Series] = {}
    marks: dict[str, str] = {}
    names = [each.column for each in facts.times if each.column in taken.sample.rows.column_names]
    for name in sorted(names, key=lambda each: each != time):
        hours = _hours(frame_column(taken.sample.rows[name]), units[name])
        if hours is None:
            continue
        if same := [other for other, others in seen.items() if _are_same(hours, others)]:
            marks[name] = same[0]
        else:
            seen[name] = hours
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
        return times.to_physical() // (3600 * EPOCH_UNITS[times.dtype.time_unit])
    return times.cast(pl.Int64, strict=False) // (3600 * EPOCH_UNITS[unit]) if unit is not None else None


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
