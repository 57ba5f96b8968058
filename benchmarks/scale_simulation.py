"""A Dask cluster in simulated time: a scheduler with one thread, workers with a few, connections with delays.

A discrete-event simulation: a heap of (time, call). What decides in it is real code: feeders (`scale_feeder`), and the
scheduler's `JobBook`. What is simulated is what these act on, from costs that `scale.py` measures: the scheduler's CPU
time per task (its thread serves one message after the other), the pauses in which Dask collects messages, blocks that
take so long and have so many bytes. A lost worker's blocks are computed again by others, as Dask does.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scale_feeder import RankFeeder, SleepRequest, Workload, result_of

from feedline.planning.schedule import Schedule
from feedline.service.cluster.attempts import Submission
from feedline.service.cluster.fair_share import FairShare
from feedline.service.scheduler.job_book import ClusterSize, JobBook
from feedline.service.scheduler.routes import route_digest

REPORT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Measured on one machine; see `scale_cluster.measure`.

    task_s: the scheduler's CPU time per task, with all of its messages. worker_s: the same per worker and second, for
    heartbeats; of more than 100 workers as of 100, since Dask asks for fewer of each then. wire_bytes: of a task's
    messages, without the block; messages: their number. collect_s: for which a client, and worker_collect_s, for which
    a worker or the scheduler collects messages before they are sent. fetch_s: from the news of a finished block to its
    bytes, at bytes_per_s. report_s: the scheduler's CPU time per report. awake_s: the same per second in which a task
    came or ended, however many did: few messages each wake it, of many it finds several at once.
    """

    task_s: float
    worker_s: float = 0.0
    wire_bytes: float = 6_000.0
    messages: float = 8.0
    collect_s: float = 0.010
    worker_collect_s: float = 0.002
    fetch_s: float = 0.005
    bytes_per_s: float = 1e9
    report_s: float = 0.0005
    awake_s: float = 0.0


class Loop:
    """Simulated time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        """Call at a time, not before now; calls of one time are in the order of this."""
        heapq.heappush(self._events, (max(time_s, self.now_s), next(self._numbers), call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.at(self.now_s + seconds, call)

    def run(self, until_s: float) -> None:
        """Handle events up to a time."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, call = heapq.heappop(self._events)
            call()
        self.now_s = until_s


@dataclass(slots=True, eq=False)
class SimulatedTask:
    """A task, as its feeder holds it. internal: what Dask orders by, lower first."""

    key: str
    request: SleepRequest
    internal: tuple[int, int]
    arrived: Callable[[str, Any], None]
    cluster: SimulatedCluster
    workers: frozenset[str] | None
    worker: SimulatedWorker | None = None
    finished: bool = False
    released: bool = False

    def cancel(self) -> None:
        """Release the task."""
        self.released = True
        if self.worker is not None and not self.finished:
            self.worker.forget(self)


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """A worker: `threads` tasks run, the others wait in the order of their priority."""

    address: str
    threads: int
    loop: Loop
    running: dict[str, SimulatedTask] = field(default_factory=dict)
    waiting: list[tuple[tuple[int, int], int, SimulatedTask]] = field(default_factory=list)
    tasks: int = 0  # assigned and not finished
    holders: dict[str, SimulatedTask] = field(default_factory=dict)  # finished, their results not yet released
    clients: set[int] = field(default_factory=set)
    on_change: Callable[[SimulatedWorker], None] = lambda worker: None
    busy_s: float = 0.0
    gone: bool = False

    def assign(self, task: SimulatedTask, number: int) -> None:
        task.worker = self
        heapq.heappush(self.waiting, (task.internal, number, task))
        self._start()

    @property
    def load(self) -> float:
        """Tasks per thread."""
        return self.tasks / self.threads

    def expect(self, tasks: int) -> None:
        """Count tasks that were assigned, or that have ended."""
        self.tasks += tasks
        self.on_change(self)

    def forget(self, task: SimulatedTask) -> None:
        """Drop a task that waits; one that runs ends by itself."""
        if task.key not in self.running:
            self.expect(-1)

    def _start(self) -> None:
        while self.waiting and len(self.running) < self.threads:
            _, _, task = heapq.heappop(self.waiting)
            if task.released or task.worker is not self:
                continue
            self.running[task.key] = task
            self.loop.after(task.request.seconds, lambda task=task: self._end(task))  # type: ignore[misc]

    def _end(self, task: SimulatedTask) -> None:
        if self.gone:
            return
        del self.running[task.key]
        self.expect(-1)
        self.busy_s += task.request.seconds
        task.finished = True
        self._start()
        if not task.released:
            self.holders[task.key] = task
            task.cluster.scheduler.finished(task)


