"""Schedule steps of rows of about the same length: each step draws from one bucket, the same on every rank.

Pure, as `schedule`. Rows belong to the bucket of their list's length.

1. The splits are in the epoch's order, as without buckets. Bucket k has N_k rows in it, and lane i those from
   floor(i*N_k/L) to floor((i+1)*N_k/L)-1.
2. A lane's splits are cut into blocks, which hold its rows of all buckets and are dealt to strands, as without buckets.
   A split at the border of two lanes is read for both; no other split is read twice.
3. In each bucket a lane draws in turn from the strands' rows of that bucket: B_k rows a step, in as many steps as every
   lane has whole ones.
4. The j-th of a bucket's S steps comes at a random moment of the j-th S-th of the epoch: all buckets are used up
   evenly, and no block is held for long: docs/decisions/0073-lanes-of-equal-length.md.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from feedline.blocks.permutation import random_words
from feedline.blocks.request import BucketRows, StepShares
from feedline.dataclass import dataclass
from feedline.errors import NoStepError, PlanError
from feedline.planning.interleave import Int64s, Strands, deal_blocks, step_shares
from feedline.planning.schedule import Block, Cut, Lane, Piece, Schedule, cuts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _BucketLane:
    """A lane cut into blocks. positions: int64 [splits], its splits as places in the epoch's order. first, rows: int64
    [splits, buckets], which rows of each are the lane's: of each bucket the first one's ordinal in the split, and their
    number. borders: int64 [blocks + 1], where blocks begin among the splits. block_rows: int64 [blocks, buckets].
    before: int64 [blocks, buckets], a block's rows of earlier buckets. strands: of each bucket. first_step, last_step:
    int64 [blocks], -1 for a block that no step draws from."""

    lane: Lane
    positions: Int64s
    first: Int64s
    rows: Int64s
    borders: Int64s
    block_rows: Int64s
    before: Int64s
    strands: tuple[Strands, ...]
    first_step: Int64s
    last_step: Int64s


@dataclass(frozen=True, kw_only=True)
class BucketSchedule(Schedule):
    """One epoch's schedule of buckets. group_rows: int64 [row groups, buckets], the selected rows of each.
    split_groups: int64 [splits, 2], the first row group of each split, and that after its last one. sizes: of each
    bucket, the rows of a lane and step; `batch_size` is the largest."""

    group_rows: NDArray[np.int64]
    split_groups: NDArray[np.int64]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.rows == 0:
            raise NoStepError("the plan has no rows: the table is empty or the filter keeps none. Check source.where")
        if self.steps == 0:
            counts = ", ".join(
                f"{rows:,} of {self.lanes * size:,}"
                for rows, size in zip(self._totals.tolist(), self.sizes, strict=True)
            )
            raise NoStepError(
                f"no bucket has the rows of one global step: got {counts} in the buckets, with {self.lanes} lanes. "
                f"Lower batch.max_tokens, or name fewer buckets"
            )

    @cached_property
    def bucket_rows(self) -> Int64s:
        """int64 [splits, buckets]: the selected rows of each."""
        ends = np.concatenate((np.zeros((1, len(self.sizes)), np.int64), np.cumsum(self.group_rows, axis=0)))
        rows: Int64s = ends[self.split_groups[:, 1]] - ends[self.split_groups[:, 0]]
        return rows

    # -- steps ----------------------------------------------------------------------------------------------------

    @cached_property
    def _totals(self) -> Int64s:
        """int64 [buckets]: the rows of each bucket."""
        totals: Int64s = self.bucket_rows.sum(axis=0)
        return totals

    @cached_property
    def bucket_steps(self) -> Int64s:
        """int64 [buckets]: the steps of each bucket."""
        steps: Int64s = self._totals // self.lanes // np.array(self.sizes)
        return steps

    @cached_property
    def steps(self) -> int:
        return int(self.bucket_steps.sum())

    @property
    def rows_dropped(self) -> int:
        return self.rows - int((self.bucket_steps * np.array(self.sizes)).sum()) * self.lanes

    @cached_property
    def step_buckets(self) -> Int64s:
        """int64 [steps]: the bucket of each step."""
        return self._sequence[0]

    @cached_property
    def _sequence(self) -> tuple[Int64s, Int64s, list[Int64s]]:
        """int64 [steps]: the bucket of each step, and which of the bucket's steps it is; and per bucket, its steps."""
        counts = self.bucket_steps
        bucket = np.repeat(np.arange(len(counts)), counts)
        turn = np.arange(self.steps) - np.repeat(np.cumsum(counts) - counts, counts)
        words = random_words(self.steps, "buckets", self.seed, self.epoch)
        chance = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        order = np.lexsort((bucket, (turn + chance) / counts[bucket]))
        bucket = bucket[order]
        return bucket, turn[order], [np.flatnonzero(bucket == each) for each in range(len(counts))]

    # -- lanes ----------------------------------------------------------------------------------------------------

    @cached_property
    def _bucket_starts(self) -> Int64s:
        """int64 [splits + 1, buckets]: a bucket's rows before each split of the order."""
        rows = self.bucket_rows[self.order]
        return np.concatenate((np.zeros((1, rows.shape[1]), np.int64), np.cumsum(rows, axis=0)))

    @cached_property
    def _bucket_lanes(self) -> dict[int, _BucketLane]:
        return {}

    def lane(self, lane: int) -> Lane:
        return self._bucket_lane(lane).lane

    def has_rows(self, lane: int) -> bool:
        return True

    def _bucket_lane(self, lane: int) -> _BucketLane:
        if lane not in self._bucket_lanes:
            self._bucket_lanes[lane] = self._cut(lane)
        return self._bucket_lanes[lane]

    def _cut(self, lane: int) -> _BucketLane:
        starts, totals = self._bucket_starts, self._totals
        begin, end = lane * totals // self.lanes, (lane + 1) * totals // self.lanes
        low, high = np.clip(starts[:-1], begin, end), np.clip(starts[1:], begin, end)
        positions = np.flatnonzero((high > low).any(axis=1))
        first, rows = (low - starts[:-1])[positions], (high - low)[positions]
        borders = _block_borders(rows.sum(axis=1), self.block_rows)
        block_rows = np.add.reduceat(rows, borders[:-1], axis=0)
        whole = block_rows.sum(axis=1)
        strands = deal_blocks(whole, self.window_rows)
        of_buckets = tuple(strands.of_part(own, whole) for own in block_rows.T)
        before = int(begin.sum())
        ends = np.concatenate(([0], np.cumsum(whole)))
        first_step, last_step = self._steps_of_blocks(block_rows, of_buckets)
        strand, start = strands.places
        place = Lane(
            start=before,
            stop=before + int(ends[-1]),
            borders=before + ends,
            strands=strands,
            first_rows=strands.lane_rows(strand, start),
            last_rows=strands.lane_rows(strand, start + whole - 1),
        )
        return _BucketLane(
            lane=place,
            positions=positions,
            first=first,
            rows=rows,
            borders=borders,
            block_rows=block_rows,
            before=np.cumsum(block_rows, axis=1) - block_rows,
            strands=of_buckets,
            first_step=first_step,
            last_step=last_step,
        )

    def _steps_of_blocks(self, block_rows: Int64s, strands: tuple[Strands, ...]) -> tuple[Int64s, Int64s]:
        """int64 [blocks]: the first and the last step that draw from each; -1 where none does."""
        never = np.iinfo(np.int64).max
        firsts, lasts = np.full(len(block_rows), never), np.full(len(block_rows), -1)
        for bucket, own in enumerate(strands):
            steps, size = self._sequence[2][bucket], self.sizes[bucket]
            blocks = np.flatnonzero(block_rows[:, bucket])
            if not len(steps) or not len(blocks):
                continue
            strand, start = (each[blocks] for each in own.places)
            begins = own.lane_rows(strand, start) // size
            ends = own.lane_rows(strand, start + block_rows[blocks, bucket] - 1) // size
            drawn = begins < len(steps)
            blocks, begins, ends = blocks[drawn], begins[drawn], np.minimum(ends[drawn], len(steps) - 1)
            firsts[blocks] = np.minimum(firsts[blocks], steps[begins])
            lasts[blocks] = np.maximum(lasts[blocks], steps[ends])
        return np.where(firsts == never, -1, firsts), lasts

    def readers(self) -> Int64s:
        """int64 [row groups]: how many lanes read each row group."""
        readers = np.zeros(len(self.group_rows), np.int64)
        for lane in range(self.lanes):
            place = self._bucket_lane(lane)
            splits = self.order[place.positions]
            partial = (place.rows < self.bucket_rows[splits]).any(axis=1)
            for first, stop in self.split_groups[splits[~partial]].tolist():
                readers[first:stop] += 1
            for index in np.flatnonzero(partial).tolist():
                first, stop, _ = self._needed_groups(int(splits[index]), place.first[index], place.rows[index])
                readers[first:stop] += 1
        return readers

    def _needed_groups(self, split: int, first: Int64s, rows: Int64s) -> tuple[int, int, Int64s]:
        """The row groups [start, stop) of a split that hold some rows of each bucket, and int64 [buckets], the rows of
        the split before them. first, rows: int64 [buckets], ordinals in the split and numbers."""
        begin, end = self.split_groups[split].tolist()
        counts = self.group_rows[begin:end]
        after = np.cumsum(counts, axis=0)
        before = after - counts
        needed = np.flatnonzero((np.minimum(after, first + rows) > np.maximum(before, first)).any(axis=1))
        low, high = int(needed[0]), int(needed[-1]) + 1
        return begin + low, begin + high, before[low]

    # -- blocks ---------------------------------------------------------------------------------------------------

    def open_blocks(self, lanes: range) -> int:
        """The most blocks of these lanes that are needed at once, but for those that a step begins."""
        changes = np.zeros(self.steps + 1, np.int64)
        for lane in lanes:
            place = self._bucket_lane(lane)
            drawn = place.first_step >= 0
            np.add.at(changes, place.first_step[drawn] + 1, 1)  # those that it begins come on top
            np.add.at(changes, np.maximum(place.last_step, place.first_step)[drawn] + 1, -1)
        return max(len(lanes), int(np.cumsum(changes).max()))

    def drawn(self, lane: int, step: int, most: int) -> Int64s:
        """No steps at once: the next one draws from other rows, as a rule."""
        return np.zeros((1, 0), np.int64)

    def block_indices(self, lane: int, *, first_step: int = 0) -> list[int]:
        """The indices of the blocks that steps from `first_step` on draw from, in the order in which they begin."""
        place = self._bucket_lane(lane)
        needed = np.flatnonzero((place.first_step >= 0) & (place.last_step >= first_step))
        indices: list[int] = needed[np.argsort(place.first_step[needed], kind="stable")].tolist()
        return indices

    def block(self, lane: int, index: int) -> Block:
        place = self._bucket_lane(lane)
        splits = slice(int(place.borders[index]), int(place.borders[index + 1]))
        split = self.order[place.positions[splits]]
        pieces = [Piece(split=each, start=0, stop=int(self.split_rows[each])) for each in split.tolist()]
        first, rows, parts = place.first[splits], place.rows[splits], []
        for piece in np.flatnonzero((rows < self.bucket_rows[split]).any(axis=1)).tolist():
            pieces[piece], ranges = self._part(int(split[piece]), first[piece], rows[piece])
            parts.append((piece, ranges))
        shares = self._bucket_shares(place, index) if self.shares else ()
        return Block(
            lane=lane,
            index=index,
            start=int(place.lane.borders[index]),
            rows=place.lane.block_rows(index),
            pieces=tuple(pieces),
            first_step=int(place.first_step[index]),
            last_step=int(place.last_step[index]),
            buckets=BucketRows(rows=tuple(place.block_rows[index].tolist()), parts=tuple(parts), shares=shares),
        )

    def _part(self, split: int, first: Int64s, rows: Int64s) -> tuple[Piece, tuple[tuple[int, int], ...]]:
        """The row groups of a split that hold some rows of each bucket, as a piece; and which rows of it these are:
        ordinals [start, stop) in each bucket."""
        start, stop, before = self._needed_groups(split, first, rows)
        whole = self.group_rows[start:stop].sum()
        own = np.maximum(first - before, 0)
        piece = Piece(split=split, start=int(before.sum()), stop=int(before.sum() + whole))
        return piece, tuple(zip(own.tolist(), (own + rows).tolist(), strict=True))

    def _bucket_shares(self, place: _BucketLane, index: int) -> tuple[StepShares, ...]:
        rows = place.block_rows[index].tolist()
        return tuple(
            step_shares(strands, index, own, size, phase=self.phase)
            for strands, own, size in zip(place.strands, rows, self.sizes, strict=True)
        )

    def cuts(self, lane: int, step: int) -> tuple[Cut, ...]:
        """The lane's share of a step: rows of one bucket of its blocks."""
        if not 0 <= step < self.steps:
            raise PlanError(f"step is out of range: got {step}, expected 0 to {self.steps - 1}")
        bucket, turn = int(self._sequence[0][step]), int(self._sequence[1][step])
        place, size = self._bucket_lane(lane), self.sizes[bucket]
        cuts = []
        for cut in cuts_of(lane, place.strands[bucket], turn * size, (turn + 1) * size):
            first = int(place.before[cut.block, bucket])
            cuts.append(Cut(lane=lane, block=cut.block, start=first + cut.start, stop=first + cut.stop))
        return tuple(cuts)


def _block_borders(rows: Int64s, block_rows: int) -> Int64s:
    """int64 [blocks + 1]: where blocks begin among splits of some rows each. block_rows: at which a block ends."""
    # splits of [3, 3, 3] rows, blocks of 5 -> [0, 2, 3]
    starts = np.concatenate(([0], np.cumsum(rows)))
    ends = np.searchsorted(starts, starts + block_rows).tolist()
    borders = [0]
    while borders[-1] < len(rows):
        borders.append(min(ends[borders[-1]], len(rows)))
    return np.array(borders, np.int64)
