"""Schedule the rows that each rank sees in each step, before the first row is read.

Runs in: the feeder, the CLI, `Pipeline`. Pure: no I/O, no clock; all randomness comes from the arguments.

1. The splits' selected rows are laid end to end in the epoch's order: N rows.
2. Lane i holds rows floor(i*N/L) .. floor((i+1)*N/L)-1 of the order.
3. A lane is cut into blocks: consecutive pieces of splits, as many as reach `block_rows`. Rows may be permuted within a
   block, which changes nothing else.
4. Step s of a lane holds its rows s*B .. (s+1)*B-1; the tail policy decides about the last ones.

Every answer (the blocks of a step, the number of steps, the rows dropped) is arithmetic on prefix sums, so that
resuming seeks and never replays.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from feedline.blocks.permutation import permutation
from feedline.errors import PlanError

# Part of every plan's fingerprint: raised by any change that moves a row to another step or position.
PLAN_VERSION = 1

Tail = Literal["drop", "pad", "partial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows [start, stop) of the selected rows of one split."""

    split: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The unit of work: the rows at order positions [start, start + rows), all of one lane."""

    lane: int
    index: int
    start: int
    rows: int
    pieces: tuple[Piece, ...]
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Rows [start, stop) of a lane's block in a step; with `padding` > 0, its row `start` that many times."""

    lane: int
    block: int
    start: int
    stop: int
    padding: int = 0

    @property
    def rows(self) -> int:
        return self.padding or self.stop - self.start


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One epoch's schedule.

    split_rows: int64 [splits], the selected rows per split (a split without any is never read). block_rows: the number
    of rows at which a block ends. shuffle: whether the splits are permuted.

    The rest of an epoch (`feedline rebase`) is a schedule, too: of the remaining rows, with steps counted from
    `first_step`, and permutations of its own, keyed by `salt`. It may be empty.
    """

    split_rows: NDArray[np.int64]
    lanes: int
    batch_size: int
    tail: Tail
    block_rows: int
    shuffle: bool
    seed: int
    epoch: int
    first_step: int = 0
    salt: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.first_step:
            return
        if self.rows == 0:
            raise PlanError("the plan has no rows: the table is empty or the filter keeps none. Check source.where")
        if self.steps == 0:
            raise PlanError(
                f"the plan has fewer rows than one global step: got {self.rows:,} rows, expected at least "
                f"{self.lanes * self.batch_size:,} ({self.lanes} lanes x batch size {self.batch_size:,}) under "
                f"tail: drop. Lower batch.size, or use tail: pad or partial"
            )

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The splits that hold rows, in the epoch's order."""
        splits = np.flatnonzero(self.split_rows)
        return splits[permutation(len(splits), "splits", self.seed, self.epoch, *self.salt)] if self.shuffle else splits

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Order position of each split's first row; the last entry is N."""
        return np.concatenate(([0], np.cumsum(self.split_rows[self.order], dtype=np.int64)))

    @cached_property
    def rows(self) -> int:
        """N: rows of the whole order."""
        return int(np.sum(self.split_rows, dtype=np.int64))

    @cached_property
    def steps(self) -> int:
        """Steps of the epoch, the same for every rank, including those before `first_step`."""
        shortest, longest = self.rows // self.lanes, -(-self.rows // self.lanes)
        own = shortest // self.batch_size if self.tail == "drop" else -(-longest // self.batch_size)
        return self.first_step + own

    @property
    def rows_dropped(self) -> int:
        """Rows of the order that are in no step (tail: drop)."""
        own = self.steps - self.first_step
        return self.rows - own * self.batch_size * self.lanes if self.tail == "drop" else 0

    def has_rows(self, lane: int) -> bool:
        """Whether a lane has rows of its own; one without any borrows a row as padding."""
        start, stop = self.lane_bounds(lane)
        return start < stop

    def lane_bounds(self, lane: int) -> tuple[int, int]:
        """Order positions [start, stop) of a lane."""
        return lane * self.rows // self.lanes, (lane + 1) * self.rows // self.lanes

    def block_starts(self, lane: int) -> NDArray[np.int64]:
        """int64 [blocks + 1]: order positions at which the lane's blocks start, and where the last one stops.

        A lane without rows (fewer rows than lanes) borrows one neighbouring row, which only serves as padding.
        """
        start, stop = self.lane_bounds(lane)
        if start == stop:
            neighbour = max(start - 1, 0)
            return np.array([neighbour, neighbour + 1], dtype=np.int64)
        borders = [start]
        while borders[-1] < stop:
            split = int(np.searchsorted(self.starts, borders[-1] + self.block_rows))
            borders.append(min(int(self.starts[min(split, len(self.starts) - 1)]), stop))
        return np.array(borders, dtype=np.int64)

    def blocks(self, lane: int, *, first_step: int = 0, everything: bool = False) -> Iterator[Block]:
        """The blocks that hold the lane's rows of steps >= first_step, in order; with `everything`, all its blocks."""
        if not self.rows:
            return  # a rebased epoch may have no rows left
        start, stop = self.lane_bounds(lane)
        borders = self.block_starts(lane)
        last = len(borders) - 2
        for index in range(last + 1):
            first, end = int(borders[index]), int(borders[index + 1])
            begins = self.first_step + max(first - start, 0) // self.batch_size
            ends = self.first_step + max(end - 1 - start, 0) // self.batch_size
            if index == last and self.tail != "drop":
                ends = self.steps - 1  # the last row may still be needed as padding
                if start == stop:
                    begins = self.steps - 1
            if everything or (ends >= first_step and begins < self.steps):
                yield Block(
                    lane=lane,
                    index=index,
                    start=first,
                    rows=end - first,
                    pieces=self.pieces(first, end),
                    first_step=begins,
                    last_step=min(ends, self.steps - 1),
                )

    def blocks_of(self, lanes: range, *, first_step: int = 0) -> Iterator[Block]:
        """The blocks of several lanes, in the order in which steps need them."""
        streams = (self.blocks(lane, first_step=first_step) for lane in lanes)
        return heapq.merge(*streams, key=lambda block: (block.first_step, block.lane, block.index))

    def cuts(self, lane: int, step: int, borders: NDArray[np.int64] | None = None) -> tuple[Cut, ...]:
        """The lane's share of a step: rows of its blocks, then padding (`borders`: the lane's block_starts)."""
        if not self.first_step <= step < self.steps:
            raise PlanError(f"step is out of range: got {step}, expected {self.first_step} to {self.steps - 1}")
        borders = self.block_starts(lane) if borders is None else borders
        start, stop = self.lane_bounds(lane)
        own = step - self.first_step
        position, end = start + own * self.batch_size, min(start + (own + 1) * self.batch_size, stop)
        cuts: list[Cut] = []
        rows = 0
        while position < end:
            block = int(np.searchsorted(borders, position, side="right")) - 1
            first, until = int(borders[block]), min(int(borders[block + 1]), end)
            cuts.append(Cut(lane=lane, block=block, start=position - first, stop=until - first))
            rows += until - position
            position = until
        padding = self.batch_size - rows if self.tail == "pad" else int(rows == 0)
        if padding > 0:
            last = len(borders) - 2
            row = int(borders[last + 1] - borders[last]) - 1
            cuts.append(Cut(lane=lane, block=last, start=row, stop=row, padding=padding))
        return tuple(cuts)

    def pieces(self, start: int, stop: int) -> tuple[Piece, ...]:
        """The rows of splits at order positions [start, stop)."""
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        last = int(np.searchsorted(self.starts, stop, side="left"))
        pieces = []
        for position in range(first, last):
            begins, ends = int(self.starts[position]), int(self.starts[position + 1])
            piece = Piece(split=int(self.order[position]), start=max(start - begins, 0), stop=min(stop, ends) - begins)
            pieces.append(piece)
        return tuple(pieces)


def rank_lanes(lanes: int, rank: int, world_size: int) -> range:
    """The lanes that a rank reads."""
    if not 0 <= rank < world_size:
        raise PlanError(f"rank is out of range: got {rank}, expected 0 to {world_size - 1}")
    if lanes % world_size:
        divisors = [str(size) for size in range(1, lanes + 1) if lanes % size == 0]
        raise PlanError(
            f"world size does not divide the lanes: got {world_size} ranks for {lanes} lanes, expected one of "
            f"{', '.join(divisors)}. Set lanes (a multiple of every world size you plan) before the run's first start"
        )
    share = lanes // world_size
    return range(rank * share, (rank + 1) * share)
