"""What computes the blocks of a simulated feeder: worker processes of its host, or those of a Dask scheduler.

The pool is the real one, and so is a seat's code in its processes: only processes are actors, and a block's result is
known. Of Dask, the scheduler and the client are played: what they do to tasks when workers and schedulers come and go.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from virtual_time import Process, SeatSocket, World

from feedline.blocks.request import BlockRequest, BlockResult, Job, PackedRequest
from feedline.errors import ClusterError, DataError
from feedline.loader.encoding.block_times import BlockTimes
from feedline.service.cluster.attempts import Outcome, failure_of
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.open_cluster import WorkerCluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.cluster.task_places import TaskPlaces
from feedline.service.pool import block_process
from feedline.service.scheduler.job_book import ClusterSize

if TYPE_CHECKING:
    from prepared_plan import PreparedPlan

# Attempts at a block that are made to fail: of four, the last one succeeds; two workers that agree would be believed.
_MOST_FAILURES, _MOST_OF_WORKERS = 2, 1
BROKEN = "this block is broken"


@dataclass(eq=False)
class Computing:
    """How blocks are computed. block_s: their time, about. slow_share: of those that take tens of seconds. flaky_share:
    of attempts that fail. poisoned: the block that fails wherever it is computed, by its first row."""

    world: World
    plan: PreparedPlan
    block_s: float
    slow_share: float
    flaky_share: float
    poisoned: tuple[int, int] | None  # lane and index
    failures: dict[str, int] = field(default_factory=dict)  # so far, by block
    under_way: dict[int, str] = field(default_factory=dict)  # blocks by the process that computes them
    grace_s: float = 0.0  # that faults may have cost

    def duration_s(self) -> float:
        draw = self.world.random
        if draw.random() < self.slow_share:
            self.grace_s += (slow_s := draw.uniform(5, 60))
            return slow_s
        return self.block_s * draw.uniform(0.5, 2)

    def may_fail(self, block: str, most: int = _MOST_FAILURES) -> bool:
        """Whether another failure of the block leaves it an attempt; counts one if so."""
        if self.failures.get(block, 0) >= most:
            return False
        self.failures[block] = self.failures.get(block, 0) + 1
        return True

    def may_die(self, pids: Collection[int]) -> bool:
        """Whether processes may be killed: what they compute has attempts left."""
        blocks = [self.under_way[pid] for pid in pids if pid in self.under_way]
        if any(self.failures.get(each, 0) >= _MOST_FAILURES for each in blocks):
            return False
        for each in blocks:
            self.may_fail(each)
        return True

    def outcome(
        self,
        job: Job | str,
        request: BlockRequest | PackedRequest,
        key: str,
        *,
        packed: bool,
        first_rows: int = 0,
        on_part: Callable[[Any], None] | None = None,
        wait: Callable[[float], None],
        worker: str = "",
        host: str | None = None,
    ) -> Outcome:
        """What an attempt at a block ends with, after its time."""
        request = request.unpack() if isinstance(request, PackedRequest) else request
        block, seconds = block_of(key), self.duration_s()
        result, parts = self.plan.result(job, request, key, packed=packed, first_rows=first_rows)
        for part in parts if on_part is not None else ():
            wait(seconds / (len(parts) + 1))
            assert on_part is not None
            on_part(part)
        wait(seconds / (len(parts) + 1))
        if self.poisoned is not None and block.endswith(f"-l{self.poisoned[0]}-b{self.poisoned[1]}"):
            return failure_of(DataError(BROKEN), worker, host)
        most = _MOST_OF_WORKERS if packed else _MOST_FAILURES
        if self.world.random.random() < self.flaky_share and self.may_fail(block, most):
            self.world.note(f"{block} fails")
            return failure_of(OSError("the mount is gone"), worker, host)
        return replace(result, times=BlockTimes(read_s=seconds, read_cpu_s=seconds / 2))


def block_of(key: str) -> str:
    """The block in the key of an attempt: its stream, lane and index."""
    # feedline-block-simulated-e0-l1-b7-digest-a1-r
    return "-".join(key.split("-")[:-3])


class Spawner:
    """Starts worker processes of a feeder, as the zygote does."""

    def __init__(self, computing: Computing, feeder: Process) -> None:
        self._computing, self._world, self._feeder = computing, computing.world, feeder
        self._workers: dict[int, Process] = {}
        self._ends: list[tuple[int, int]] = []
        self._readable = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_closed = False
        self.refusals = 0  # so many starts fail next
        self.is_alive = True

    def living(self) -> list[Process]:
        return list(self._workers.values())

    def spawn(self, descriptors: Sequence[int], *, threads: int) -> int:
        world = self._world
        if not self.is_alive or (self.refusals and self._workers):
            self.refusals = max(0, self.refusals - 1)
            raise ClusterError("a worker process cannot be forked: no memory is left")
        process = world.process("worker")
        process.name = f"worker {process.pid}"
        self._workers[process.pid] = process
        for descriptor in descriptors:
            seat = SeatSocket(fileno=os.dup(descriptor))
            seat.world = world
            process.sockets.append(seat)
            world.start(process, process.name, lambda seat=seat: block_process._serve(self._compute, seat), seat.close)
        process.on_end.append(lambda: self._on_end(process))
        world.note(f"{process.name} starts")
        return process.pid

    def _compute(self, job: Any, request: Any, key: str, parts: int, send_part: Any) -> Outcome:
        world, computing = self._world, self._computing
        assert world.current is not None
        pid = world.current.process.pid
        computing.under_way[pid] = block_of(key)
        try:
            return computing.outcome(
                job, request, key, packed=False, first_rows=parts, on_part=send_part, wait=world.sleep
            )
        finally:
            computing.under_way.pop(pid, None)

    def _on_end(self, process: Process) -> None:
        self._workers.pop(process.pid, None)

        def tell() -> None:
            self._ends.append((process.pid, -int(signal.SIGKILL)))
            if not self._is_closed:
                os.eventfd_write(self._readable, 1)

        self._world.at(self._world.random.uniform(0, 0.3), f"the end of {process.name} is known", tell)

    def fileno(self) -> int:
        return self._readable

    def ended(self) -> list[tuple[int, int]]:
        os.eventfd_read(self._readable)
        ends, self._ends = self._ends, []
        return ends

    def kill(self, pid: int) -> None:
        if (process := self._workers.get(pid)) is not None:
            self._world.kill(process)

    def close(self) -> None:
        for process in self.living():
            self._world.kill(process)
        self._is_closed = True
        os.close(self._readable)


# --------------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Task:
    """A task of a scheduler. worker: that runs it, or has its result."""

    key: str
    arguments: tuple[Any, ...]
    arrived: Callable[[str, Outcome], None]
    workers: frozenset[str] | None
    priority: int
    worker: str | None = None
    is_released: bool = False
    attempt: int = 0  # changes when it is computed again

    def cancel(self) -> None:
        self.is_released = True


class Scheduler:
    """A Dask scheduler with its workers, as a feeder's client sees it. It outlives feeders."""

    def __init__(self, computing: Computing, workers: int, *, threads: int) -> None:
        self._computing, self._world = computing, computing.world
        self._threads = threads
        self._joined = 0
        self.is_up = True
        self.number = 0
        self.bad: str | None = None  # a worker on which every block fails
        self.workers: dict[str, set[_Task]] = {}
        self._tasks: list[_Task] = []  # that no worker runs
        self._knows_job: set[str] = set()  # workers
        for _ in range(workers):
            self.join()
        if workers > 2 and self._world.random.random() < 0.2:
            self.bad = next(iter(self.workers))

    def join(self) -> None:
        self._joined += 1
        self.workers[f"tcp://10.0.0.{self._joined}:9000"] = set()
        self._assign()

    def leave(self) -> None:
        """A worker dies, with the results that nobody has fetched; its tasks are computed again elsewhere."""
        names = [name for name in self.workers if name != self.bad]
        if len(names) < 3:
            return
        name = self._world.random.choice(names)
        self._world.note(f"{name} leaves")
        for task in sorted(self.workers.pop(name), key=lambda each: each.key):
            task.attempt += 1
            task.worker = None
            self._tasks.append(task)
        self._world.at(self._world.random.uniform(0.1, 20), "a worker joins", self.join)
        self._assign()

    def restart(self, away_s: float) -> None:
        """It forgets all tasks. Its workers end, and come back."""
        self._world.note(f"the scheduler is away for {away_s:.3f} s")
        count, self.is_up, self.bad = len(self.workers), False, None
        for task in [*self._tasks, *(each for running in self.workers.values() for each in running)]:
            task.attempt += 1
        self._tasks.clear()
        self.workers.clear()

        def back() -> None:
            self.is_up = True
            self.number += 1
            for index in range(count):
                self._world.at(index * self._world.random.uniform(0, 2), "a worker joins", self.join)

        self._world.at(away_s, "the scheduler is back", back)

    def submit(self, task: _Task) -> None:
        self._tasks.append(task)
        self._assign()

    def _assign(self) -> None:
        self._tasks = [task for task in self._tasks if not task.is_released]
        for task in sorted(self._tasks, key=lambda each: -each.priority):
            free = [
                name
                for name, running in self.workers.items()
                if (task.workers is None or name in task.workers) and len(running) < self._threads
            ]
            if free:
                self._tasks.remove(task)
                self._run(task, self._world.random.choice(free))

    def _run(self, task: _Task, worker: str) -> None:
        world, attempt = self._world, task.attempt
        task.worker = worker
        self.workers[worker].add(task)
        waits: list[float] = []
        job, request, key, _ = task.arguments
        outcome = self._computing.outcome(
            job, request, key, packed=True, wait=waits.append, worker=worker, host=worker[6:-5]
        )
        if worker == self.bad and isinstance(outcome, BlockResult):
            outcome = failure_of(ValueError("its disk is broken"), worker, worker[6:-5])

        def end() -> None:
            if task.attempt != attempt:
                return  # its worker, or the scheduler, is gone
            self.workers[worker].discard(task)
            self._assign()
            fetch_s = world.random.choice((0.0, world.random.uniform(0, 2)))
            lost = world.random.random() < self._computing.flaky_share / 2
            world.at(fetch_s, f"{block_of(key)} arrives", lambda: tell(None if lost else outcome))

        def tell(outcome: Outcome) -> None:
            if not task.is_released:
                task.arrived(key, outcome)

        world.at(sum(waits), f"{block_of(key)} ends on {worker}", end)

    def places_of(self, keys: Collection[str]) -> Future[TaskPlaces | None]:
        future: Future[TaskPlaces | None] = Future()

        def answer() -> None:
            running = {each.key: name for name, tasks in self.workers.items() for each in tasks if each.key in keys}
            if not future.cancelled():
                future.set_result(TaskPlaces(running, {}) if self.is_up else None)

        self._world.at(self._world.random.uniform(0, 5), "the scheduler says where tasks are", answer)
        return future