class SimulatedScheduler:
    """Serves messages one after the other: half of a task's time when it comes, half when it has finished."""

    def __init__(self, loop: Loop, costs: Costs, workers: int, threads: int) -> None:
        self.loop, self.costs = loop, costs
        self.members = {
            f"tcp://10.0.{index // 256}.{index % 256}:1": SimulatedWorker(
                f"tcp://10.0.{index // 256}.{index % 256}:1", threads, loop
            )
            for index in range(workers)
        }
        self.book = JobBook()
        self._threads = threads
        self.busy_s = 0.0
        self.tasks = self._tasks_before = 0  # finished
        self.messages = self.wire_bytes = 0.0
        self._free_s = 0.0
        self._numbers = itertools.count()
        self._loads = [(0.0, next(self._numbers), worker) for worker in self.members.values()]
        for worker in self.members.values():
            worker.on_change = self._note
        loop.after(1.0, self._beat)

    def _beat(self) -> None:
        awake_s = self.costs.awake_s if self.tasks > self._tasks_before else 0.0
        self._tasks_before = self.tasks
        self.serve(self.costs.worker_s * min(100, len(self.members)) + awake_s, lambda: None)
        self.loop.after(1.0, self._beat)

    def _note(self, worker: SimulatedWorker) -> None:
        """Keep a worker's load, for the choice of the least loaded one."""
        heapq.heappush(self._loads, (worker.load, next(self._numbers), worker))

    def _least_loaded(self) -> SimulatedWorker | None:
        while self._loads:
            load, _, worker = self._loads[0]
            if not worker.gone and worker.load == load:
                return worker
            heapq.heappop(self._loads)
        return None

    @property
    def size(self) -> ClusterSize:
        return ClusterSize(workers=len(self.members), threads=len(self.members) * self._threads)

    def serve(self, seconds: float, then: Callable[[], None]) -> None:
        """Handle a message when all earlier ones are handled."""

        def handled() -> None:
            self.busy_s += seconds
            then()

        self._free_s = max(self._free_s, self.loop.now_s) + seconds
        self.loop.at(self._free_s, handled)

    def submit(self, task: SimulatedTask) -> None:
        self.loop.after(self.costs.collect_s, lambda: self.serve(self.costs.task_s / 2, lambda: self._assign(task)))

    def _assign(self, task: SimulatedTask) -> None:
        if task.released:
            return
        if task.workers is None:
            worker = self._least_loaded()
        else:
            allowed = [self.members[address] for address in task.workers if address in self.members]
            worker = min(allowed, key=lambda each: each.load, default=None)
        if worker is None:
            self.loop.after(1.0, lambda: self._assign(task))
            return
        worker.expect(1)
        self.loop.after(self.costs.worker_collect_s, lambda: self._deliver(task, worker))

    def _deliver(self, task: SimulatedTask, worker: SimulatedWorker) -> None:
        if worker.gone:
            self._assign(task)
        elif task.released:
            worker.expect(-1)
        else:
            worker.assign(task, next(self._numbers))

    def finished(self, task: SimulatedTask) -> None:
        """A worker's message that a task has finished."""
        self.loop.after(
            self.costs.worker_collect_s, lambda: self.serve(self.costs.task_s / 2, lambda: self._tell(task))
        )

    def _tell(self, task: SimulatedTask) -> None:
        if task.released or not task.finished:
            return
        self.tasks += 1
        self.messages += self.costs.messages
        self.wire_bytes += self.costs.wire_bytes
        fetch_s = self.costs.worker_collect_s + self.costs.fetch_s + task.request.nbytes / self.costs.bytes_per_s
        self.loop.after(fetch_s, lambda: self._fetch(task))

    def _fetch(self, task: SimulatedTask) -> None:
        worker = task.worker
        if task.released or worker is None or worker.gone or not task.finished:
            return  # it is computed again
        worker.holders.pop(task.key, None)
        worker.clients.add(id(task.cluster))
        task.cluster.connections.add(worker.address)
        task.arrived(task.key, result_of(task.request, task.key))

    def lose(self, addresses: Collection[str]) -> None:
        """Workers die: what they ran, had queued or held is assigned anew."""
        for address in addresses:
            worker = self.members.pop(address)
            worker.gone = True
            lost = [*worker.running.values(), *(task for _, _, task in worker.waiting), *worker.holders.values()]
            for task in lost:
                if not task.released and task.worker is worker:
                    task.finished, task.worker = False, None
                    self.serve(self.costs.task_s / 2, lambda task=task: self._assign(task))  # type: ignore[misc]


