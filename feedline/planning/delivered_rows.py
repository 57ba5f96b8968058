"""Find the rows that an epoch has delivered before a step, from its schedule.

Runs where a rebase is planned. Pure. A lane has delivered the first rows of its part of the order: whole blocks, whose
permutation does not matter, and the first rows of the block that the step divides, whose permutation does.
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
    """The delivered rows of an epoch. `splits`: bool [rows of the split], where it delivered any; `rows`: how many."""

    splits: dict[int, Bools] = field(default_factory=dict)
    rows: int = 0


def find_delivered_rows(
    schedule: Schedule, step: int, order: Callable[[Block], NDArray[np.int64] | None]
) -> DeliveredRows:
    """The rows of the steps before `step`. `order`: the permutation of a block's rows; None where there is none."""
    found = DeliveredRows()
    for lane in range(schedule.lanes):
        start, stop = schedule.lane_bounds(lane)
        end = min(start + max(step - schedule.first_step, 0) * schedule.batch_size, stop)
        if end == start:
            continue
        found.rows += end - start
        borders = schedule.block_starts(lane)
        index = int(np.searchsorted(borders, end, side="right")) - 1
        whole = int(borders[min(index, len(borders) - 1)])
        for piece in schedule.pieces(start, whole) if whole > start else ():
            _mask(found, schedule, piece)[piece.start : piece.stop] = True
        if whole < end:
            _divide(found, schedule, _block(schedule, lane, index), end - whole, order)
    return found


def _block(schedule: Schedule, lane: int, index: int) -> Block:
    return next(block for block in schedule.blocks(lane, everything=True) if block.index == index)


def _divide(
    found: DeliveredRows,
    schedule: Schedule,
    block: Block,
    count: int,
    order: Callable[[Block], NDArray[np.int64] | None],
) -> None:
    """The first `count` rows of a block."""
    rows = order(block)
    taken = np.zeros(block.rows, np.bool_)
    taken[slice(count) if rows is None else rows[:count]] = True
    first = 0
    for piece in block.pieces:
        size = piece.stop - piece.start
        _mask(found, schedule, piece)[piece.start : piece.stop] |= taken[first : first + size]
        first += size


def _mask(found: DeliveredRows, schedule: Schedule, piece: Piece) -> Bools:
    if piece.split not in found.splits:
        found.splits[piece.split] = np.zeros(int(schedule.split_rows[piece.split]), np.bool_)
    return found.splits[piece.split]
