"""Collect the rows of a step from its blocks, as the schedule cuts them.

Runs in: the feeder and `Pipeline.batches`. A block may consist of several parts laid end to end; padding repeats one
row of the lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from feedline.loader.encoding.encoded_rows import slice_rows, take
from feedline.loader.encoding.shuffled_rows import Rows, ShuffledRows
from feedline.loader.encoding.slot import RowSlice
from feedline.planning.schedule import Schedule


def segments_of(
    schedule: Schedule,
    lanes: Iterable[int],
    step: int,
    get: Callable[[int, int], Sequence[Rows] | None],
) -> list[RowSlice] | None:
    """The row slices of a step, or None while `get(lane, block)` returns None, or only first rows that are too few, for
    a block that is being computed."""
    segments: list[RowSlice] = []
    for lane in lanes:
        for cut in schedule.cuts(lane, step):
            parts = get(lane, cut.block)
            if parts is None:
                return None
            stop = cut.start + 1 if cut.padding else cut.stop
            if sum(part.rows for part in parts) < stop:
                return None
            first = 0
            for part in parts:
                begin, end = max(cut.start - first, 0), min(stop - first, part.rows)
                if begin < end and cut.padding:
                    segments.append(_padding(part, begin, cut.padding))
                elif begin < end:
                    segments.append(RowSlice(encoded=part, start=begin, stop=end))
                first += part.rows
    return segments


def _padding(part: Rows, row: int, times: int) -> RowSlice:
    one = part.rows_at(row, row + 1) if isinstance(part, ShuffledRows) else slice_rows(part, row, row + 1)
    repeated = take([one], np.zeros(times, dtype=np.int64))
    return RowSlice(encoded=repeated, start=0, stop=times, valid=False, repeats=(part, row))
