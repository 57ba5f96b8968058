"""Counts, exact sums, minima and maxima of the values of many groups, in any order.

Runs on the workers that fit. Pure. A group's sum is kept in the bins of `exact_sums`, as rows of a state: group, bin,
units of the bin. Adding units by group and bin merges states, so nothing depends on the order or the partition of the
table. A small integer lies in bin 0 alone, beside the count: one row per group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from feedline.dataclass import dataclass
from feedline.errors import SpecError
from feedline.expressions.types import BOOLEAN, NUMBERS
from feedline.transforms.learning.exact_sums import (
    BIN_BITS,
    Bins,
    nearest_float,
    normal_groups,
    rounded_groups,
    units_of_each,
)
from feedline.transforms.values.kinds import Value

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BIN, _COUNT, _SUM, _SQUARES, _LEAST, _MOST = "bin", "count", "sum", "squares", "least", "most"
_ONE_WORD = 2.0**62  # sums of integers below this fit int64
_CARRY_LIMIT = 2**48  # larger units are carried into the next bin, so that 2**15 states add up in int64


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSums:
    """States of groups, which the columns `by` identify; squares, extremes: whether to keep these, too."""

    by: tuple[str, ...]
    squares: bool = False
    extremes: bool = False

    def observe(self, groups: pl.DataFrame, values: pl.Series | None) -> pl.DataFrame:
        """The state of some rows, from the columns `by` and a finite number per row; without `values`, rows are
        counted.
        """
        count = pl.len().cast(pl.Int64).alias(_COUNT)
        if values is None:
            return self._state(groups.group_by(*self.by).agg(count))
        # every bin of every sum is a column, so that one pass over the groups adds all of them
        numbers = values.to_numpy()
        units = {
            f"{name} {index}": column
            for name in self._sums
            for index, column in units_of_each(numbers, squares=name == _SQUARES).items()
        }
        frame = groups.with_columns(pl.Series(*item) for item in units.items())
        aggregates = [count, *(pl.col(name).sum() for name in units)]
        if self.extremes:
            if values.dtype.is_float():
                values = pl.Series(numbers + 0.0)  # makes -0.0 equal 0.0, or the result would depend on the order
            frame = frame.with_columns(values.alias(_LEAST), values.alias(_MOST))
            aggregates += [pl.col(_LEAST).min().cast(pl.Float64), pl.col(_MOST).max().cast(pl.Float64)]
        found = frame.group_by(*self.by).agg(aggregates)
        states = []
        for index in sorted({0, *(int(name.split()[1]) for name in units)}):
            here = {name: f"{name} {index}" for name in self._sums if f"{name} {index}" in units}
            some = found.select(
                *self.by,
                pl.lit(index, pl.Int32).alias(_BIN),
                *((_COUNT, *((_LEAST, _MOST) if self.extremes else ())) if index == 0 else ()),
                *(pl.col(column).alias(name) for name, column in here.items()),
            )
            if index:
                some = some.filter(pl.any_horizontal(pl.col(*here) != 0))
            states.append(self._state(some))
        return pl.concat(states, rechunk=False)

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        merged = self._add(pl.concat(states, rechunk=False))
        for name in self._sums:
            units = pl.col(name)
            if merged.select((units.abs() >= _CARRY_LIMIT).any()).item():
                low = ((units + 2 ** (BIN_BITS - 1)) & (2**BIN_BITS - 1)) - 2 ** (BIN_BITS - 1)
                above = merged.select(*self.by, pl.col(_BIN) + 1, ((units - low) // 2**BIN_BITS).alias(name))
                carries = self._state(above.filter(units != 0))
                merged = self._add(pl.concat([merged.with_columns(low.alias(name)), carries]))
        return merged

    @property
    def _sums(self) -> tuple[str, ...]:
        return (_SUM, _SQUARES) if self.squares else (_SUM,)

    def _state(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with all columns of a state, missing ones filled with 0, or null for extremes."""
        numbers = {_BIN: pl.Int32(), _COUNT: pl.Int64(), **dict.fromkeys(self._sums, pl.Int64())}
        others = dict.fromkeys((_LEAST, _MOST), pl.Float64()) if self.extremes else {}
        lacking = [pl.lit(0, dtype).alias(name) for name, dtype in numbers.items() if name not in frame.columns]
        lacking += [pl.lit(None, dtype).alias(name) for name, dtype in others.items() if name not in frame.columns]
        return frame.with_columns(lacking).select(*self.by, *numbers, *others)

    def _add(self, frame: pl.DataFrame) -> pl.DataFrame:
        sums = [pl.col(name).sum() for name in (_COUNT, *self._sums)]
        extremes = [pl.col(_LEAST).min(), pl.col(_MOST).max()] if self.extremes else []
        return frame.group_by(*self.by, _BIN).agg(*sums, *extremes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedState:
    """A merged state with its groups numbered by some of the columns that identify them, in their order.

    groups: those columns, a row for each group. of_row: the group of each row of `state`.
    """

    groups: pl.DataFrame
    state: pl.DataFrame
    of_row: Integers

    @classmethod
    def by(cls, state: pl.DataFrame, names: Sequence[str]) -> GroupedState:
        state = state.sort(*names)
        keys = state.select(names)
        new = np.ones(state.height, np.bool_)
        if state.height > 1:
            changes = [(keys[name][1:] != keys[name][:-1]).to_numpy() for name in names]
            new[1:] = np.logical_or.reduce(changes)
        return cls(groups=keys.filter(pl.Series(new)), state=state, of_row=np.cumsum(new) - 1)

    def counts(self, selection: pl.Series | None = None) -> Integers:
        """The number of values of each group, over some of the state's rows (default: all)."""
        of_row, counts = self._choose(_COUNT, selection)
        return _add(of_row, counts, self.groups.height)

    def sums(self, selection: pl.Series | None = None, *, squares: bool = False) -> tuple[Floats, Floats]:
        """Each group's sum as float64, and the remainder, over some of the state's rows (default: all)."""
        of_row, units = self._choose(_SQUARES if squares else _SUM, selection)
        _, bins = self._choose(_BIN, selection)
        if not bins.any() and np.abs(units.astype(np.float64)).sum() < _ONE_WORD:  # mostly integers: nothing to carry
            found = _add(of_row, units, self.groups.height)
            high = found.astype(np.float64)
            return high, (found - high.astype(np.int64)).astype(np.float64)
        return rounded_groups(of_row, bins.astype(np.int64), units, self.groups.height)

    def leave_out(self, parts: Sequence[Integers]) -> Iterator[tuple[Integers, Floats]]:
        """For each part, a set of the state's rows: counts and sums of each group's values without it.

        Parts are subtracted from the whole in integers, so no intermediate result is rounded.
        """
        counts, (units, bins) = self.counts(), (self.state[name].to_numpy() for name in (_SUM, _BIN))
        every, number = self.state[_COUNT].to_numpy(), self.groups.height
        plain = not bins.any() and np.abs(units.astype(np.float64)).sum() < _ONE_WORD
        whole = _add(self.of_row, units, number) if plain else None
        of_group, of_bin, of_units = normal_groups(self.of_row, bins.astype(np.int64), units)
        for part in parts:
            remaining = counts - _add(self.of_row[part], every[part], number)
            if whole is not None:
                yield remaining, (whole - _add(self.of_row[part], units[part], number)).astype(np.float64)
                continue
            sums = (
                np.concatenate((of_group, self.of_row[part])),
                np.concatenate((of_bin, bins[part].astype(np.int64))),
                np.concatenate((of_units, -units[part])),
            )
            yield remaining, rounded_groups(*sums, number)[0]

    def extremes(self) -> tuple[Floats, Floats]:
        first = np.flatnonzero(np.diff(self.of_row, prepend=-1))
        least, most = (self.state[name].to_numpy() for name in (_LEAST, _MOST))
        return np.fmin.reduceat(least, first), np.fmax.reduceat(most, first)

    def variances(self, groups: Integers) -> list[float]:
        """The unbiased variance of groups with at least two values, each computed in rational numbers."""
        selection = np.isin(self.of_row, groups)
        rows = self.state.filter(pl.Series(selection)).select(_BIN, _COUNT, _SUM, _SQUARES).rows()
        # sums may have lost bins that squares have
        lowest = min((min(index, index // 2) for index, _, _, _ in rows), default=0)
        counts, sums, squares = ([0] * len(groups) for _ in range(3))
        for at, (index, count, units, of_squares) in zip(
            np.searchsorted(groups, self.of_row[selection]).tolist(), rows, strict=True
        ):
            counts[at] += count
            sums[at] += units << BIN_BITS * (index - lowest) if units else 0
            squares[at] += of_squares << BIN_BITS * (index - 2 * lowest) if of_squares else 0
        unit = Fraction(2) ** (2 * BIN_BITS * lowest)  # a square is a multiple of the square of a value's unit
        return [
            nearest_float(Fraction(count * square - state_total**2, count * (count - 1)) * unit)
            for count, state_total, square in zip(counts, sums, squares, strict=True)
        ]

    def _choose(self, name: str, selection: pl.Series | None) -> tuple[Integers, Integers]:
        column = self.state[name].to_numpy()
        return (
            (self.of_row, column)
            if selection is None
            else (self.of_row[selection.to_numpy()], column[selection.to_numpy()])
        )


def _add(groups: Integers, numbers: Integers, count: int) -> Integers:
    found = np.zeros(count, np.int64)
    np.add.at(found, groups, numbers)
    return found


def check_numbers(value: Value, what: str, column: str) -> None:
    """Raise SpecError for a column that `finite` does not take; `what`: the parameter that the column belongs to."""
    if value.kind.listed or value.kind.element not in NUMBERS | {BOOLEAN}:
        raise SpecError(
            f"{what} must be a column of numbers or booleans: got {column!r} of {value.kind}s, expected integers, "
            "floats, decimals or booleans. Name another column"
        )


def finite(series: pl.Series) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """The numbers of a column [N], and a mask of the finite ones (None: all); nulls, NaN and infinities are not finite.

    Integers and booleans come as integers, other types as floats.
    """
    dtype = series.dtype
    if not dtype.is_integer() and dtype != pl.Float32:
        series = series.cast(pl.Int64 if dtype == pl.Boolean else pl.Float64)
    valid = series.is_not_null() if series.null_count() else None
    if series.dtype.is_float():
        valid = series.is_finite().fill_null(value=False)
        valid = None if valid.all() else valid
    values = series.fill_null(0) if series.null_count() else series
    return values.to_numpy(), None if valid is None else valid.to_numpy()


def state_total(state: pl.DataFrame) -> tuple[int, Bins]:
    """The number of values behind some rows of a state, and their sum."""
    found = state.group_by(_BIN).agg(
        pl.col(_COUNT).sum(), (pl.col(_SUM) // 2**BIN_BITS).sum().alias("high"), (pl.col(_SUM) % 2**BIN_BITS).sum()
    )
    count, bins = 0, {}
    for index, values, high, low in found.select(_BIN, _COUNT, "high", _SUM).rows():
        count += values
        bins[index] = (high << BIN_BITS) + low
    return count, bins
