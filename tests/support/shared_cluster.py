"""Jobs that share a cluster, simulated: the pure parts decide, blocks take virtual time, no process is started.

A cluster is a number of threads and one queue in the order of priorities, as Dask's is while no more is assigned to a
worker than it can begin.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from feedline.loader.wire.job_reports import JobReport
from feedline.service.cluster.fair_share import FairShare
from feedline.service.feeder.timing import Priorities
from feedline.service.feeder.window import Window, WindowLimits
from feedline.service.scheduler.job_book import ClusterSize, JobBook

_REPORT_S, _LOOK_S, _RATE_S = 2.0, 1.0, 10.0
_FIRST_S = 1.7e9  # by the scheduler's clock


@dataclass
class SimulatedJob:
    """A trainer that takes `pace_s` per block, each of which takes `block_s` to compute. stops: from when to when it
    asks for nothing. Afterwards: busy, the block-seconds per second; waits, the share of time in which it waited."""

    name: str
    block_s: float
    pace_s: float
    share: float = 1.0
    starts_s: float = 0.0
    ends_s: float = math.inf
    stops: tuple[float, float] = (math.inf, math.inf)
    offset_s: float = 0.0  # of its host's clock
    computed: list[tuple[float, float]] = field(default_factory=list)  # end, seconds
    waited: list[tuple[float, float]] = field(default_factory=list)  # from, to

    def busy(self, begin_s: float, end_s: float) -> float:
        """Threads that it used on average."""
        return sum(seconds for at_s, seconds in self.computed if begin_s <= at_s < end_s) / (end_s - begin_s)

    def waits(self, begin_s: float, end_s: float) -> float:
        """The share of this time in which its trainer waited for a block."""
        spans = (min(until_s, end_s) - max(from_s, begin_s) for from_s, until_s in self.waited)
        return sum(max(0.0, span) for span in spans) / (end_s - begin_s)


class _Feeder:
    """The decisions of a feeder with one trainer, whose steps are blocks."""

    def __init__(self, job: SimulatedJob, threads: int, *, offset_s: float) -> None:
        self.job, self.all_threads, self.offset_s = job, threads, offset_s
        self.share, self.priorities = FairShare(), Priorities()
        self.window = Window(WindowLimits(open_blocks=1, memory_bytes=1 << 40))
        self.submitted, self.step, self.in_flight, self.done = 0, 0, 0, set[int]()
        self.asked_s: float | None = None
        self.stopped = False
        self.busy_s = 0.0

    def threads(self) -> int:
        return self.share.threads(self.all_threads)

    def submit(self, now_s: float) -> list[tuple[int, int]]:
        """Priority and index of the blocks for which the window has room."""
        blocks = []
        step_s = self.job.pace_s if self.step >= 12 else 0.0
        self.priorities.begin(self.step, step_s, 0.0)
        while self.window.has_room(self.submitted - self.step, threads=self.threads()):
            clock_s = self.share.now_s(now_s, _FIRST_S + now_s + self.offset_s)
            start_s = self.share.start_s(self.window.block_s, self.in_flight)
            blocks.append((self.priorities.next(self.submitted, clock_s, start_s), self.submitted))
            self.in_flight += 1
            self.submitted += 1
        return blocks

    def look(self) -> None:
        step_s = self.job.pace_s if self.step >= 12 else 0.0
        self.window.observe(
            threads=self.threads(), step_s=step_s, blocks_per_step=1, held_bytes=0, available_bytes=1 << 40
        )

    def report(self, now_s: float) -> JobReport:
        job, window_s = self.job, min(_RATE_S, max(1e-9, now_s - self.job.starts_s))
        recent = sum(1 for at_s, _ in job.computed if at_s > now_s - window_s)
        waits = job.waits(now_s - window_s, now_s)
        return JobReport(
            job=job.name,
            feeder=job.name,
            host="h",
            ranks=1,
            share=job.share,
            demand_threads=self.window.block_s / job.pace_s if self.step >= 12 else 0.0,
            least_workers=0,
            most_workers=None,
            wait_fraction=waits,
            starved=self.asked_s is not None,
            blocks_in_flight=self.submitted - self.step,
            block_s=self.window.block_s,
            blocks_per_s=recent / window_s,
            busy_s_total=self.busy_s,
        )


def simulate(jobs: list[SimulatedJob], *, threads: int, until_s: float, extended: bool = True) -> None:
    """Run the jobs on a cluster of so many threads. extended: whether its scheduler answers reports."""
    book, size = JobBook(), ClusterSize(workers=threads, threads=threads)
    events: list[tuple[float, int, Callable[[float], None]]] = []
    order = itertools.count()
    queue: list[tuple[int, int, _Feeder, int]] = []
    free = [threads]

    def at(time_s: float, act: Callable[[float], None]) -> None:
        heapq.heappush(events, (time_s, next(order), act))

    def pump(feeder: _Feeder, now_s: float) -> None:
        if now_s < feeder.job.ends_s:
            for priority, index in feeder.submit(now_s):
                heapq.heappush(queue, (-priority, next(order), feeder, index))
        while queue and free[0]:
            _, _, owner, index = heapq.heappop(queue)
            free[0] -= 1
            at(now_s + owner.job.block_s, lambda end_s, owner=owner, index=index: finish(owner, index, end_s))

    def finish(feeder: _Feeder, index: int, now_s: float) -> None:
        free[0] += 1
        job = feeder.job
        job.computed.append((now_s, job.block_s))
        feeder.busy_s += job.block_s
        feeder.in_flight -= 1
        feeder.share.computed(job.block_s)
        feeder.window.record(job.block_s, 1)
        feeder.done.add(index)
        if feeder.asked_s is not None:
            ask(feeder, now_s)
        pump(feeder, now_s)

    def ask(feeder: _Feeder, now_s: float) -> None:
        """The trainer wants its next block."""
        job, begin_s = feeder.job, feeder.asked_s
        if job.stops[0] <= now_s < job.stops[1]:
            if not feeder.stopped:
                feeder.stopped = True
                at(job.stops[1], lambda later_s: ask(feeder, later_s))
            return
        if feeder.step not in feeder.done:
            feeder.asked_s = now_s if begin_s is None else begin_s
            return
        if begin_s is not None:
            job.waited.append((begin_s, now_s))
            feeder.asked_s = None
        feeder.done.remove(feeder.step)
        feeder.step += 1
        at(now_s + job.pace_s, lambda later_s: ask(feeder, later_s))
        pump(feeder, now_s)

    def look(feeder: _Feeder, now_s: float, ticks: int) -> None:
        if now_s >= feeder.job.ends_s:
            return
        feeder.look()
        if extended and ticks % round(_REPORT_S / _LOOK_S) == 1:
            feeder.share.update(book.record(feeder.report(now_s), _FIRST_S + now_s, size), now_s)
        pump(feeder, now_s)
        at(now_s + _LOOK_S, lambda later_s: look(feeder, later_s, ticks + 1))

    for job in jobs:
        feeder = _Feeder(job, threads, offset_s=0.0 if extended else job.offset_s)  # asked when it connects
        at(job.starts_s, lambda now_s, feeder=feeder: ask(feeder, now_s))
        at(job.starts_s, lambda now_s, feeder=feeder: look(feeder, now_s, 0))
    while events and events[0][0] < until_s:
        time_s, _, act = heapq.heappop(events)
        act(time_s)
    for job in jobs:
        job.computed.sort()
