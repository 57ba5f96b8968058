"""Keep, of each row, what quality sums over rows but values do not show: whether it is null, and what it looks up.

Runs in: every process that computes blocks, where rows are put into a cache, from which blocks then take any of them.
Pure.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.transforms.compile.compiled import Output
from feedline.transforms.values.lookup_counts import RowLookups

Counts = NDArray[np.int64]


class RowCounts:
    """Those of rows that are encoded chunk by chunk; of a deduplicated group, of its unique rows."""

    def __init__(self) -> None:
        self._nulls: dict[str, list[tuple[int, NDArray[np.bool_] | None]]] = {}
        self._lookups: dict[str, list[Sequence[RowLookups]]] = {}

    def add_nulls(self, outputs: Sequence[Output], frame: pl.DataFrame) -> None:
        """The next rows of some features: a feature's row is null if one of its columns is."""
        holed = [series.name for series in frame if series.null_count()]
        masks = {series.name: series.to_numpy() for series in frame[holed].select(pl.all().is_null())} if holed else {}
        of_reads: dict[tuple[str, ...], NDArray[np.bool_] | None] = {}
        for output in outputs:
            if output.reads not in of_reads:
                own = [masks[name] for name in output.reads if name in masks]
                of_reads[output.reads] = functools.reduce(operator.or_, own) if own else None
            self._nulls.setdefault(output.name, []).append((frame.height, of_reads[output.reads]))

    def add_lookups(self, lookups: Mapping[str, Sequence[RowLookups]]) -> None:
        """The next rows of features with lookups: of each lookup of a chain, in order."""
        for name, found in lookups.items():
            self._lookups.setdefault(name, []).append(found)

    def nulls(self, name: str) -> NDArray[np.bool_] | None:
        """bool [rows]: which are null; None if none is."""
        parts = self._nulls.get(name, [])
        if all(mask is None for _, mask in parts):
            return None
        return np.concatenate([np.zeros(rows, np.bool_) if mask is None else mask for rows, mask in parts])

    def lookups(self, name: str) -> list[RowLookups]:
        """Of each lookup of the feature's chain: the values that each row looks up, and how many were unknown."""
        return [
            (np.concatenate([asked for asked, _ in parts]), np.concatenate([missed for _, missed in parts]))
            for parts in zip(*self._lookups.get(name, []), strict=True)
        ]
