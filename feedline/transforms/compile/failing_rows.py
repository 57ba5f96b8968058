"""Find all rows that features cannot be computed of, and not only the first one that an error names.

Runs in: processes that check rows. Pure. A row's features depend on that row alone, so some rows fail together exactly
if one of them fails. Rows that are equal in what a feature reads are tried once, and those that fail are found by
halving: about 2 log2(n / b) passes of one feature for each of b failing rows among n, and none for features that do not
fail.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.errors import DataError
from feedline.transforms.compile.compiled import CompiledFeatures

Bools = NDArray[np.bool_]


def failing_rows(features: CompiledFeatures, frame: pl.DataFrame, most: int) -> dict[str, Bools]:
    """bool [rows] per feature that cannot be computed of some rows: which of them; of more than `most`, some.

    `frame`: as `CompiledFeatures.apply` takes it, with all its columns. Raises DataError, as a run would, for a feature
    that fails on rows together, but on none alone.
    """
    frame = frame.rechunk()
    found: dict[str, Bools] = {}
    for index, output in enumerate(features.outputs):
        error = features.failure(frame, index)
        if error is None:
            continue
        reads = dict.fromkeys([*output.reads, *output.row_columns, *features.marks])
        groups = _equal_rows(frame, [name for name in reads if name in frame.columns])
        firsts = frame if groups is None else frame[groups[0]]
        failing = _halve(features, firsts, index, most)
        if not failing.any():
            raise DataError(f"feature {output.name!r} fails on some rows together, but on none of them alone: {error}")
        found[output.name] = failing if groups is None else failing[groups[1]]
    return found


def _halve(features: CompiledFeatures, frame: pl.DataFrame, index: int, most: int) -> Bools:
    """Which rows of a frame a feature fails on."""
    return find_failing(
        frame.height, lambda start, stop: features.failure(frame.slice(start, stop - start), index) is not None, most
    )


def find_failing(count: int, fails: Callable[[int, int], bool], most: int) -> Bools:
    """bool [count]: the indices that fail alone, the first ones of them if they are more than `most`.

    fails: whether any index in [start, stop) does; some do. It is called once at most for each range.
    """
    failing = np.zeros(count, np.bool_)
    found, waiting = 0, [(0, count, False)] if count else []  # ranges that fail, and whether they were tried
    while waiting and found <= most:
        start, stop, is_tried = waiting.pop()
        if stop - start == 1:
            failing[start] = is_tried or fails(start, stop)
            found += int(failing[start])
            continue
        middle = (start + stop) // 2
        left = fails(start, middle)
        if not left or fails(middle, stop):  # if the left half does not fail, the right half does
            waiting.append((middle, stop, left))
        if left:
            waiting.append((start, middle, True))
    return failing


def _equal_rows(frame: pl.DataFrame, columns: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """int64 [distinct]: the first of the rows that are equal in some columns; int64 [rows]: to which of these each row
    is equal. None of columns that cannot be compared exactly, or if no row is equal to another."""
    kinds = [frame.schema[name] for name in columns]
    if not columns or any(kind.is_nested() or kind.is_float() for kind in kinds):  # 0.0 equals -0.0
        return None
    index = " ".join(["row", *columns])  # a name that no column has
    first = frame.select(columns).with_row_index(index).select(pl.col(index).min().over(columns))
    firsts, numbers = np.unique(first.to_series().to_numpy(), return_inverse=True)
    return None if len(firsts) == frame.height else (firsts, numbers)
