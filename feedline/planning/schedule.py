"""Schedule the rows that each rank sees in each step, before the first row is read.

Pure: no I/O, no clock; all randomness comes from the arguments. Every answer is arithmetic on prefix sums.

1. The splits' selected rows are laid end to end in the epoch's order: N rows.
2. Lane i holds rows floor(i*N/L) .. floor((i+1)*N/L)-1 of the order.
3. A lane is cut into blocks: consecutive pieces of splits, as many as reach `block_rows`, permuted within the block.
4. With `window_rows`, a lane draws its rows in turn from the blocks that hold about so many (`strands`); without, from
   one block after another.
5. Step s of a lane holds the rows s*B .. (s+1)*B-1 that it draws; the tail policy decides about the last ones.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from feedline.blocks.permutation import permutation, random_words
from feedline.blocks.request import BucketRows, StepShares
from feedline.dataclass import dataclass
from feedline.errors import NoStepError, PlanError
from feedline.planning.interleave import Int64s, Strands, deal_blocks, step_shares

Tail = Literal["drop", "pad", "partial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows [start, stop) of the selected rows of one split."""

    split: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The unit of work: the rows at order positions [start, start + rows), all of one lane. shares: of a schedule with
    `shares`, the rows that each step gets. buckets: with buckets, its rows of each; its pieces may have other rows."""

    lane: int
    index: int
    start: int
    rows: int
    pieces: tuple[Piece, ...]
    first_step: int
    last_step: int
    shares: StepShares | None = None
    buckets: BucketRows | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A lane cut into blocks and strands.

    start, stop: its order positions; a lane without rows (fewer rows than lanes) borrows a neighbouring one, which only
    serves as padding. borders: int64 [blocks + 1], order positions at which its blocks start, and where the last one
    stops. first_rows, last_rows: int64 [blocks], which rows of the lane the first and the last row of a block are.
    """

    start: int
    stop: int
    borders: Int64s
    strands: Strands
    first_rows: Int64s
    last_rows: Int64s

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def last_block(self) -> int:
        """The block that holds the lane's last row, as its own last."""
        return int(np.argmax(self.last_rows))

    def block_rows(self, block: int) -> int:
        return int(self.borders[block + 1] - self.borders[block])


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One epoch's schedule.

    split_rows: int64 [splits], the selected rows per split (a split without any is never read). block_rows: the number
    of rows at which a block ends. window_rows: the rows of the blocks from which a lane draws in turn (default: 0, one
    block after another). shuffle: whether the splits are permuted. shares: whether blocks have their `shares`.
    cut_splits: whether a block ends within a split of more than `block_rows` rows (default: only where one ends).

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
    window_rows: int = 0
    shares: bool = False
    cut_splits: bool = False

    def __post_init__(self) -> None:
        if self.first_step:
            return
        if self.rows == 0:
            raise NoStepError("the plan has no rows: the table is empty or the filter keeps none. Check source.where")
        if self.steps == 0:
            raise NoStepError(
                f"the plan has fewer rows than one global step: got {self.rows:,} rows, expected at least "
                f"{self.lanes * self.batch_size:,} ({self.lanes} lanes x batch size {self.batch_size:,}) under "
                f"tail: drop. Lower batch.size, or use tail: pad or partial"
            )

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The splits that hold rows, in the epoch's order."""
        splits = np.flatnonzero(self.split_rows)
        if not self.shuffle:
            return splits
        order = permutation(len(splits), "splits", self.seed, self.epoch, *self.salt)
        return splits[spread(order, self.split_rows[splits], self.window_rows) if self.window_rows else order]

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
        # 10 rows in 3 lanes: [0, 3), [3, 6), [6, 10)
        return lane * self.rows // self.lanes, (lane + 1) * self.rows // self.lanes

    def block_starts(self, lane: int) -> Int64s:
        """int64 [blocks + 1]: order positions at which the lane's blocks start, and where the last one stops."""
        start, stop = self.lane_bounds(lane)
        if start == stop:
            neighbour = max(start - 1, 0)
            return np.array([neighbour, neighbour + 1], dtype=np.int64)
        # A block ends where a split does: for each split's first row in the lane, where a block from there would end.
        first, last = np.searchsorted(self.starts, [start, stop])
        starts = np.concatenate(([start], self.starts[first:last], [stop]))
        if self.cut_splits:
            starts = _with_cuts(starts, self.block_rows)
        ends = np.searchsorted(starts, starts + self.block_rows).tolist()
        borders = [0]
        while borders[-1] < len(starts) - 1:
            borders.append(min(ends[borders[-1]], len(starts) - 1))
        return starts[borders]

    @cached_property
    def _lanes(self) -> dict[int, Lane]:
        return {}

    def lane(self, lane: int) -> Lane:
        """A lane's blocks and strands, kept from the first call on."""
        if lane not in self._lanes:
            start, stop = self.lane_bounds(lane)
            borders = self.block_starts(lane)
            rows = np.diff(borders)
            strands = deal_blocks(rows, self.window_rows)
            strand, first = strands.places
            self._lanes[lane] = Lane(
                start=start,
                stop=stop,
                borders=borders,
                strands=strands,
                first_rows=strands.lane_rows(strand, first),
                last_rows=strands.lane_rows(strand, first + rows - 1),
            )
        return self._lanes[lane]

    def open_blocks(self, lanes: range) -> int:
        """Upper bound of blocks that stay open across a step of these lanes."""
        return sum(len(self.lane(lane).strands) for lane in lanes)

    def blocks_per_step(self, lanes: range) -> float:
        """The blocks that a step of these lanes uses up, on average."""
        return sum(len(self.lane(lane).borders) - 1 for lane in lanes) / max(1, self.steps)

    def drawn(self, lane: int, step: int, most: int) -> Int64s:
        """int64 [n + 1, open strands]: the rows that the strands open at a step hand out from there on, before each
        of n steps and after the last one. n: as many of `most` steps as no strand opens or ends in."""
        first = (step - self.first_step) * self.batch_size
        return self.lane(lane).strands.drawn(first, self.batch_size, min(most, self.steps - step))

    def blocks(self, lane: int, *, first_step: int = 0, everything: bool = False) -> Iterator[Block]:
        """The blocks that hold the lane's rows of steps >= first_step, in order; with `everything`, all its blocks."""
        if not self.rows:
            return  # a rebased epoch may have no rows left
        every = range(len(self.lane(lane).borders) - 1)
        for index in every if everything else self.block_indices(lane, first_step=first_step):
            yield self.block(lane, index)

    def block_indices(self, lane: int, *, first_step: int = 0) -> list[int]:
        """The indices of the blocks that `blocks` yields."""
        if not self.rows:
            return []
        place = self.lane(lane)
        begins = self.first_step + place.first_rows // self.batch_size
        ends = self.first_step + place.last_rows // self.batch_size
        if self.tail != "drop":
            begins[place.last_block], ends[place.last_block] = self._steps_of(lane, place.last_block)
        needed: list[int] = np.flatnonzero((ends >= first_step) & (begins < self.steps)).tolist()
        return needed

    def block(self, lane: int, index: int) -> Block:
        borders = self.lane(lane).borders
        first, end = int(borders[index]), int(borders[index + 1])
        begins, ends = self._steps_of(lane, index)
        return Block(
            lane=lane,
            index=index,
            start=first,
            rows=end - first,
            pieces=self.pieces(first, end),
            first_step=begins,
            last_step=min(ends, self.steps - 1),
            shares=self._shares(lane, index) if self.shares else None,
        )

    @cached_property
    def phase(self) -> int:
        """The phase of balanced blocks' shares, the same in all lanes: which steps get the longest rows of a block."""
        return int(random_words(1, "phase", self.seed, self.epoch, *self.salt)[0])

    def _shares(self, lane: int, index: int) -> StepShares:
        place = self.lane(lane)
        shares = step_shares(place.strands, index, place.block_rows(index), self.batch_size, phase=self.phase)
        return replace(shares, first_step=self.first_step + shares.first_step)

    def _steps_of(self, lane: int, index: int) -> tuple[int, int]:
        """The first and the last step that draw from a block; with `tail: drop` there may be none of that number."""
        place = self.lane(lane)
        begins = self.first_step + int(place.first_rows[index]) // self.batch_size
        ends = self.first_step + int(place.last_rows[index]) // self.batch_size
        if self.tail != "drop" and index == place.last_block:
            ends = self.steps - 1  # the lane's last row may still be needed as padding
            if not place.rows:
                begins = self.steps - 1
        return begins, ends

    def blocks_of(self, lanes: range, *, first_step: int = 0) -> Iterator[Block]:
        """The blocks of several lanes, in the order in which steps need them."""
        streams = (self.blocks(lane, first_step=first_step) for lane in lanes)
        return heapq.merge(*streams, key=lambda block: (block.first_step, block.lane, block.index))

    def cuts(self, lane: int, step: int) -> tuple[Cut, ...]:
        """The lane's share of a step: rows of its blocks, strand after strand, then padding."""
        if not self.first_step <= step < self.steps:
            raise PlanError(f"step is out of range: got {step}, expected {self.first_step} to {self.steps - 1}")
        place = self.lane(lane)
        own = step - self.first_step
        first, stop = min(own * self.batch_size, place.rows), min((own + 1) * self.batch_size, place.rows)
        cuts = list(cuts_of(lane, place.strands, first, stop)) if first < stop else []
        padding = self.batch_size - (stop - first) if self.tail == "pad" else int(first == stop)
        if padding > 0:
            row = place.block_rows(place.last_block) - 1
            cuts.append(Cut(lane=lane, block=place.last_block, start=row, stop=row, padding=padding))
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