class SimulatedCluster:
    """What a feeder sees of the cluster; see `feedline.service.cluster.cluster.Cluster`."""

    packed, number, trainers, on_block = True, 0, 1, None

    def __init__(self, scheduler: SimulatedScheduler, *, has_route: bool = True) -> None:
        self.scheduler = scheduler
        self.has_route = has_route
        self.share = FairShare()
        self.connections: set[str] = set()
        self._numbers = itertools.count()

    def start(self, submission: Submission) -> SimulatedTask:
        """Submit a task, which hands over no first rows."""
        each = submission
        restriction = None if each.workers is None else frozenset(each.workers)
        internal = (-each.priority, next(self._numbers))
        task = SimulatedTask(each.key, each.request, internal, each.arrived, self, restriction)
        self.scheduler.submit(task)
        return task

    def members(self) -> frozenset[str]:
        return frozenset(self.scheduler.members)

    def eligible_workers(self) -> frozenset[str] | None:
        return self.share.route or None

    def threads_per_trainer(self) -> int:
        """This feeder's part of the threads, as the scheduler answered; before, all."""
        return self.share.threads(self.scheduler.size.threads)

    def now_s(self) -> float:
        """The scheduler's clock."""
        return self.scheduler.loop.now_s

    def alive(self) -> bool:
        return True

    def workers_of(self, keys: Collection[str]) -> dict[str, str]:
        """The worker that runs each task."""
        return {
            key: worker.address for worker in self.scheduler.members.values() for key in worker.running if key in keys
        }

    def stacks_of(self, keys: Collection[str]) -> dict[str, Sequence[str]]:
        return {}

    def exclude(self, worker: str, why: str) -> None:
        raise AssertionError(f"no worker is to blame: {worker}, {why}")


class SimulatedRank:
    """A feeder on the simulated cluster: it is called when a block arrives, and when it wants to be."""

    def __init__(
        self, loop: Loop, cluster: SimulatedCluster, workload: Workload, schedule: Schedule, **options: Any
    ) -> None:
        self.loop, self.cluster = loop, cluster
        self._due_s = float("inf")
        self.stopped = False
        self.feeder = RankFeeder(
            cluster, workload, schedule, clock=lambda: loop.now_s, wake=self._wake, start_s=loop.now_s, **options
        )
        first_s = (self.feeder.lane % 16) / 16
        loop.after(first_s, self._report)  # as when it has connected: blocks follow the answer
        loop.after(first_s + 4 * cluster.scheduler.costs.collect_s, self._advance)

    def _wake(self) -> None:
        self.loop.after(0.0, self._advance)

    def _advance(self) -> None:
        if self.stopped:
            return
        due_s = self.feeder.advance(self.loop.now_s)
        if not self.loop.now_s <= self._due_s <= due_s:
            self._due_s = due_s
            self.loop.at(due_s, self._on_time)

    def _on_time(self) -> None:
        self._due_s = float("inf")
        self._advance()

    def _report(self) -> None:
        if self.stopped:
            return
        scheduler, share = self.cluster.scheduler, self.cluster.share
        report = replace(self.feeder.report(self.loop.now_s), route=route_digest(share.route))

        def take() -> None:
            workers = scheduler.members.keys() if self.cluster.has_route else frozenset()
            share.update(scheduler.book.record(report, self.loop.now_s, scheduler.size, workers), self.loop.now_s)

        costs = scheduler.costs
        self.loop.after(costs.collect_s, lambda: scheduler.serve(costs.report_s, take))
        self.loop.after(REPORT_S, self._report)

    def close(self) -> None:
        self.stopped = True
        self.feeder.delivery.close()