class SimulatedWorkers(WorkerCluster):
    """The real cluster of Dask workers, over a client that is played."""

    def __init__(self, request: ClusterRequest, scheduler: Scheduler) -> None:
        Cluster.__init__(self, request)
        self._scheduler = scheduler
        self._connecting: Future[Any] = Future()
        self._connecting.set_result(self)
        self._start = None
        self._is_checked = True
        nothing = SimpleNamespace(address=None, fileno=lambda: -1, advance=lambda: None, close=lambda: None)
        self._shared: Any = nothing
        self.connected = SimpleNamespace(start=self._submit, look=lambda waiting: None)

    @property
    def _connected(self) -> Any:  # type: ignore[override]
        return self.connected

    @property
    def dask(self) -> None:  # type: ignore[override]
        return None

    @property
    def connection(self) -> Any:
        return SimpleNamespace(
            number=self._scheduler.number,
            alive=lambda: self._scheduler.is_up,
            members=lambda: frozenset(self._scheduler.workers),
            threads=lambda: max(1, len(self._scheduler.workers)),
            places_of=lambda keys, among, stacks: self._scheduler.places_of(keys),
        )

    def size(self) -> ClusterSize:
        return ClusterSize(workers=len(self._scheduler.workers), threads=self.threads())

    def _submit(
        self,
        _function: Any,
        *arguments: Any,
        key: str,
        arrived: Any,
        priority: int,
        workers: Sequence[str] | None = None,
    ) -> _Task | None:
        if not self._scheduler.is_up:
            return None
        task = _Task(key, arguments, arrived, None if workers is None else frozenset(workers), priority)
        self._scheduler.submit(task)
        return task

    def close(self) -> None:
        """The client leaves, and its tasks with it: its deliveries have released them."""
