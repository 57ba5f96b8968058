"""Collect the rows of a step from its blocks, as the schedule cuts them.

Runs in: the feeder and `Pipeline.batches`. A block may consist of several parts laid end to end; padding repeats one
row of the lane. Steps that draw from the same parts are cut together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from feedline.loader.encoding.encoded_rows import slice_rows, take
from feedline.loader.encoding.layout import SlotHeader, SlotLayout
from feedline.loader.encoding.shuffled_rows import Rows, ShuffledRows
from feedline.loader.encoding.slot import Draft, RowSlice, draft
from feedline.planning.epoch_schedule import EpochSchedule


def segments_of(
    schedule: EpochSchedule,
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
            # Parts of 5 and 5 rows, a cut [3, 7): rows [3, 5) of the first, [0, 2) of the second; padding repeats row
            # 3.
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


def rows_ahead(
    schedule: EpochSchedule, lanes: Iterable[int], step: int, segments: Sequence[RowSlice], most: int
) -> NDArray[np.int64]:
    """int64 [n + 1, segments]: how many rows of each segment's part are drawn from its start on, before each of n steps
    from `step` on and after the last one. n: as many, at most, as draw from these parts alone; 1 at least.

    segments: of the step.
    """
    drawn = [schedule.drawn(lane, step, most) for lane in lanes]
    steps = min(len(each) for each in drawn) - 1
    rows = np.concatenate([each[: steps + 1] for each in drawn], axis=1)
    own = [piece.stop - piece.start for piece in segments]
    if not steps or rows[1].tolist() != own:  # padding, or a strand that goes on with its next block or part
        return np.array([[0] * len(own), own])
    # 2 and 3 rows a step of parts that have 7 and 9 left: [[0, 0], [2, 3], [4, 6], [6, 9]], three steps.
    left = [piece.encoded.rows - piece.start for piece in segments]
    return rows[: 1 + int(np.count_nonzero((rows[1:] <= left).all(axis=1)))]


def drafts(
    layout: SlotLayout, segments: Sequence[RowSlice], ahead: NDArray[np.int64], *, epoch: int, step: int
) -> Iterator[Draft]:
    """The batches of `step` and the next ones, measured, as `rows_ahead` says. segments: of the step."""
    first = draft(layout, segments, epoch=epoch, step=step)
    yield first
    if len(ahead) == 2:
        return
    rows = (ahead + [piece.start for piece in segments]).tolist()
    later = [
        [
            RowSlice(encoded=piece.encoded, start=start, stop=stop)
            for piece, start, stop in zip(segments, starts, stops, strict=True)
        ]
        for starts, stops in pairwise(rows[1:])
    ]
    if layout.extra or len(layout.parts) > 1:
        for number, pieces in enumerate(later, 1):
            yield draft(layout, pieces, epoch=epoch, step=step + number)
        return
    values = _list_values(layout, segments, ahead)
    for number, pieces in enumerate(later, 1):
        own = values[number] if values else ()
        place = layout.place(first.header.rows, own, (), 0) if values else first.placement
        header = SlotHeader(epoch, step + number, first.header.rows, place.nbytes, 0, own, (), ())
        yield Draft(slices=pieces, header=header, placement=place, ipc=None)


def _list_values(
    layout: SlotLayout, segments: Sequence[RowSlice], ahead: NDArray[np.int64]
) -> Sequence[tuple[int, ...]]:
    if not layout.sparse:
        return ()
    counts = np.zeros((len(layout.sparse), len(ahead) - 1), np.int64)
    for piece, rows in zip(segments, ahead.T, strict=True):
        for own, index in enumerate(layout.parts[0].sparse):
            counts[index] += np.diff(piece.encoded.offsets[own][piece.start + rows])
    return [tuple(each) for each in counts.T.tolist()]


def _padding(part: Rows, row: int, times: int) -> RowSlice:
    one = part.rows_at(row, row + 1) if isinstance(part, ShuffledRows) else slice_rows(part, row, row + 1)
    repeated = take([one], np.zeros(times, dtype=np.int64))
    return RowSlice(encoded=repeated, start=0, stop=times, valid=False, repeats=(part, row))
