"""Find the rows that an epoch has delivered before a step, from its schedule.

Runs in: the process that plans a rebase. Pure. Each strand of a lane has delivered its first rows: whole blocks, whose
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
    """The delivered rows of an epoch. `splits`: bool [rows of the split], for splits with any; `rows`: their count."""

    splits: dict[int, Bools] = field(default_factory=dict)
    rows: int = 0


def find_delivered_rows(
    schedule: Schedule, step: int, order: Callable[[Block], NDArray[np.int64] | None]
) -> DeliveredRows:
    """The rows of the steps before `step`. `order` returns the permutation of a block's rows, None without one."""
    delivered = DeliveredRows()
    for lane in range(schedule.lanes):
        place = schedule.lane(lane)
        end = min(max(step - schedule.first_step, 0) * schedule.batch_size, place.rows)
        delivered.rows += end
        if end == 0:
            continue
        strands = place.strands
        counts = strands.positions(end).tolist()
        for blocks, starts, count in zip(strands.blocks, strands.starts, counts, strict=True):
            whole = int(np.searchsorted(starts, count, side="right")) - 1
            for block in blocks[:whole].tolist():
                for piece in schedule.pieces(int(place.borders[block]), int(place.borders[block + 1])):
                    _mask(delivered, schedule, piece)[piece.start : piece.stop] = True
            if starts[whole] < count:
                divided = schedule.block(lane, int(blocks[whole]))
                _mark_first_rows(delivered, schedule, divided, count - int(starts[whole]), order)
    return delivered


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
