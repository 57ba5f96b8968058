"""Split a pass over a frame into expressions for Polars, and kernels and slices over existing columns.

Runs in: every process that transforms. A kernel costs about 10 us per 32,768 values, a call of it from inside Polars at
least as much again (clip: 45 us instead of 24). So kernels at the end of a feature, and slices of lists, run outside of
Polars, which only computes their inputs, unless those are columns of the frame. The results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import polars as pl

from feedline.transforms.values.arrays import Values
from feedline.transforms.values.kinds import Value
from feedline.transforms.values.ragged import slice_numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ending:
    """What is left of a feature's value after the expression that Polars computes."""

    expr: pl.Expr
    run: Callable[[pl.Series], pl.Series]
    numbers: Callable[[pl.Series], Values] | None = None  # of a series without nulls, as an array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _OutputColumn:
    """A feature: its ending, if any, and the column that it starts from, in the frame or computed by Polars."""

    name: str
    ending: _Ending | None
    source: str
    computed: bool


class FusedPass:
    """Features as columns of a frame, in order; `columns` are those that every frame holds."""

    def __init__(self, names: Sequence[str], values: Sequence[Value], columns: Collection[str]) -> None:
        self._columns: list[_OutputColumn] = []
        self._native: list[pl.Expr] = []
        shared: dict[int, _OutputColumn] = {}  # by kernels or slice, which several features may share
        for name, value in zip(names, values, strict=True):
            same = value.kernels if value.kernels is not None else value.slice
            if id(same) in shared:
                first = shared[id(same)]
                column = _OutputColumn(name=name, ending=first.ending, source=first.source, computed=first.computed)
            else:
                ending = _ending(value)
                expr = value.expr if ending is None else ending.expr
                root = expr.meta.output_name() if expr.meta.is_column() else ""
                computed = root not in columns
                column = _OutputColumn(name=name, ending=ending, source=name if computed else root, computed=computed)
                if ending is not None:
                    shared[id(same)] = column
                if computed:
                    self._native.append(expr.alias(name))
            self._columns.append(column)
        self._is_native = bool(self._columns) and all(
            column.computed and column.ending is None for column in self._columns
        )
        self._has_numbers = not any(
            column.computed or (column.ending is not None and column.ending.numbers is None) for column in self._columns
        )

    def run(
        self,
        frame: pl.DataFrame,
        select: Callable[[Sequence[pl.Expr]], pl.DataFrame],
        held: Sequence[str] = (),
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The features of an unchunked frame, and columns that are held for them; `select` computes expressions."""
        wanted = [*self._native, *(pl.col(name) for name in held)]
        computed = select(wanted) if wanted else frame
        done: dict[int, pl.Series] = {}
        columns = []
        for column in self._columns:
            series = (computed if column.computed else frame).get_column(column.source)
            ending = column.ending
            if ending is not None:
                if id(ending) not in done:
                    done[id(ending)] = ending.run(series)
                series = done[id(ending)]
            columns.append(series if ending is None and column.name == column.source else series.alias(column.name))
        finished = computed if not held and self._is_native else pl.DataFrame(columns)
        return finished, computed.select(held) if held else pl.DataFrame()

    def numbers(self, series: pl.Series) -> list[Values] | None:
        """The features of a column without nulls, the only one that they read, as arrays; None if any is computed by
        Polars.
        """
        if not self._has_numbers:
            return None
        done: dict[_Ending | None, Values] = {}
        for ending in dict.fromkeys(column.ending for column in self._columns):
            numbers = None if ending is None else ending.numbers
            done[ending] = series.to_numpy() if numbers is None else numbers(series)
        return [done[column.ending] for column in self._columns]


def _ending(value: Value) -> _Ending | None:
    kernels, tail = value.kernels, value.slice
    if kernels is not None and kernels.numbers is not None:
        return _Ending(expr=kernels.values, run=kernels.run, numbers=kernels.numbers)
    if tail is not None:
        return _Ending(expr=tail.lists, run=lambda lists: slice_numbers(lists, tail.start, tail.stop))
    return None
