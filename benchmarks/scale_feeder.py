"""A feeder for measurements of scale: the real decisions of a feeder, a trainer that only waits, and blocks that sleep.

`scale.py` runs it on simulated clusters, in simulated time, and on real ones, in real time. Real are the schedule of
the epoch, `Delivery` with its priorities, resubmissions and keys, the window, the trainer's pace, and the report to the
scheduler with its answer. Ring and trainer are counts and times: the trainer takes a step every `step_s` seconds, or
waits for the next one; a step is ready when the blocks that it is cut from have arrived.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feedline.blocks.request import BlockResult
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.wire.facts import BlockStats
from feedline.loader.wire.job_reports import JobReport
from feedline.planning.schedule import Block, Schedule
from feedline.service.cluster import attempts
from feedline.service.feeder.delivery import Delivery, StreamBlocks
from feedline.service.feeder.timing import TrainerPace
from feedline.service.feeder.window import Window, WindowLimits

MEMORY_BYTES = 1 << 40
SLOTS = 4
# A trainer that waits less has not stalled: threads of a real process are woken that late.
_STALL_S = 0.05
_JITTER = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The blocks of all feeders. block_s: computing time, which varies by 20 % from block to block. block_bytes: of its
    result. rows: of a block, which is a split and a file."""

    files: int
    lanes: int
    rows: int = 8_192
    batch_size: int = 2_048
    mixed: int = 4
    block_s: float = 1.0
    block_bytes: int = 65_536

    def schedule(self, epoch: int = 0) -> Schedule:
        """The schedule that a plan of such a table has."""
        return Schedule(
            split_rows=np.full(self.files, self.rows, np.int64),
            lanes=self.lanes,
            batch_size=self.batch_size,
            tail="drop",
            block_rows=self.rows,
            window_rows=self.mixed * self.rows,
            shuffle=True,
            seed=0,
            epoch=epoch,
        )

    @property
    def steps_per_block(self) -> float:
        """Steps of a lane per block."""
        return self.rows / self.batch_size


@dataclass(frozen=True, slots=True)
class _Place:
    path: str


@dataclass(frozen=True, slots=True)
class _Piece:
    fragment: _Place


