"""Decide how many blocks are in flight and how many slots the ring has, from what was measured.

Runs in: the feeder, about once a second. Pure. Neither number changes which rows a block or a batch holds. The window
grows, and shrinks for want of memory, at once; otherwise it is the largest that any of the last `PATIENCE` measurements
called for. After a want of memory it grows into four fifths of the room. See docs/decisions/0019-window-and-memory.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from feedline.dataclass import dataclass
from feedline.service.cluster.recent import Recent

# Measurements that a smaller need must outlast: two minutes. With ten seconds, the window alternated between two sizes
# at a pace that lay between them.
PATIENCE = 120
# Measurements that more room must outlast, and the share of it into which a window grows again: free memory varies.
_ROOM_PATIENCE, _SPARE = 10, 0.8
# Blocks ahead of the open ones, per thread: to keep the workers busy, and where single blocks are so
# slow that a reserve of finished ones is needed.
_BUSY, _MOST = 2, 4
# Bytes of a block of which half a block per thread waits behind those that are computed: a tenth of a second of work.
_LARGE_BYTES = 64 * 2**20
# Blocks take longer when others run beside them.
_SAFETY = 1.25
# Blocks beyond the open ones until the trainer's pace is known. One for each of thousands of threads would swamp the
# scheduler: with 64, 256 feeders that start together kept it busy for 40 s.
_FIRST_AHEAD = 16
# Blocks beyond the open ones, until the first result shows how large blocks are.
_FIRST_FEW = 4
# Memory left for other processes.
_RESERVE_BYTES = 256 * 2**20
# Slots: the one that the trainer uses, the next one, one being filled, and those that last while the feeder's loop
# waits for the interpreter: the threads beside it hold it for up to 5 ms each, several in turn.
_SLOTS, _MOST_SLOTS = 4, 32
_LOOP_PAUSE_S = 0.02
# Clocks tell no shorter step.
_LEAST_STEP_S = 1e-9
_ENDLESS = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One measurement. threads: of all workers. step_s: the trainer's own seconds per step (0: unknown).

    blocks_per_step: blocks that a step uses up, on average. block_s, slowest_block_s: median and maximum of the recent
    blocks' computing times (0: unknown). block_bytes: of the largest. held_bytes: of the blocks that are finished.
    available_bytes: what can still be allocated on this machine.
    """

    threads: int
    step_s: float
    blocks_per_step: float
    block_s: float
    slowest_block_s: float
    block_bytes: int
    held_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A number of blocks in flight and of ring slots, and what decided them. is_short: memory had no room for more.
    before: the blocks of the last one."""

    blocks: int
    slots: int
    reason: str
    is_short: bool = False
    before: int | None = None

    def describe(self, slots: int) -> str:
        """A line about the decision. slots: that the ring has now."""
        before = "" if self.before is None else f" (before: {self.before})"
        return f"{self.blocks} blocks in flight{before}, {slots} ring slots: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    """What does not change during a stream. open_blocks: those from which a step is cut. fixed_blocks: `cluster.window`
    (None: decide)."""

    open_blocks: int
    memory_bytes: int
    fixed_blocks: int | None = None


class WindowNeed(NamedTuple):
    """What one measurement calls for: blocks, and slots of the ring. room: the blocks that memory has room for; spare:
    in four fifths of it."""

    blocks: int
    reason: str
    room: int
    spare: int
    room_reason: str
    slots: int


def need_of(load: Load, limits: WindowLimits) -> WindowNeed:
    if limits.fixed_blocks is not None:
        return WindowNeed(limits.fixed_blocks, "cluster.window", _ENDLESS, _ENDLESS, "", _slots(load))
    (blocks, reason), (room, spare, room_reason) = _needed(load, limits), _room(load, limits)
    return WindowNeed(blocks, reason, room, spare, room_reason, _slots(load))


def decide_window(needs: Sequence[WindowNeed], last: Decision | None = None) -> Decision:
    """The decision after these measurements, the last of which is the newest; earlier than `PATIENCE` are ignored.
    last: the decision before it."""
    recent = needs[-PATIENCE:]
    slots, need = max(each.slots for each in recent), max(recent, key=lambda each: each.blocks)
    tight = min(recent[-_ROOM_PATIENCE:], key=lambda each: each.room)
    blocks = min(need.blocks, tight.room)
    if last is not None and last.is_short and blocks > last.blocks:
        blocks = max(last.blocks, min(blocks, tight.spare))
    is_short = blocks < need.blocks
    reason = tight.room_reason if is_short else need.reason
    return Decision(blocks=blocks, slots=slots, reason=reason, is_short=is_short)


def window_bounds(open_blocks: int, threads: int, block_bytes: int, fixed_blocks: int | None) -> tuple[int, int]:
    """The blocks in flight for a slow and for a fast trainer, if memory has room for them."""
    if fixed_blocks is not None:
        return fixed_blocks, fixed_blocks
    busy = _busy(threads, block_bytes)
    # 2 threads, small blocks, busy 4: 1 open block -> (2, 5); 64 open ones, which may end together -> (68, 68).
    return open_blocks + _least_ahead(open_blocks, busy), open_blocks + busy


def _busy(threads: int, block_bytes: int) -> int:
    return threads + (threads + 1) // 2 if block_bytes >= _LARGE_BYTES else _BUSY * threads


def _least_ahead(open_blocks: int, busy: int) -> int:
    """At least one, and as many as are open: lanes of equal rows end their blocks at about the same step."""
    return max(1, min(open_blocks, busy))


def _needed(load: Load, limits: WindowLimits) -> tuple[int, str]:
    open_blocks, threads, busy = limits.open_blocks, load.threads, _busy(load.threads, load.block_bytes)
    if not load.step_s or not load.block_s:
        return open_blocks + min(threads, _FIRST_AHEAD), "the pace is not known yet"
    use_s = max(load.step_s, _LEAST_STEP_S) / load.blocks_per_step
    pace = f"the trainer uses up a block in {use_s:.2g} s, workers take {load.block_s:.2g} s"
    if _is_behind(load):
        on = "one thread" if threads == 1 else f"each of {threads} threads"
        return open_blocks + busy, f"the trainer is faster than the workers: {pace} on {on}"
    # A block lasts the trainer 0.8 s: with a slowest of 1 s, ceil(1.25 / 0.8) = 2 ahead; of 3 s, 5.
    ahead = math.ceil(_SAFETY * load.slowest_block_s / use_s)
    ahead = min(max(ahead, _least_ahead(open_blocks, busy)), _MOST * threads)
    return open_blocks + ahead, f"{pace}, {load.slowest_block_s:.2g} s for the slowest of late"


def _is_behind(load: Load) -> bool:
    """Whether the trainer uses up blocks faster than all threads compute them."""
    return load.block_s * load.blocks_per_step >= load.threads * load.step_s


def _room(load: Load, limits: WindowLimits) -> tuple[int, int, str]:
    """The blocks that memory has room for, and those in four fifths of it; at least those from which a step is cut."""
    if not load.block_bytes:
        return _ENDLESS, _ENDLESS, ""
    free_bytes = load.held_bytes + max(0, load.available_bytes - _RESERVE_BYTES)
    nbytes = min(limits.memory_bytes, free_bytes)
    source = "`memory`" if limits.memory_bytes <= free_bytes else "this machine's free memory"
    room, spare = nbytes // load.block_bytes, int(_SPARE * nbytes) // load.block_bytes
    reason = f"{source} has room for {nbytes / 1e6:,.0f} MB of blocks of up to {load.block_bytes / 1e6:,.0f} MB"
    return max(limits.open_blocks, room), max(limits.open_blocks, spare), reason


def _slots(load: Load) -> int:
    if not load.step_s or _is_behind(load):
        return _SLOTS
    return min(_MOST_SLOTS, max(_SLOTS, _SLOTS - 1 + math.ceil(_LOOP_PAUSE_S / max(load.step_s, _LEAST_STEP_S))))


class Window:
    """The window of one trainer's streams: recent measurements, and the current decision (None before the first).
    in_flight: the blocks of all its streams, which count them here."""

    def __init__(self, limits: WindowLimits) -> None:
        self.limits = limits
        self.decision: Decision | None = None
        self.in_flight = 0
        self._needs: deque[WindowNeed] = deque(maxlen=PATIENCE)
        self._knows_pace = False
        self._block_s = Recent()
        self._largest_bytes = 0

    def record(self, block_s: float, nbytes: int) -> None:
        """Count a finished block: its computing time and its size."""
        self._block_s.add(block_s)
        self._largest_bytes = max(self._largest_bytes, nbytes)

    @property
    def knows_pace(self) -> bool:
        return self._knows_pace

    @property
    def block_s(self) -> float:
        """Median computing time of the recent blocks; 0 before the first."""
        return self._block_s.median

    def observe(
        self, *, threads: int, step_s: float, blocks_per_step: float, held_bytes: int, available_bytes: int
    ) -> Decision | None:
        """Take a measurement; see `Load`. Returns the decision if it differs from the last one."""
        load = Load(
            threads=threads,
            step_s=step_s,
            blocks_per_step=blocks_per_step,
            block_s=self._block_s.median,
            slowest_block_s=self._block_s.largest,
            block_bytes=self._largest_bytes,
            held_bytes=held_bytes,
            available_bytes=available_bytes,
        )
        self._needs.append(need_of(load, self.limits))
        self._knows_pace = step_s > 0
        last, self.decision = self.decision, decide_window(tuple(self._needs), self.decision)
        is_same = last is not None and (last.blocks, last.slots) == (self.decision.blocks, self.decision.slots)
        return None if is_same else replace(self.decision, before=None if last is None else last.blocks)

    def blocks(self, threads: int) -> int:
        if self.limits.fixed_blocks is not None:
            return self.limits.fixed_blocks
        if self.decision is not None:
            return self.decision.blocks
        return self.limits.open_blocks + min(threads, _FIRST_AHEAD)

    def has_room(self, blocks: int, *, threads: int) -> bool:
        limit, least = self.blocks(threads), self.limits.open_blocks
        if not self._largest_bytes:
            return blocks < min(limit, max(least, min(threads, least + _FIRST_FEW)))
        return blocks < limit and (blocks + 1) * self._largest_bytes <= self.limits.memory_bytes