def _with_cuts(starts: Int64s, block_rows: int) -> Int64s:
    """Ascending positions, with others between those that are further apart than `block_rows`, at equal distances."""
    # positions [0, 10, 12], blocks of 4 rows -> [0, 3, 6, 10, 12]
    parts = np.maximum(1, -(-np.diff(starts) // block_rows))
    firsts = np.repeat(np.cumsum(parts) - parts, parts)
    number = np.arange(len(firsts)) - firsts
    width = np.repeat(np.diff(starts), parts)
    return np.append(np.repeat(starts[:-1], parts) + number * width // np.repeat(parts, parts), starts[-1])


def cuts_of(lane: int, strands: Strands, first: int, stop: int) -> Iterator[Cut]:
    """The rows of blocks that are rows [first, stop) of the lane."""
    begins, ends = strands.positions(first).tolist(), strands.positions(stop).tolist()
    for blocks, starts, begin, end in zip(strands.blocks, strands.starts, begins, ends, strict=True):
        position = begin
        while position < end:
            block = bisect_right(starts, position) - 1  # numpy's search would give the interpreter's lock away
            start, until = int(starts[block]), min(int(starts[block + 1]), end)
            yield Cut(lane=lane, block=int(blocks[block]), start=position - start, stop=until - start)
            position = until


def spread(order: Int64s, split_rows: Int64s, window_rows: int) -> Int64s:
    """Change a permutation of splits so that any `window_rows` rows in a row come from all regions of the table.

    The table is cut into as many regions of equal rows as splits make a window, which take turns. order, split_rows (of
    each split in the table's order): int64 [splits].
    """
    # six splits in the order 1 0 3 2 5 4, two to a window, so two regions -> 1 3 0 5 2 4: neighbours are of either half
    total = int(split_rows.sum())
    regions = max(1, min(len(order), window_rows * len(order) // max(total, 1)))
    middle = 2 * np.cumsum(split_rows) - split_rows  # twice the row in the middle of each split
    _, region, counts = np.unique(
        (middle * regions // max(2 * total, 1))[order], return_inverse=True, return_counts=True
    )
    grouped = np.argsort(region, kind="stable")
    firsts = np.cumsum(counts) - counts
    place, turn = np.empty(len(order), np.int64), np.empty(len(counts), np.int64)
    place[grouped] = np.arange(len(order)) - np.repeat(firsts, counts)
    turn[np.argsort(grouped[firsts], kind="stable")] = np.arange(len(counts))
    time = (place * len(counts) + turn[region]) / (len(counts) * counts[region])
    return order[np.argsort(time, kind="stable")]


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
