"""Rows that repeat as unique rows and an inverse: what files store once per run, and deduplicated groups.

Pure; runs in every process that reads, encodes or writes slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.dataclass import dataclass

T = TypeVar("T")
Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class UniqueRows(Generic[T]):
    """N rows of which some repeat the one above: row i is row `inverse[i]`, int32 [N], of `rows`.

    The inverse never falls, and rises by at most 1: the rows from `start` to `stop` use a range of the unique rows.
    """

    rows: T
    inverse: Int32s


def unique_range(inverse: Int32s, start: int, stop: int) -> tuple[int, int]:
    """The unique rows [first, last) that rows [start, stop) of an inverse use."""
    # inverse [0, 0, 1, 2], rows [1, 3): unique rows [0, 2)
    return (int(inverse[start]), int(inverse[stop - 1]) + 1) if stop > start else (0, 0)


def first_uses(inverse: Int32s) -> NDArray[np.int64]:
    """int64 [unique rows]: the first row that is each of an inverse's unique rows, if all of these are used."""
    # inverse [0, 0, 1, 1, 2] -> [0, 2, 4]
    changes = np.empty(len(inverse), dtype=np.bool_)
    changes[:1] = True
    np.not_equal(inverse[1:], inverse[:-1], out=changes[1:])
    return np.flatnonzero(changes)


def join_inverses(inverses: Sequence[Int32s], heights: Sequence[int]) -> Int32s:
    """The inverse of parts that are laid end to end. heights: the unique rows of each."""
    # [0, 0, 1] and [0, 1], of 2 unique rows each -> [0, 0, 1, 2, 3]
    firsts = np.cumsum([0, *heights[:-1]])
    return np.concatenate([inverse + np.int32(first) for inverse, first in zip(inverses, firsts, strict=True)])


def chosen_unique(inverse: Int32s, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], Int32s]:
    """The unique rows that rows `indices` use, one for each run of rows with the same, and the inverse of the rows."""
    # inverse [0, 0, 1, 2], rows 3, 2, 2, 0 -> unique rows [2, 1, 0], whose inverse is [0, 1, 1, 2]
    used = inverse.take(indices)
    changes = np.empty(len(used), dtype=np.bool_)
    changes[:1] = True
    np.not_equal(used[1:], used[:-1], out=changes[1:])
    return used[changes].astype(np.int64), np.cumsum(changes, dtype=np.int32) - np.int32(1)
