"""Blocks that are computed on this host: in threads of this process, or in worker processes.

Runs in: the feeder. Trainers that hold the same key share a task. A block that a trainer waits for is handed over in
parts while the rest of it is computed.
"""

from __future__ import annotations

import logging
import platform
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from functools import partial

from feedline.blocks.block_encoder import HandOver
from feedline.blocks.request import BlockResult
from feedline.dataclass import dataclass
from feedline.errors import ClusterError
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.service.cluster.attempts import Arrived, FirstRows, Outcome, Submission, attempt_block, failure_of
from feedline.service.cluster.blame import BlockFailure
from feedline.service.pool.block_pool import BlockCall, BlockPool

logger = logging.getLogger(__name__)

# Strings on two cores: two threads wait for 7 to 9 % of their time, and two processes are 1.17 times as fast once they
# are warm. Lists: 4 %, 1.04; wide tables: 4 %, 0.92; flat ones: 0 %, 0.85.
_LONG_WAITS, _MEASURED_S = 0.06, 3.0


@dataclass(slots=True, eq=False)
class LocalTask:
    """A task, which its holders share. waiting: who gets its outcome, once it is there (`done`), and before that its
    `parts`."""

    tasks: LocalTasks
    key: str
    holders: int = 0
    waiting: list[Arrived] = field(default_factory=list)
    parts: tuple[Rows, ...] = ()
    done: bool = False
    outcome: Outcome = None

    def cancel(self) -> None:
        """Release one hold; without another the task is cancelled, and its outcome dropped."""
        self.tasks.release(self)


class LockWaits:
    """How long the blocks of threads that share an interpreter have waited for its lock: neither for a store, nor ready
    to run without a core. skipped: first blocks, for which all threads wait together while a job is compiled."""

    def __init__(self, *, skipped: int) -> None:
        self._skipped = skipped
        self._lock = threading.Lock()
        self._times = BlockTimes()

    def add(self, times: BlockTimes) -> None:
        """Count a block. Called by any thread."""
        with self._lock:
            if self._skipped:
                self._skipped -= 1
            else:
                self._times += times

    @property
    def share(self) -> float:
        """Of the time of all blocks."""
        times = self._times
        waited_s = times.thread_s - times.cpu_s - times.fetch_s - times.contended_s
        return waited_s / times.thread_s if times.thread_s else 0.0

    @property
    def are_long(self) -> bool:
        """Whether processes, which do not wait, would be faster, warm as they are after seconds."""
        return self._times.thread_s >= _MEASURED_S and self.share > _LONG_WAITS

    def __str__(self) -> str:
        return f"for {self.share:.0%} of {self._times.thread_s:.1f} s"


class LocalTasks:
    """The tasks that are held. threads: the most that compute at once. pool: of worker processes (None: threads compute
    all); before it has computed any block, a thread computes those that trainers wait for. threads_first: threads
    compute all until they have waited for each other. `start` and `release` are called by one thread."""

    def __init__(self, threads: int, pool: BlockPool | None = None, *, threads_first: bool = False) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="feedline-block")
        self._pool = pool
        self._waits = LockWaits(skipped=2 * threads) if threads_first else None
        self._lock = threading.Lock()
        self._entries: dict[str, LocalTask] = {}

    def start(self, submission: Submission) -> LocalTask:
        """Start a task, or share the one of this key. Raises ClusterError if no process can be started for it."""
        key, arrived = submission.key, submission.arrived
        with self._lock:
            task = self._entries.get(key)
            if task is None:
                task = self._entries[key] = LocalTask(self, key)
            task.holders += 1
        if task.holders == 1:
            try:
                self._submit(task, submission)
            except ClusterError:
                self.release(task)
                raise
        with self._lock:
            if task.parts and not task.done:
                arrived(key, FirstRows(task.parts))
            if not task.done:
                task.waiting.append(arrived)
                return task
        arrived(key, task.outcome)
        return task

    def _submit(self, task: LocalTask, submission: Submission) -> None:
        first_rows = submission.first_rows
        if self._waits is not None and self._waits.are_long:
            logger.info("blocks are computed by processes: threads waited for each other %s", self._waits)
            self._waits = None
        if self._pool is None or self._waits is not None or (first_rows and not self._pool.has_computed):
            hand_over = HandOver(first_rows, partial(self._hand_over, task)) if first_rows else None
            self._threads.submit(self._run, task, submission, hand_over)
            return
        self._pool.start(
            BlockCall(
                key=task.key,
                job=submission.job,
                request=submission.request,
                parts=first_rows,
                among=submission.workers,
                is_wanted=lambda: task.holders > 0,
                on_part=partial(self._hand_over, task),
                on_result=partial(self._finish, task),
                on_death=partial(self._die, task),
            )
        )

    def _run(self, task: LocalTask, submission: Submission, hand_over: HandOver | None) -> None:
        """Run a task in its thread, if somebody still holds it."""
        if not task.holders:
            return
        try:
            outcome: Outcome = attempt_block(submission.job, submission.request, task.key, False, hand_over)
        except Exception as error:
            outcome = failure_of(error, "")
        if (waits := self._waits) is not None and isinstance(outcome, BlockResult):
            waits.add(outcome.times)
        self._finish(task, outcome)

    def _die(self, task: LocalTask, process: str, why: str) -> None:
        name, host = "WorkerDied", platform.node()
        self._finish(task, BlockFailure(kind="killed", ours=False, name=name, message=why, worker=process, host=host))

    def _hand_over(self, task: LocalTask, part: Rows) -> None:
        with self._lock:
            task.parts = (*task.parts, part)
            for arrived in task.waiting:
                arrived(task.key, FirstRows(task.parts))

    def _finish(self, task: LocalTask, outcome: Outcome) -> None:
        with self._lock:
            if task.done or not task.holders:
                return
            task.done, task.outcome, task.parts = True, outcome, ()
            waiting, task.waiting = task.waiting, []
        for arrived in waiting:
            arrived(task.key, outcome)

    def release(self, task: LocalTask) -> None:
        with self._lock:
            task.holders -= 1
            if not task.holders:
                del self._entries[task.key]

    def close(self) -> None:
        """Cancel what no thread has started, and wait for the rest."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._pool is not None:
            self._pool.close()