@dataclass(frozen=True, slots=True)
class SleepRequest:
    """Instead of a request to read: how long the block takes, and how many bytes it has."""

    rows: int
    seconds: float
    nbytes: int
    pieces: tuple[_Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Instead of rows: their bytes."""

    content: bytes

    @property
    def nbytes(self) -> int:
        return len(self.content)


@dataclass(frozen=True, slots=True)
class _Job:
    digest: str


def seconds_of(name: str, lane: int, index: int, block_s: float) -> float:
    """How long a block takes: the same in every run."""
    draw = hashlib.blake2b(f"{name} {lane} {index}".encode(), digest_size=4).digest()
    return block_s * (1 + _JITTER * (int.from_bytes(draw, "little") / 2**31 - 1))


@functools.cache
def _zeros(nbytes: int) -> bytes:
    """The content of all blocks of a size: thousands of them are in a simulated cluster at once."""
    return bytes(nbytes)


def result_of(request: SleepRequest, key: str) -> BlockResult:
    """The result of a block."""
    return BlockResult(
        key=key,
        rows=request.rows,
        parts=(BlockRows(_zeros(request.nbytes)),),  # type: ignore[arg-type]
        image=None,
        times=BlockTimes(read_s=request.seconds, transform_s=0.0, encode_s=0.0),
        nbytes_read=request.nbytes,
        quality=None,  # type: ignore[arg-type]
    )


def sleep_block(job: Any, request: Any, key: str, packed: bool) -> BlockResult:
    """Instead of `run_block`."""
    time.sleep(request.seconds)
    return result_of(request, key)


def sleep_on_workers() -> None:
    """Have the workers of this process sleep instead of reading."""
    attempts.run_block = sleep_block


class RankFeeder:
    """One rank's feeder and trainer. `advance` does what can be done now, and returns when to call it next.

    wake: called, in any thread, when a block has arrived. job: feeders of one job share the cluster as one.
    """

    def __init__(
        self,
        cluster: Any,
        workload: Workload,
        schedule: Schedule,
        *,
        lane: int,
        step_s: float,
        job: str = "job",
        clock: Callable[[], float],
        wake: Callable[[], None],
        start_s: float,
    ) -> None:
        self._cluster, self._workload, self._schedule, self.lane = cluster, workload, schedule, lane
        self.job, self.step_s = job, step_s
        self.window = Window(WindowLimits(open_blocks=1, memory_bytes=MEMORY_BYTES))
        self.window.limits = replace(self.window.limits, open_blocks=schedule.open_blocks(range(lane, lane + 1)))
        self._pace = TrainerPace()
        self.stats = BlockStats()
        stream = StreamBlocks(
            name=f"{job}-e0",
            blocks=schedule.blocks(lane),
            job_of=lambda block: _Job(f"{job}-digest"),  # type: ignore[arg-type,return-value]
            request=self._request,  # type: ignore[arg-type]
            layout=None,  # type: ignore[arg-type]
        )
        self.delivery = Delivery(cluster, stream, window=self.window, wake=wake, stats=self.stats, clock=clock)
        self._step = 0  # to be made ready next
        self._ready = 0
        self._missing_s: float | None = None  # since when a step with a free slot has waited for blocks
        self._waited_s = 0.0
        self._look_s = start_s
        self._reported = (start_s, 0, 0.0)  # time, blocks and stalled seconds at the last report
        self._wants_s = start_s  # when the trainer wants its next step
        self.taken = 0
        self.stalls: list[tuple[float, float]] = []  # from, to
        self.taken_s: list[float] = []

    def _request(self, block: Block) -> SleepRequest:
        seconds = seconds_of(self.job, block.lane, block.index, self._workload.block_s)
        place = _Piece(_Place(f"part-{block.index}"))
        return SleepRequest(block.rows, seconds, self._workload.block_bytes, (place,))

    @property
    def waiting(self) -> bool:
        """Whether the trainer waits for a block."""
        return self._missing_s is not None and not self._ready

    def stalled_s(self, since_s: float, now_s: float) -> float:
        """Seconds since a time in which the trainer waited."""
        open_stall = [(self._wants_s, now_s)] if self.waiting and self._wants_s < now_s else []
        return sum(max(0.0, to - max(since_s, start)) for start, to in [*self.stalls, *open_stall])

    def advance(self, now_s: float) -> float:
        """Take and make ready steps; about once a second, look after the blocks and the window."""
        if now_s >= self._look_s:
            self._look_s = now_s + 1.0
            self.delivery.look(starved=self.waiting)
            self.window.observe(
                threads=self._cluster.threads_per_trainer(),
                step_s=self._pace.known_step_s,
                blocks_per_step=1 / self._workload.steps_per_block,
                held_bytes=self.delivery.held_bytes,
                available_bytes=MEMORY_BYTES,
            )
        while self._take(now_s) or self._fill(now_s):
            pass
        return min(self._look_s, self._wants_s if self._ready else float("inf"))

    def _take(self, now_s: float) -> bool:
        if not self._ready or now_s < self._wants_s:
            return False
        late_s = now_s - self._wants_s
        if late_s > _STALL_S:
            self.stalls.append((self._wants_s, now_s))
        self._wants_s = (now_s if late_s > _STALL_S else self._wants_s) + self.step_s
        self._ready -= 1
        self.taken += 1
        self.taken_s.append(now_s)
        return True

    def _fill(self, now_s: float) -> bool:
        if self._ready >= SLOTS or self._step >= self._schedule.steps:
            return False
        self.delivery.pump(self._step, step_s=self._pace.step_s)
        cuts = self._schedule.cuts(self.lane, self._step)
        if any(self.delivery.get(cut.lane, cut.block) is None for cut in cuts):
            self._missing_s = now_s if self._missing_s is None else self._missing_s
            return False
        if self._missing_s is not None:
            self._waited_s += now_s - self._missing_s
            self._missing_s = None
        self._pace.step(now_s, self._waited_s)
        self.delivery.drop(self._step)
        self._step += 1
        self._ready += 1
        return True

    def report(self, now_s: float) -> JobReport:
        """The report that a feeder sends about every two seconds."""
        since_s, blocks, stalled_before_s = self._reported
        stalled_s, passed_s = self.stalled_s(0.0, now_s), max(now_s - since_s, 1e-3)
        self._reported = (now_s, self.stats.blocks, stalled_s)
        return JobReport(
            job=self.job,
            feeder=f"{self.job}-{self.lane}",
            host="",
            ranks=1,
            share=1.0,
            demand_threads=self._demand_threads(),
            least_workers=0,
            most_workers=None,
            wait_fraction=min(1.0, (stalled_s - stalled_before_s) / passed_s),
            starved=self.waiting,
            blocks_in_flight=self.window.in_flight,
            block_s=self.window.block_s,
            blocks_per_s=(self.stats.blocks - blocks) / passed_s,
            busy_s_total=self.stats.times.read_s,
        )

    def _demand_threads(self) -> float:
        """Threads that compute blocks as fast as the trainer uses them; 0: its pace is not known yet."""
        step_s, block_s = self._pace.known_step_s, self.window.block_s
        return block_s / self._workload.steps_per_block / step_s if step_s and block_s else 0.0
