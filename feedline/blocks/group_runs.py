"""Where runs of a deduplicated group's equal rows end, besides where its columns change.

Runs in: every process that computes blocks. Pure. A row group is divided into stretches of RUN_ROWS of the rows that it
delivers; a run ends with its stretch, and with what a block takes of it. So runs follow from the rows alone, and not
from how these are read, encoded or kept. Where few rows of a stretch repeat, as far as a block takes it, all are taken
for unique ones: a gather costs more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feedline.warehouse.reading.columns import CHUNK_ROWS
from feedline.warehouse.reading.fragment import Chunk

Bools = NDArray[np.bool_]

RUN_ROWS = CHUNK_ROWS  # so that a chunk of a row group that is taken whole is a stretch
_WORTH_GATHERING = 0.9  # the share of unique rows from which on all rows are taken for such


def stretches(start: int, rows: int) -> range:
    """Which of some rows of a row group begin a stretch. start: how many the row group delivers before them."""
    return range(-start % RUN_ROWS, rows, RUN_ROWS)


def ends_stretch(chunk: Chunk) -> bool:
    """Whether the row after a chunk begins a stretch."""
    return (chunk.start + chunk.frame.height) % RUN_ROWS == 0


def at_last_stretch(chunk: Chunk) -> tuple[Chunk, ...]:
    """A chunk in two, if its last stretch goes on after it: the one before, and what it has of that one."""
    inner = stretches(chunk.start, chunk.frame.height)
    if ends_stretch(chunk) or not inner or inner[-1] == 0:
        return (chunk,)
    return chunk.part(0, inner[-1]), chunk.part(inner[-1], chunk.frame.height)


def unique_starts(starts: Bools, borders: Sequence[int]) -> Bools:
    """bool [rows]: which rows are unique rows of a block. starts: where runs begin. borders: where stretches do."""
    first = np.unique([0, *(border for border in borders if border < len(starts))])
    heights = np.diff(first, append=len(starts))
    found = starts.copy()
    found[first] = True
    is_many = np.add.reduceat(found, first, dtype=np.int64) > _WORTH_GATHERING * heights
    return found | np.repeat(is_many, heights)
