"""Split a pass over a frame into expressions for Polars, and kernels and slices over existing columns.

Runs in: every process that transforms. Kernels at the end of a feature, over numbers in lists too, and slices of lists
run outside of Polars, where calling them costs less; Polars only computes their inputs, unless those are columns of the
frame. The results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import polars as pl

from feedline.transforms.values.arrays import Column, Columns, FusedKernels, as_series
from feedline.transforms.values.kinds import Elements, TailSlice, Value
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
            same = value.ending
            if id(same) in shared:
                column = replace(shared[id(same)], name=name)
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
    match value.ending:
        case FusedKernels(values=values, run=run) if run is not None:
            return _Ending(expr=values, run=run)
        case TailSlice(lists=lists, start=start, stop=stop):
            return _Ending(expr=lists, run=lambda series: slice_numbers(series, start, stop))
        case Elements(lists=lists, element=element, kernels=FusedKernels(run=run)) if run is not None:
            before = _ending(lists) if isinstance(lists.ending, TailSlice) else None
            if before is None:
                return _Ending(expr=lists.expr, run=lambda series: map_flat(series, run, element.dtype))
            return _Ending(
                expr=before.expr, run=lambda series: map_flat(as_series(before.run(series)), run, element.dtype)
            )
    return None
