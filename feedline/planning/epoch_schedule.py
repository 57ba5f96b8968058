"""Schedule the rows of an epoch: each step of a lane holds a fixed number of rows of each source, source after source.

Pure. The schedule of an epoch is put together from those of the sources' passes (`source_passes`), which are made when
a step or a block needs them, and forgotten when others have come. A block belongs to one source. Its index names the
pass and the source besides its place there, so that it is unique in the epoch: `block_index`. The epoch of an only
source is its first pass, whose blocks keep their indices.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import Literal

import numpy as np

from feedline.dataclass import dataclass
from feedline.errors import PlanError
from feedline.planning.interleave import Int64s
from feedline.planning.schedule import Block, Cut, Schedule

# --------------------------------------------------------------------------------------------------------------------
# Count the passes that a source makes through its rows while epochs go by. Every step holds the same number of rows
# of each source, so a source's position is arithmetic in the step: which pass, and which step of that pass. With
# `stop: first` and `all` each epoch begins new passes; with `stop: N` they go on through epochs of N steps. A pass
# has a number, which is the epoch of the source's own plan: `all` has several passes q in one epoch e, of the numbers
# e + q * 2**32, whatever their lengths. An only source has one pass per epoch, of the epoch's number. A rebase
# shortens one pass. It keeps the step at which that pass began, from which all later ones follow.

Stop = Literal["first", "all"] | int

_REPEATS = 2**32  # numbers of the passes of an epoch are so far apart


@dataclass(frozen=True, slots=True, kw_only=True)
class RestOfPass:
    """The pass that a rebase shortened. number: of the pass. began: the step at which it began, of its epoch, or, with
    `stop: N`, of all epochs. first_step: of the pass, from which on its rest is delivered. steps: of the pass, with
    those before."""

    number: int
    began: int
    first_step: int
    steps: int

    def position(self, stop: Stop) -> tuple[int, int]:
        """Epoch and step at which the rest begins."""
        step = self.began + self.first_step
        return (self.number % _REPEATS, step) if isinstance(stop, str) else divmod(step, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlace:
    """A position in a source: the number of the pass, a step of it, and as of `RestOfPass`, when the pass began."""

    number: int
    step: int
    began: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The passes of a source in an epoch, counted from 0. The first one may have begun in an earlier epoch: then its
    start step is negative."""

    first_pass: int
    pass_stride: int
    first_pass_start_step: int
    first_pass_steps: int
    pass_steps: int

    def at(self, step: int) -> tuple[int, int]:
        """The pass that a step of the epoch draws from, and its step there."""
        # passes of 4 steps, of which the first began 3 steps before the epoch: steps 0, 1, 4, 5 -> (0, 3), (1, 0),
        # (1, 3), (2, 0)
        own = step - self.first_pass_start_step
        if own < self.first_pass_steps:
            return 0, own
        later, own = divmod(own - self.first_pass_steps, self.pass_steps)
        return 1 + later, own

    def begin_of(self, index: int) -> int:
        """The epoch's step at which a pass begins."""
        before = self.first_pass_steps + (index - 1) * self.pass_steps if index else 0
        return self.first_pass_start_step + before

    def number_of(self, index: int) -> int:
        """The number of a pass."""
        return self.first_pass + index * self.pass_stride


def passes_of(stop: Stop, epoch: int, steps: int, rest: RestOfPass | None = None) -> Passes:
    """The passes of a source in an epoch. steps: of a whole pass."""
    number, start, first_steps, stride = epoch, 0, steps, _REPEATS
    if isinstance(stop, str):
        if rest is not None and rest.number % _REPEATS == epoch:
            number, start, first_steps = rest.number, rest.began, rest.steps
    else:
        begin, stride = epoch * stop, 1
        if rest is not None and begin < rest.began + rest.steps:
            number, start, first_steps = rest.number, rest.began - begin, rest.steps
        else:  # whole passes, which begin with the run, or after the rest
            first, began = (0, 0) if rest is None else (rest.number + 1, rest.began + rest.steps)
            later, own = divmod(begin - began, steps)
            number, start = first + later, -own
    return Passes(
        first_pass=number,
        pass_stride=stride,
        first_pass_start_step=start,
        first_pass_steps=first_steps,
        pass_steps=steps,
    )


def epoch_steps(stop: Stop, passes: Sequence[Passes]) -> int:
    """The steps of an epoch. passes: of each source in it."""
    if not isinstance(stop, str):
        return stop
    ends = [each.first_pass_start_step + each.first_pass_steps for each in passes]
    if stop == "first":
        return min(ends)
    # of a source that a rebase left in a later pass of the epoch, the first one is over
    return max(end for end, each in zip(ends, passes, strict=True) if each.first_pass < _REPEATS)


# --------------------------------------------------------------------------------------------------------------------

# Schedules of one source that are kept: of the pass that is delivered, and of those whose blocks are computed ahead.
_KEPT_PASSES = 8
_PASS_BLOCKS = 10**9  # a lane has fewer blocks; in decimals, so that messages show the block's own index at the end
# Passes of a source that are put in order before the epoch begins, not by the feeder's loop.
_PREPARED_PASSES = 2


