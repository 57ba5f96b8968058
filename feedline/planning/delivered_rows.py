"""Find the rows that an epoch has delivered before a step, from its schedule.

Runs in: the process that plans a rebase. Pure. A lane has delivered the first rows of its part of the order: whole
blocks, whose permutation does not matter, and the first rows of the block that the step divides, whose permutation
does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from feedline.planning.schedule import Block, Piece, Schedule

Bools = NDArray[np.bool_]


@dataclass(slots=True)
class DeliveredRows:
    """The delivered rows of an epoch. `splits`: bool [rows of the split], for splits with any; `rows`: their count."""

    splits: dict[int, Bools] = field(default_factory=dict)
    rows: int = 0


def find_delivered_rows(
    schedule: Schedule, step: int, order: Callable[[Block], NDArray[np.int64] | None]
) -> DeliveredRows:
    """The rows of the steps before `step`. `order` returns the permutation of a block's rows, None without one."""
    delivered = DeliveredRows()
    for lane in range(schedule.lanes):
        start, stop = schedule.lane_bounds(lane)
        end = min(start + max(step - schedule.first_step, 0) * schedule.batch_size, stop)
        if end == start:
            continue
        delivered.rows += end - start
        borders = schedule.block_starts(lane)
        index = int(np.searchsorted(borders, end, side="right")) - 1
        whole = int(borders[min(index, len(borders) - 1)])
        for piece in schedule.pieces(start, whole) if whole > start else ():
            _mask(delivered, schedule, piece)[piece.start : piece.stop] = True
        if whole < end:
            _mark_first_rows(delivered, schedule, _block(schedule, lane, index), end - whole, order)
    return delivered


def _block(schedule: Schedule, lane: int, index: int) -> Block:
    return next(block for block in schedule.blocks(lane, everything=True) if block.index == index)


def _mark_first_rows(
    delivered: DeliveredRows,
    schedule: Schedule,
    block: Block,
    count: int,
    order: Callable[[Block], NDArray[np.int64] | None],
) -> None:
    """Mark the first `count` rows of a block as delivered."""
    rows = order(block)
    marks = np.zeros(block.rows, np.bool_)
    marks[slice(count) if rows is None else rows[:count]] = True
    first = 0
    for piece in block.pieces:
        size = piece.stop - piece.start
        _mask(delivered, schedule, piece)[piece.start : piece.stop] |= marks[first : first + size]
        first += size


def _mask(delivered: DeliveredRows, schedule: Schedule, piece: Piece) -> Bools:
    if piece.split not in delivered.splits:
        delivered.splits[piece.split] = np.zeros(int(schedule.split_rows[piece.split]), np.bool_)
    return delivered.splits[piece.split]
