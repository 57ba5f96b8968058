"""Deal the blocks of a lane to strands, from which its steps draw rows in turn.

Pure. A lane has k strands, each a sequence of whole blocks. In a tick every open strand hands out its next row, strand
after strand. Strand j opens at tick j * m / k, where m is the mean number of rows of a block, and each block, in the
lane's order, joins the strand that ends first: blocks start at staggered times. Where the beginning and the end of the
lane, with fewer open blocks, would be much of it, strands open faster. The rest follows by arithmetic from the ticks at
which strands open and end: docs/decisions/0017-a-lane-draws-from-many-blocks.md.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from feedline.blocks.request import StepShares
from feedline.dataclass import dataclass

Int64s = NDArray[np.int64]

# Blocks per strand below which strands open faster: their opening then takes a 32nd of the lane's rows.
_FEWEST_ROUNDS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Strands:
    """The strands of a lane.

    blocks: per strand, the indices of its blocks; starts: per strand, int64 [blocks + 1], its rows before each block.
    opens: int64 [k], the tick at which each strand opens. `_events`: int64 [e], the ticks at which a strand opens or
    ends; `_before`: int64 [e], the lane's rows before each of them; `_open`: bool [e, k], the strands open from it on.
    """

    blocks: tuple[Int64s, ...]
    starts: tuple[Int64s, ...]
    opens: Int64s
    rows: Int64s
    _events: Int64s
    _before: Int64s
    _open: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.blocks)

    def positions(self, row: int) -> Int64s:
        """int64 [k]: how many rows of each strand are among the lane's first `row` rows."""
        if len(self) == 1:
            return np.array([row], np.int64)
        # strands of 3 rows that open at ticks 0 and 2: of the first 3 rows, 3 and 0; of the first 4, 3 and 1
        event = bisect_right(self._before, row) - 1
        if event == len(self._events) - 1:
            return self.rows
        is_open = self._open[event]
        ticks, rest = divmod(row - int(self._before[event]), int(np.count_nonzero(is_open)))
        age = self._events[event] + ticks - self.opens
        found: Int64s = np.minimum(np.maximum(age, 0), self.rows)  # a third of what np.clip takes of so few
        found[np.flatnonzero(is_open)[:rest]] += 1
        return found

    def strand_rows(self, strand: int, rows: Int64s) -> Int64s:
        """int64 [n]: how many rows of a strand are among the lane's first `rows` rows, for each of n of these."""
        event = np.searchsorted(self._before, rows, side="right") - 1
        is_open = self._open[event]
        ticks, rest = np.divmod(rows - self._before[event], np.maximum(np.count_nonzero(is_open, axis=1), 1))
        age = self._events[event] + ticks - self.opens[strand]
        turn = np.count_nonzero(is_open[:, :strand], axis=1)
        found: Int64s = np.clip(age, 0, self.rows[strand]) + (is_open[:, strand] & (turn < rest))
        return np.where(event == len(self._events) - 1, self.rows[strand], found)

    @property
    def places(self) -> tuple[Int64s, Int64s]:
        """int64 [blocks]: the strand of each block; and the rows of the strand before it."""
        blocks = sum(len(each) for each in self.blocks)
        strand, before = np.empty(blocks, np.int64), np.empty(blocks, np.int64)
        for each, (own, starts) in enumerate(zip(self.blocks, self.starts, strict=True)):
            strand[own], before[own] = each, starts[:-1]
        return strand, before

    def of_part(self, part_rows: Int64s, block_rows: Int64s) -> Strands:
        """The same strands of a part of each block's rows: they open when about as large a part has been handed out.
        part_rows, block_rows: int64 [blocks]."""
        total = max(1, int(block_rows.sum()))
        return _strands(self.blocks, part_rows, self.opens * int(part_rows.sum()) // total)

    def drawn(self, row: int, size: int, steps: int) -> Int64s:
        """int64 [n + 1, open strands]: the rows that each strand which is open at a row hands out from there on, before
        each of n steps of `size` rows and after the last one. n: as many of the steps as no strand opens or ends in."""
        event = bisect_right(self._before, row) - 1
        if event == len(self._events) - 1:
            return np.zeros((1, 0), np.int64)
        steps = min(steps, (int(self._before[event + 1]) - row) // size)
        strands = int(np.count_nonzero(self._open[event]))
        ticks, rest = np.divmod(row - self._before[event] + np.arange(steps + 1) * size, strands)
        found = ticks[:, None] + (np.arange(strands) < rest[:, None])
        since: Int64s = found - found[0]
        return since

    def lane_rows(self, strand: Int64s, row: Int64s) -> Int64s:
        """The rows of the lane that some rows of strands are. strand, row: int64 [n]."""
        tick = self.opens[strand] + row
        age = tick[:, None] - self.opens
        earlier = np.arange(len(self)) < strand[:, None]
        found: Int64s = np.clip(age, 0, self.rows).sum(axis=1)
        found += np.count_nonzero(earlier & (age >= 0) & (age < self.rows), axis=1)
        return found


def deal_blocks(block_rows: Int64s, window_rows: int) -> Strands:
    """Deal blocks of some rows each, in order, to as many strands as hold about `window_rows` rows together."""
    blocks, total = len(block_rows), int(block_rows.sum())
    strands = max(1, min(blocks, (2 * window_rows * blocks + total) // (2 * total)))
    opens = np.arange(strands) * total // (strands * max(blocks, _FEWEST_ROUNDS * strands))
    dealt: list[list[int]] = [[] for _ in range(strands)]
    free = [(tick, strand) for strand, tick in enumerate(opens.tolist())]
    for block, rows in enumerate(block_rows.tolist()):
        tick, strand = free[0]
        dealt[strand].append(block)
        heapq.heapreplace(free, (tick + rows, strand))
    members = tuple(np.array(each, np.int64) for each in dealt if each)
    opens = opens[[strand for strand, each in enumerate(dealt) if each]]
    return _strands(members, block_rows, opens)


def _strands(members: tuple[Int64s, ...], block_rows: Int64s, opens: Int64s) -> Strands:
    # strands of 3 rows that open at ticks 0 and 2: events at 0, 2, 3, 5, before which the lane has 0, 2, 4, 6 rows
    starts = tuple(np.concatenate(([0], np.cumsum(block_rows[each]))) for each in members)
    rows = np.array([each[-1] for each in starts], np.int64)
    events = np.unique(np.concatenate([opens, opens + rows]))
    age = events[:, None] - opens
    return Strands(
        blocks=members,
        starts=starts,
        opens=opens,
        rows=rows,
        _events=events,
        _before=np.clip(age, 0, rows).sum(axis=1),
        _open=(age >= 0) & (age < rows),
    )


def step_shares(strands: Strands, block: int, rows: int, size: int, *, phase: int) -> StepShares:
    """How many rows of a block, which has `rows`, each step of `size` rows of its lane gets; those that no step gets
    come as the last ones. phase: of the first strand, from 0 to 2^64 - 1."""
    # 4 blocks of 4 rows, dealt to 2 strands, and steps of 4: blocks 0 and 1 give 2 rows to steps 0 and 1 each
    every, before = strands.places
    strand, start = int(every[block]), int(before[block])
    phase = (phase + strand * 2**64 // len(strands)) % 2**64
    if not rows:
        return StepShares(first_step=0, rows=b"", phase=phase)
    first, last = (strands.lane_rows(every[[block]], np.array([start + row])) // size for row in (0, rows - 1))
    ends = np.minimum(np.arange(int(first[0]), int(last[0]) + 2) * size, int(strands.rows.sum()))
    found = np.clip(strands.strand_rows(strand, ends) - start, 0, rows)
    return StepShares(first_step=int(first[0]), rows=np.diff(found).astype("<u4").tobytes(), phase=phase)