def block_index(index: int, *, source: int, sources: int, pass_index: int) -> int:
    """The index of a source's block among the blocks of all sources and passes of an epoch."""
    return (pass_index * sources + source) * _PASS_BLOCKS + index


def split_index(index: int, sources: int) -> tuple[int, int, int]:
    """Pass, source and the block's own index: what `block_index` has put together."""
    place, own = divmod(index, _PASS_BLOCKS)
    pass_index, source = divmod(place, sources)
    return pass_index, source, own


class SourceSchedules:
    """The schedules of a source's passes in an epoch. make: of the pass of a number."""

    def __init__(self, passes: Passes, make: Callable[[int], Schedule]) -> None:
        self.passes = passes
        self.of_pass = lru_cache(_KEPT_PASSES)(lambda index: make(passes.number_of(index)))

    def at(self, step: int) -> tuple[int, int, Schedule]:
        """The pass that a step of the epoch draws from, its step there, and the schedule of the pass."""
        index, own = self.passes.at(step)
        return index, own, self.of_pass(index)


@dataclass(frozen=True, kw_only=True)
class EpochSchedule:
    """One epoch's schedule. steps: with those before `first_step`, from which on it may be delivered."""

    sources: Sequence[SourceSchedules]
    lanes: int
    batch_size: int
    steps: int
    first_step: int = 0

    def _first_pass(self, source: SourceSchedules) -> int:
        """The pass from which the first step draws; where a rebase has left no step, the one before it."""
        return source.passes.at(min(self.first_step, self.steps - 1))[0]

    def has_rows(self, lane: int) -> bool:
        """Whether a lane has rows of its own; one without any borrows a row as padding."""
        return any(source.of_pass(self._first_pass(source)).has_rows(lane) for source in self.sources)

    def open_blocks(self, lanes: range) -> int:
        """Upper bound of blocks that stay open across a step of these lanes."""
        blocks = 0
        for source in self.sources:
            first = self._first_pass(source)
            blocks += source.of_pass(first).open_blocks(lanes)
            for index in range(first + 1, first + _PREPARED_PASSES):
                if source.passes.begin_of(index) < self.steps:
                    source.of_pass(index).open_blocks(lanes)
        return blocks

    def blocks_per_step(self, lanes: range) -> float:
        """The blocks that a step of these lanes uses up, on average."""
        return sum(source.of_pass(self._first_pass(source)).blocks_per_step(lanes) for source in self.sources)

    def drawn(self, lane: int, step: int, most: int) -> Int64s:
        """int64 [n + 1, open strands]: the rows that the strands open at a step hand out from there on, before each
        of n steps and after the last one. n: as many of `most` steps as no strand opens or ends in, and no source
        begins another pass in."""
        parts = []
        for source in self.sources:
            _, own, schedule = source.at(step)
            parts.append(schedule.drawn(lane, own, min(most, self.steps - step)))
        steps = min(map(len, parts))
        return np.concatenate([part[:steps] for part in parts], axis=1)

    def blocks_of(self, lanes: range, *, first_step: int = 0) -> Iterator[Block]:
        """The blocks of several lanes, in the order in which steps need them."""
        streams = (self._blocks(number, lane, first_step) for lane in lanes for number in range(len(self.sources)))
        return heapq.merge(*streams, key=lambda block: (block.first_step, block.lane, block.index))

    def _blocks(self, number: int, lane: int, first_step: int) -> Iterator[Block]:
        """The blocks of a source that hold rows of the lane's steps from `first_step` on, pass after pass."""
        passes = self.sources[number].passes
        first, own = passes.at(max(first_step, self.first_step))
        for index in count(first):
            begin = passes.begin_of(index)
            if begin >= self.steps:
                return
            for block in self.sources[number].of_pass(index).blocks(lane, first_step=own if index == first else 0):
                if begin + block.first_step >= self.steps:
                    return
                place = self._index(block.index, number, index)
                last = min(begin + block.last_step, self.steps - 1)
                is_same = place == block.index and not begin and last == block.last_step  # as of an only source
                yield (
                    block
                    if is_same
                    else replace(block, index=place, first_step=begin + block.first_step, last_step=last)
                )

    def _index(self, index: int, source: int, pass_index: int) -> int:
        return block_index(index, source=source, sources=len(self.sources), pass_index=pass_index)

    def cuts(self, lane: int, step: int) -> tuple[Cut, ...]:
        """The lane's share of a step: the rows of the first source, then those of the next."""
        if not self.first_step <= step < self.steps:
            raise PlanError(f"step is out of range: got {step}, expected {self.first_step} to {self.steps - 1}")
        cuts: list[Cut] = []
        for number, source in enumerate(self.sources):
            index, own, schedule = source.at(step)
            named = schedule.cuts(lane, own)
            if self._index(0, number, index):  # not of the first source's first pass
                named = tuple(replace(cut, block=self._index(cut.block, number, index)) for cut in named)
            cuts += named
        return tuple(cuts)
