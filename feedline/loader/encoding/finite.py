"""What becomes of finished numbers that are NaN or infinite: `on_nonfinite`?

Runs in: wherever frames are encoded. Minimum and maximum, which are wanted anyway, are finite where all values are, so
that a second look is taken only at values that need one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DataError
from feedline.loader.encoding.layout import Column
from feedline.loader.encoding.quality import Observer


def settled(
    values: NDArray[Any],
    column: Column,
    observer: Observer | None,
    *,
    row_of: Callable[[int], int] | None = None,
    weights: bool = False,
) -> NDArray[Any]:
    """A feature's finished floats (or the weights of its ids) with its `on_nonfinite` kept to, and counted.

    Values are one or one vector per row; of lists, `row_of` tells the row of a value by its place. They are copied
    where they change.

    Raises DataError, with the row, where on_nonfinite is error.
    """
    if observer is None and column.on_nonfinite == "keep":
        return values
    low, high = (values.min(), values.max()) if values.size else (math.inf, -math.inf)
    unknown = values.size and not (math.isfinite(low) and math.isfinite(high))
    finite = np.isfinite(values) if unknown else None
    if finite is not None:
        if column.on_nonfinite == "error":
            raise _error(values, finite, column, row_of, "weight" if weights else "value")
        low = values.min(where=finite, initial=math.inf)
        high = values.max(where=finite, initial=-math.inf)
    if observer is not None:
        if not weights:
            observer.floats(column, values.size, (float(low), float(high)))
        if finite is not None:
            observer.nonfinite(column, int(finite.size - np.count_nonzero(finite)))
    if finite is None or column.on_nonfinite == "keep":
        return values
    return np.where(finite, values, values.dtype.type(0))


def _error(
    values: NDArray[Any], finite: NDArray[np.bool_], column: Column, row_of: Callable[[int], int] | None, what: str
) -> DataError:
    place = int(np.argmin(finite))
    row = row_of(place) if row_of is not None else place * len(values) // values.size
    return DataError(
        f"feature {column.name!r} holds a {what} that is not finite ({column.chain}): got {values.flat[place]} and "
        f"{int(finite.size - np.count_nonzero(finite)) - 1:,} more in {values.size:,}, expected finite numbers. Change "
        f"its ops, or set its on_nonfinite to zero or keep"
    ).at(row)
