"""Split a pass over a frame into expressions for Polars and kernels over existing columns.

Runs in: every process that transforms. A kernel costs about 10 us per 32,768 values, a call of it from inside Polars at
least as much again (clip: 45 us instead of 24). So kernels at the end of a feature run outside of Polars, which only
computes their inputs, unless those are columns of the frame. The results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import polars as pl

from feedline.transforms.values.arrays import FusedKernels
from feedline.transforms.values.kinds import Value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _OutputColumn:
    """A feature: its final kernels, if any, and the column they start from, in the frame or computed by Polars."""

    name: str
    fused: FusedKernels | None
    source: str
    computed: bool


class FusedPass:
    """Features as columns of a frame, in order; `columns` are those that every frame holds."""

    def __init__(self, names: Sequence[str], values: Sequence[Value], columns: Collection[str]) -> None:
        self._columns: list[_OutputColumn] = []
        self._native: list[pl.Expr] = []
        sources: dict[int, tuple[str, bool]] = {}  # by kernels, which several features may share
        for name, value in zip(names, values, strict=True):
            fused = value.kernels if value.kernels is not None and value.kernels.has_kernels else None
            if fused is None:
                source, computed = name, True
                self._native.append(value.expr.alias(name))
            elif id(fused) in sources:
                source, computed = sources[id(fused)]
            else:
                root = fused.values.meta.output_name() if fused.values.meta.is_column() else ""
                computed = root not in columns
                source = name if computed else root
                sources[id(fused)] = source, computed
                if computed:
                    self._native.append(fused.values.alias(name))
            self._columns.append(_OutputColumn(name=name, fused=fused, source=source, computed=computed))

    def run(self, frame: pl.DataFrame, select: Callable[[Sequence[pl.Expr]], pl.DataFrame]) -> pl.DataFrame:
        """The features of an unchunked frame; `select` computes expressions over it."""
        computed = select(self._native) if self._native else frame
        done: dict[int, pl.Series] = {}
        columns = []
        for column in self._columns:
            series = (computed if column.computed else frame).get_column(column.source)
            if column.fused is not None:
                if id(column.fused) not in done:
                    done[id(column.fused)] = column.fused.run(series)
                series = done[id(column.fused)]
            columns.append(series.alias(column.name))
        return pl.DataFrame(columns) if done else computed
