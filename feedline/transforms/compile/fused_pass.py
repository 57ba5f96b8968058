"""Which part of a pass over a frame needs Polars, and which are kernels over columns that are there already?

Runs in: every process that transforms. A kernel costs about 10 us per 32,768 values, a call of it from inside Polars as
much again or more (24 against 45 us for clip). So features whose last ops are kernels are computed beside Polars: it
makes what their kernels begin with, where that is no column of the frame anyway. The numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import polars as pl

from feedline.transforms.values.arrays import Fused
from feedline.transforms.values.kinds import Value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _OutputColumn:
    """A feature: its kernels if it ends with any, and the column they begin with, which is in the frame or made."""

    name: str
    fused: Fused | None
    source: str
    made: bool


class FusedPass:
    """Features as columns of a frame, in order; `columns` are what every frame holds."""

    def __init__(self, names: Sequence[str], values: Sequence[Value], columns: Collection[str]) -> None:
        self._columns: list[_OutputColumn] = []
        self._native: list[pl.Expr] = []
        sources: dict[int, tuple[str, bool]] = {}  # of kernels that several features end with
        for name, value in zip(names, values, strict=True):
            fused = value.made if value.made is not None and value.made.has_kernels else None
            if fused is None:
                source, made = name, True
                self._native.append(value.expr.alias(name))
            elif id(fused) in sources:
                source, made = sources[id(fused)]
            else:
                root = fused.values.meta.output_name() if fused.values.meta.is_column() else ""
                made = root not in columns
                source = name if made else root
                sources[id(fused)] = source, made
                if made:
                    self._native.append(fused.values.alias(name))
            self._columns.append(_OutputColumn(name=name, fused=fused, source=source, made=made))

    def run(self, frame: pl.DataFrame, select: Callable[[Sequence[pl.Expr]], pl.DataFrame]) -> pl.DataFrame:
        """The features of a frame in one chunk; `select` computes expressions over it."""
        made = select(self._native) if self._native else frame
        done: dict[int, pl.Series] = {}
        columns = []
        for column in self._columns:
            series = (made if column.made else frame).get_column(column.source)
            if column.fused is not None:
                if id(column.fused) not in done:
                    done[id(column.fused)] = column.fused.run(series)
                series = done[id(column.fused)]
            columns.append(series.alias(column.name))
        return pl.DataFrame(columns) if done else made
