"""What are the count, the exact sums, the least and the greatest of many groups' values, in whatever order they come?

Runs on the workers that fit. Pure. A group's sum is kept in the bins of `exact_sums`, as rows of a state: group, bin,
units of the bin. Adding up units by group and bin merges states, so that nothing depends on the order or on where a
table was cut. A small integer lies in bin 0 alone, beside the count: one row per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from feedline.errors import DataError
from feedline.transforms.exact_sums import BIN_BITS, Bins, grouped_bins, rounded_groups

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BIN, _COUNT, _SUM, _SQUARES, _LEAST, _MOST = "bin", "count", "sum", "squares", "least", "most"
_SMALL = 2**31  # integers below it lie in bin 0, and so many of them in int64
_CARRIED = 2**48  # units above are carried into the next bin: 2**15 such states add up in int64


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSums:
    """States of groups named by the columns `by`; squares, extremes: whether these are kept, too."""

    by: tuple[str, ...]
    squares: bool = False
    extremes: bool = False

    def observe(self, groups: pl.DataFrame, values: pl.Series | None) -> pl.DataFrame:
        """The state after some rows: the columns `by`, and a number without nulls, NaN and infinities for each.

        Without `values` rows are counted.
        """
        count = pl.len().cast(pl.Int64).alias(_COUNT)
        if values is None:
            return self._state(groups.group_by(*self.by).agg(count))
        frame = groups.with_columns(values.alias("value"))
        value = pl.col("value")
        if values.dtype.is_float():  # of 0 and -0 the first met would stay
            wide = (value + 0.0).cast(pl.Float64)
            extremes = [wide.min().alias(_LEAST), wide.max().alias(_MOST)] if self.extremes else []
        else:
            extremes = [value.min().cast(pl.Float64).alias(_LEAST), value.max().cast(pl.Float64).alias(_MOST)]
            extremes = extremes if self.extremes else []
            if _is_small(values):
                return self._small(frame.group_by(*self.by), [count, *extremes])
        found = frame.with_row_index("row").group_by(*self.by).agg(pl.col("row"), count, *extremes)
        of_row = np.empty(len(values), np.int64)
        of_row[found["row"].explode().to_numpy()] = np.repeat(np.arange(found.height), found[_COUNT].to_numpy())
        names, numbers = found.select(self.by), values.to_numpy()
        states = [self._state(found.drop("row"))]
        for name in self._sums:
            place, bins, units = grouped_bins(numbers, of_row, squares=name == _SQUARES)
            sums = names[place].with_columns(pl.Series(_BIN, bins, dtype=pl.Int32), pl.Series(name, units))
            states.append(self._state(sums))
        return self.merge(states)

    def _small(self, grouped: pl.dataframe.group_by.GroupBy, others: list[pl.Expr]) -> pl.DataFrame:
        """The state of integers below `_SMALL`: their sums lie in bin 0, those of their squares in bin 1, too."""
        value = pl.col("value").cast(pl.Int64)
        others = [*others, value.sum().alias(_SUM)]
        if not self.squares:
            return self._state(grouped.agg(*others))
        square = value * value
        found = grouped.agg(
            *others,
            (square & (2**BIN_BITS - 1)).sum().alias(_SQUARES),
            (square // 2**BIN_BITS).sum().alias("above"),
        )
        above = found.filter(pl.col("above") > 0).select(*self.by, pl.lit(1, pl.Int32).alias(_BIN), pl.col("above"))
        return pl.concat([self._state(found), self._state(above.rename({"above": _SQUARES}))])

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """The state after the rows of all."""
        merged = self._added(pl.concat(states, rechunk=False))
        for name in self._sums:
            units = pl.col(name)
            if merged.select((units.abs() >= _CARRIED).any()).item():
                low = ((units + 2 ** (BIN_BITS - 1)) & (2**BIN_BITS - 1)) - 2 ** (BIN_BITS - 1)
                above = merged.select(*self.by, pl.col(_BIN) + 1, ((units - low) // 2**BIN_BITS).alias(name))
                kept = merged.with_columns(low.alias(name))
                merged = self._added(pl.concat([kept, self._state(above.filter(units != 0))]))
        return merged

    @property
    def _sums(self) -> tuple[str, ...]:
        return (_SUM, _SQUARES) if self.squares else (_SUM,)

    def _state(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with all columns of a state; those that it lacks are 0, or null for extremes."""
        numbers = {_BIN: pl.Int32(), _COUNT: pl.Int64(), **dict.fromkeys(self._sums, pl.Int64())}
        others = dict.fromkeys((_LEAST, _MOST), pl.Float64()) if self.extremes else {}
        lacking = [pl.lit(0, dtype).alias(name) for name, dtype in numbers.items() if name not in frame.columns]
        lacking += [pl.lit(None, dtype).alias(name) for name, dtype in others.items() if name not in frame.columns]
        return frame.with_columns(lacking).select(*self.by, *numbers, *others)

    def _added(self, frame: pl.DataFrame) -> pl.DataFrame:
        sums = [pl.col(name).sum() for name in (_COUNT, *self._sums)]
        extremes = [pl.col(_LEAST).min(), pl.col(_MOST).max()] if self.extremes else []
        return frame.group_by(*self.by, _BIN).agg(*sums, *extremes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """A merged state, its groups numbered by some of the columns that name them, in their order.

    groups: those columns, a row for each. of_row: the group of each row of `state`.
    """

    groups: pl.DataFrame
    state: pl.DataFrame
    of_row: Integers

    @classmethod
    def by(cls, state: pl.DataFrame, names: Sequence[str]) -> Numbered:
        """The groups of a state, by the columns `names`."""
        state = state.sort(*names)
        keys = state.select(names)
        new = np.ones(state.height, np.bool_)
        if state.height > 1:
            changes = [(keys[name][1:] != keys[name][:-1]).to_numpy() for name in names]
            new[1:] = np.logical_or.reduce(changes)
        return cls(groups=keys.filter(pl.Series(new)), state=state, of_row=np.cumsum(new) - 1)

    def counts(self, chosen: pl.Series | None = None) -> Integers:
        """How many values each group has, of some of the state's rows."""
        of_row, counts = self._chosen(_COUNT, chosen)
        found = np.zeros(self.groups.height, np.int64)
        np.add.at(found, of_row, counts)
        return found

    def sums(self, chosen: pl.Series | None = None, *, squares: bool = False) -> tuple[Floats, Floats]:
        """The sum of each group's values, of some of the state's rows, as float64, and what is missing to it."""
        of_row, units = self._chosen(_SQUARES if squares else _SUM, chosen)
        _, bins = self._chosen(_BIN, chosen)
        return rounded_groups(of_row, bins.astype(np.int64), units, self.groups.height)

    def extremes(self) -> tuple[Floats, Floats]:
        """The least and the greatest of each group's values."""
        first = np.flatnonzero(np.diff(self.of_row, prepend=-1))
        least, most = (self.state[name].to_numpy() for name in (_LEAST, _MOST))
        return np.fmin.reduceat(least, first), np.fmax.reduceat(most, first)

    def _chosen(self, name: str, chosen: pl.Series | None) -> tuple[Integers, Integers]:
        column = self.state[name].to_numpy()
        return (self.of_row, column) if chosen is None else (self.of_row[chosen.to_numpy()], column[chosen.to_numpy()])


def _is_small(values: pl.Series) -> bool:
    least, most = values.min(), values.max()
    return least is None or (int(least) > -_SMALL and int(most) < _SMALL)  # type: ignore[arg-type]


def finite(series: pl.Series, what: str, column: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """The numbers of a column [N], and which of them are known: neither null nor NaN nor infinite; None for all.

    Integers and booleans as integers, others as float64. Raises DataError for what is no number.
    """
    dtype = series.dtype
    if not (dtype.is_numeric() or dtype == pl.Boolean):
        raise DataError(
            f"{what} must be a column of numbers or booleans: got {column!r} of type {dtype}, expected integers, "
            "floats, decimals or booleans. Name another column"
        )
    if not dtype.is_integer():
        series = series.cast(pl.Int64 if dtype == pl.Boolean else pl.Float64)
    known = series.is_not_null() if series.null_count() else None
    if series.dtype.is_float():
        known = series.is_finite().fill_null(value=False)
        known = None if known.all() else known
    values = series.fill_null(0) if series.null_count() else series
    return values.to_numpy(), None if known is None else known.to_numpy()


def total(state: pl.DataFrame) -> tuple[int, Bins]:
    """How many values some rows of a state stand for, and their sum."""
    found = state.group_by(_BIN).agg(
        pl.col(_COUNT).sum(), (pl.col(_SUM) // 2**BIN_BITS).sum().alias("high"), (pl.col(_SUM) % 2**BIN_BITS).sum()
    )
    count, bins = 0, {}
    for place, values, high, low in found.select(_BIN, _COUNT, "high", _SUM).rows():
        count += values
        bins[place] = (high << BIN_BITS) + low
    return count, bins
