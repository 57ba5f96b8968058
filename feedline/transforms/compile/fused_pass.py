"""Split a pass over a frame into expressions for Polars, and kernels and slices over existing columns.

Runs in: every process that transforms. Kernels at the end of a feature, over numbers in lists too, and slices of lists
run outside of Polars, where calling them costs less; Polars only computes their inputs, unless those are columns of the
frame. The results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import polars as pl

from feedline.transforms.values.arrays import Column, Columns
from feedline.transforms.values.kinds import Value
from feedline.transforms.values.ragged import map_flat, slice_numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ending:
    """What is left of a feature's value after the expression that Polars computes."""

    expr: pl.Expr
    run: Callable[[pl.Series], Column]


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
            same = value.kernels or value.slice or value.changed
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
        # The one column that all features are, or that kernels make them of.
        sources = {"" if column.computed else column.source for column in self._columns}
        self.only_source = sources.pop() if len(sources) == 1 else ""

    def run(
        self,
        frame: pl.DataFrame,
        select: Callable[[Sequence[pl.Expr]], pl.DataFrame],
        held: Sequence[str] = (),
    ) -> tuple[Columns, pl.DataFrame]:
        """The features of an unchunked frame, and columns that are held for them; `select` computes expressions."""
        wanted = [*self._native, *(pl.col(name) for name in held)]
        computed = select(wanted) if wanted else frame
        if self._is_native and not held:
            return computed, pl.DataFrame()
        features = self._finish(lambda column: (computed if column.computed else frame).get_column(column.source))
        return features, computed.select(held) if held else pl.DataFrame()

    def run_one(self, series: pl.Series) -> dict[str, Column]:
        """The features of `only_source`."""
        return self._finish(lambda column: series)

    def _finish(self, find: Callable[[_OutputColumn], pl.Series]) -> dict[str, Column]:
        done: dict[_Ending, Column] = {}
        features: dict[str, Column] = {}
        for column in self._columns:
            ending = column.ending
            if ending is None:
                features[column.name] = find(column)
                continue
            if ending not in done:
                done[ending] = ending.run(find(column))
            features[column.name] = done[ending]
        return features


def _ending(value: Value) -> _Ending | None:
    kernels, tail, changed = value.kernels, value.slice, value.changed
    if kernels is not None and kernels.run is not None:
        return _Ending(expr=kernels.values, run=kernels.run)
    if tail is not None:
        return _Ending(expr=tail.lists, run=lambda lists: slice_numbers(lists, tail.start, tail.stop))
    if changed is not None and changed.kernels is not None and changed.kernels.run is not None:
        return _elements_ending(changed.lists, changed.kernels.run, changed.element.dtype)
    return None


def _elements_ending(lists: Value, run: Callable[[pl.Series], Column], dtype: pl.DataType) -> _Ending:
    """Kernels over the elements of lists, which may be slices themselves."""
    tail = lists.slice
    if tail is None:
        return _Ending(expr=lists.expr, run=lambda series: map_flat(series, run, dtype))
    return _Ending(
        expr=tail.lists, run=lambda series: map_flat(slice_numbers(series, tail.start, tail.stop), run, dtype)
    )
