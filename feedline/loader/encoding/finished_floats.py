"""The finished floats of features: `on_nonfinite` is applied to them, and they are counted.

Runs in: processes that encode. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DataError
from feedline.loader.encoding.layout import SlotColumn
from feedline.loader.encoding.quality import Observer


@dataclass(frozen=True, slots=True)
class Repeats:
    """How many rows of the table each row stands for, int64 [N]; lengths, int64 [N]: of the rows' lists of values."""

    of_rows: NDArray[np.int64]
    lengths: NDArray[np.int64] | None = None

    def count(self, values: NDArray[Any], *, chosen: bool = False) -> int:
        """How many values all rows of the table have: scalars, vectors [N, width], or the values of lists.

        chosen: only those where `values`, a mask, is true.
        """
        if chosen:
            repeats = self.of_rows if self.lengths is None else np.repeat(self.of_rows, self.lengths)
            return int(np.dot(values.reshape(len(repeats), -1).sum(axis=1), repeats))
        if self.lengths is not None:
            return int(np.dot(self.of_rows, self.lengths))
        return int(self.of_rows.sum()) * (values.shape[1] if values.ndim == 2 else 1)


def apply_on_nonfinite(
    values: NDArray[Any],
    column: SlotColumn,
    observer: Observer | None,
    *,
    row_of: Callable[[int], int] | None = None,
    repeats: Repeats | None = None,
    weights: bool = False,
    extremes: tuple[float, float] | None = None,
) -> NDArray[Any]:
    """Apply a feature's `on_nonfinite` to its finished floats (or the weights of its ids), counted by the observer.

    values: one scalar or vector per row, or the values of lists, where `row_of` maps a value's index to its row. They
    are copied only if they change. repeats: how often the rows' values count. extremes: the values' minimum and
    maximum, if they are known. These are finite if and only if all values are, so values are searched only if that test
    fails.

    Raises DataError, with the row, if on_nonfinite is error.
    """
    if observer is None and column.on_nonfinite == "keep":
        return values
    low, high = extremes or ((values.min(), values.max()) if values.size else (math.inf, -math.inf))
    all_finite = not values.size or (math.isfinite(low) and math.isfinite(high))
    finite = None if all_finite else np.isfinite(values)
    if finite is not None:
        if column.on_nonfinite == "error":
            raise _nonfinite_error(values, finite, column, row_of, "weight" if weights else "value")
        low = values.min(where=finite, initial=math.inf)
        high = values.max(where=finite, initial=-math.inf)
    if observer is not None:
        if not weights:
            count = values.size if repeats is None else repeats.count(values)
            observer.count_floats(column, count, (low, high))
        if finite is not None:
            wrong = int(np.count_nonzero(~finite)) if repeats is None else repeats.count(~finite, chosen=True)
            observer.count_nonfinite(column, wrong)
    if finite is None or column.on_nonfinite == "keep":
        return values
    return np.where(finite, values, values.dtype.type(0))


def _nonfinite_error(
    values: NDArray[Any], finite: NDArray[np.bool_], column: SlotColumn, row_of: Callable[[int], int] | None, what: str
) -> DataError:
    index = int(np.argmin(finite))
    row = row_of(index) if row_of is not None else index * len(values) // values.size
    return DataError(
        f"feature {column.name!r} holds a {what} that is not finite ({column.chain}): got {values.flat[index]} and "
        f"{int(finite.size - np.count_nonzero(finite)) - 1:,} more in {values.size:,}, expected finite numbers. Change "
        f"its ops, or set its on_nonfinite to zero or keep"
    ).at(row)
