"""Compute blocks ahead of the trainer, in a bounded window of tasks in plan order.

Runs in: the feeder. `pump` submits blocks, `get` returns a block's rows, `drop` forgets it, `look` resubmits late and
lost blocks. Results arrive in any thread, which queues them and wakes the feeder. Each attempt at a block has
its own key (Dask keeps an error with its key); the first result of a block wins, and other attempts are cancelled.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future

from feedline.blocks.compute import unpack_block
from feedline.blocks.request import BlockRequest, BlockResult, Job
from feedline.dataclass import dataclass
from feedline.errors import ClusterError
from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.loader.wire.facts import BlockStats
from feedline.planning.epoch_schedule import EpochSchedule
from feedline.planning.plan import Plan
from feedline.planning.schedule import Block
from feedline.service.cluster.attempts import FirstRows, Outcome, Submission
from feedline.service.cluster.blame import BlockFailure, Retry, among, decide_retry, elsewhere
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.task_places import TaskPlaces, answer_of
from feedline.service.feeder.block_work import (
    BlockAttempt,
    BlockWork,
    MissingBlocks,
    block_key,
    block_name,
)
from feedline.service.feeder.timing import FinishedBlocks, Priorities, overdue_after_s
from feedline.service.feeder.window import Window
from feedline.service.monitoring.block_counts import count_block
from feedline.service.monitoring.finished_block import FinishedBlock

logger = logging.getLogger(__name__)

_LATE = "a block has taken more than %.0f s on %s: it is also computed on another worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBlocks:
    """The blocks of one stream (a rank's lanes from a step on), in plan order, and what their tasks are given. name: of
    the stream, in keys and messages. batch_rows: of a step, to be ready first (0: none)."""

    name: str
    blocks: Iterator[Block]
    job_of: Callable[[Block], Job]
    request: Callable[[Block], BlockRequest]
    layout: SlotLayout
    batch_rows: int = 0

    @classmethod
    def of(
        cls, plan: Plan, epoch: int, lanes: range, *, schedule: EpochSchedule | None = None, first_step: int = 0
    ) -> StreamBlocks:
        """Those of a plan. schedule: of the epoch (default: computed)."""
        schedule = plan.schedule(epoch) if schedule is None else schedule
        return cls(
            name=f"{plan.name}-e{epoch}",
            blocks=schedule.blocks_of(lanes, first_step=first_step),
            job_of=plan.job_of,
            request=lambda block: plan.request(block, epoch),
            layout=plan.layout,
            batch_rows=schedule.batch_size,
        )


class Delivery:
    """The blocks of one stream. next_block: to be submitted (None: all are)."""

    def __init__(
        self,
        cluster: Cluster,
        stream: StreamBlocks,
        *,
        window: Window,
        wake: Callable[[], None],
        stats: BlockStats,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._stream = cluster, stream
        self._window, self._wake, self._clock = window, wake, clock
        self.next_block: Block | None = next(stream.blocks, None)
        self._work: dict[tuple[int, int], BlockWork] = {}
        self._ends: list[tuple[int, tuple[int, int]]] = []  # a heap of the same blocks, by their last steps
        self._running: dict[str, BlockWork] = {}  # by key, an entry per attempt
        self._unsubmitted: list[BlockWork] = []  # while the scheduler does not answer
        self._connection = cluster.number
        self._outcomes: list[tuple[str, Outcome, float]] = []  # appended to by the threads of tasks
        self._closed = False
        self._lock = threading.Lock()
        self._places: Future[TaskPlaces | None] | None = None  # of late blocks, asked for
        self._finished = FinishedBlocks()
        self._priorities = Priorities()
        self.stats = stats
        self.is_due = True  # whether `pump` may have something to do, because of what has come or gone

    @property
    def held_bytes(self) -> int:
        return sum(rows.nbytes for work in self._work.values() for rows in work.rows or ())

    def pump(self, step: int, *, step_s: float = 0.0, delay_s: float = 0.0) -> None:
        """Submit blocks while the window has room, and always those that `step` needs: the trainer will ask for it in
        `delay_s` seconds, and takes `step_s` per step."""
        self.is_due = False
        self._priorities.begin(step, step_s, delay_s)
        self._resubmit()
        threads, stream = self._cluster.threads_per_trainer(), self._stream
        while self.next_block is not None and (
            self._window.has_room(self._window.in_flight, threads=threads) or self.lacks(step)
        ):
            block, self.next_block = self.next_block, next(stream.blocks, None)
            key = block.lane, block.index
            self._work[key] = work = BlockWork(block, stream.job_of(block), stream.request(block))
            heapq.heappush(self._ends, (block.last_step, key))
            self._window.in_flight += 1
            urgency = self._priorities.next(block.first_step, *self._times_s())
            self._submit(work, urgency, self._cluster.eligible_workers())

    def lacks(self, step: int) -> bool:
        return self.next_block is not None and self.next_block.first_step <= step

    def get(self, lane: int, index: int) -> tuple[Rows, ...] | None:
        """The block's rows; its first ones, or None, while it is computed. Raises the error of a block that failed."""
        if self._outcomes:
            self._collect()
        return self._work[lane, index].result()

    def drop(self, step: int) -> list[tuple[Block, Quality]]:
        """Forget the blocks that no step after `step` needs; returns them with their quality counts."""
        works = list[BlockWork]()
        while self._ends and self._ends[0][0] <= step:
            works.append(self._work.pop(heapq.heappop(self._ends)[1]))
        self.is_due |= bool(works)
        self._window.in_flight -= len(works)
        for work in works:
            self._forget(work)  # resumed at a late step, `tail: drop` may leave out all rows of a block from there on
            work.release()
        return [(work.block, work.quality) for work in works if work.quality is not None]

    def look(self, *, starved: bool = False) -> None:
        """Collect results, and resubmit lost and late blocks, once a second. starved: the trainer waits for a block."""
        self._collect()
        self._resubmit()
        if not self._cluster.alive():
            return
        for work, attempt in _stranded(self._work.values(), self._cluster):
            self._cancel(work, attempt)
            if not work.attempts:
                self._submit_again(work, self._cluster.eligible_workers())
        if starved:
            self._hedge()
        else:
            self._places = None

    def missing(self, step: int) -> MissingBlocks:
        """The blocks that the step lacks, and where they are, which the scheduler is asked for."""
        works = [work for work in self._work.values() if work.block.first_step <= step and work.rows is None]
        attempts = [attempt for work in works for attempt in work.attempts]
        return MissingBlocks(works, _ask_places(attempts, self._cluster, stacks=True), self._clock)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for work in self._work.values():
            self._forget(work)
            work.release()
        self._window.in_flight -= len(self._work)
        self._work.clear()
        self._ends.clear()

    # -- submitting -----------------------------------------------------------------------------------------------

    def _submit(self, work: BlockWork, priority: int, workers: frozenset[str] | None, slow: str = "") -> None:
        key = block_key(self._stream.name, work, packed=self._cluster.packed)
        # Workers hold the job since `check_job`. One that joined later or has evicted it gets it with the next attempt.
        job = work.job if work.submissions else work.job.digest
        work.submissions += 1
        workers = None if workers is None else self._cluster.share.take_turn(workers)
        is_due = work.block.first_step <= self._priorities.step and self._window.limits.open_blocks == 1
        hands_over = is_due and work.submissions == 1  # one that failed may have killed a process: in no thread of this
        submission = Submission(
            job=job,
            request=work.request,
            key=key,
            arrived=self._queue,
            first_rows=self._stream.batch_rows if hands_over else 0,
            priority=priority,
            workers=workers,
        )
        task = self._cluster.start(submission)
        if task is None:
            self._unsubmitted.append(work)
        else:
            self._running[key] = work
            work.attempts.append(BlockAttempt(key, task, self._clock(), workers, slow))

    def _submit_again(self, work: BlockWork, workers: frozenset[str] | None, slow: str = "") -> None:
        self.stats.resubmitted += 1
        self._submit(work, self._priorities.of(work.block.first_step, *self._times_s()), workers, slow)

    def _times_s(self) -> tuple[float, float]:
        """The scheduler's clock, and the virtual start of a block that is submitted now."""
        in_flight = len(self._running) * self._cluster.trainers  # whose windows are about alike
        return self._cluster.now_s(), self._cluster.share.start_s(self._window.block_s, in_flight)

    def _resubmit(self) -> None:
        lost = self._connection != self._cluster.number
        if not (lost or self._unsubmitted) or not self._cluster.alive():
            return
        works, self._unsubmitted = self._unsubmitted, []
        if lost:
            self._connection, self._places = self._cluster.number, None
            works = [work for work in self._work.values() if work.rows is None]
            for work in works:
                self._forget(work)
        for work in works:
            if work.due_s > self._clock():
                self._unsubmitted.append(work)
            elif work.rows is None and work.error is None and not work.attempts and self._holds(work):
                self._submit_again(work, self._cluster.eligible_workers())

    def _holds(self, work: BlockWork) -> bool:
        """Whether the block has not been dropped."""
        return (work.block.lane, work.block.index) in self._work

    def _hedge(self) -> None:
        """Compute an overdue block that the trainer needs on another worker too, with other late ones of its worker,
        once the scheduler has said where they are."""
        limit_s = overdue_after_s(self._finished.median_s)
        late = [work for work in self._work.values() if work.late_s(self._clock()) >= limit_s]
        due = [work for work in late if work.block.first_step <= self._priorities.step]
        if due and self._places is None:
            self._places = _ask_places([work.attempts[0] for work in late], self._cluster, stacks=False)
        if not due or self._places is None or not self._places.done():
            return
        places, self._places = answer_of(self._places), None
        slow, others = _slow_and_other_workers(due, places, self._cluster)
        for work in late if others else ():
            worker = None if places is None else places.workers.get(work.attempts[0].key)
            if worker in slow:
                logger.warning(_LATE, limit_s, worker)
                work.hedged = True
                self._submit_again(work, others, slow=worker * self._finished.overtook(work.attempts[0].submitted_s))

    # -- results --------------------------------------------------------------------------------------------------

    def _queue(self, key: str, outcome: Outcome) -> None:
        """Queue an outcome for `_collect`. Runs in the thread that brings it."""
        with self._lock:
            if not self._closed:
                self._outcomes.append((key, outcome, self._clock()))
                self._wake()

    def _collect(self) -> None:
        self.is_due = True
        with self._lock:
            outcomes, self._outcomes = self._outcomes, []
        for key, outcome, now_s in outcomes:
            work = self._running.get(key)
            if work is None:
                continue  # of a cancelled attempt
            attempt = next(each for each in work.attempts if each.key == key)
            if isinstance(outcome, BlockResult):
                self._keep(work, attempt, outcome, now_s)
                continue
            if isinstance(outcome, FirstRows):
                work.first = outcome.parts
                continue
            self._cancel(work, attempt)
            failure = work.fail(outcome)
            if not work.attempts:
                self._retry(work, failure)

    def _retry(self, work: BlockWork, failure: BlockFailure | None) -> None:
        if failure is None:  # not the fault of the block or a worker
            self._submit_again(work, self._cluster.eligible_workers())
            return
        members = self._cluster.members() if self._cluster.packed else ()
        if self._cluster.packed and not members:  # no scheduler: whether the block is to blame cannot be decided yet
            self._unsubmitted.append(work)
            return
        decision = decide_retry(block_name(self._stream.name, work), work.failures, members)
        if not isinstance(decision, Retry):
            work.give_up(decision, packed=self._cluster.packed, wake=self._wake)
            return
        logger.warning("a block failed on %s (%s): it is computed again", failure.host or "a worker", failure)
        if failure.kind == "unfit":
            self._cluster.exclude(failure.worker, str(failure))
        work.due_s = self._clock() + decision.after_s
        if decision.after_s:
            self._unsubmitted.append(work)
        else:
            self._submit_again(work, among(decision.workers, self._cluster.eligible_workers()))

    def _keep(self, work: BlockWork, attempt: BlockAttempt, result: BlockResult, now_s: float) -> None:
        _refuse_other_block(result, attempt.key, work.request.rows)
        self._finished.add(attempt.submitted_s, now_s)
        _exclude_others(work, attempt, self._cluster)
        if not self._cluster.packed:  # its result is what `rows` refers to
            del self._running[attempt.key]
            work.hold(attempt)
        self._forget(work)
        work.rows, work.first = unpack_block(self._stream.layout, result), None
        work.quality = result.quality
        self._cluster.share.computed(result.times.thread_s)
        self._window.record(result.times.thread_s, result.nbytes)
        count_block(self.stats, result, now_s - attempt.submitted_s)
        if self._cluster.on_block is not None:
            finished = FinishedBlock(
                name=block_name(self._stream.name, work),
                block=work.block,
                result=result,
                submitted_s=attempt.submitted_s,
                arrived_s=now_s,
                attempts=work.submissions,
            )
            self._cluster.on_block(finished)

    def _forget(self, work: BlockWork) -> None:
        for attempt in list(work.attempts):
            self._cancel(work, attempt)

    def _cancel(self, work: BlockWork, attempt: BlockAttempt) -> None:
        work.attempts.remove(attempt)
        self._running.pop(attempt.key, None)
        attempt.task.cancel()


def _stranded(works: Iterable[BlockWork], cluster: Cluster) -> list[tuple[BlockWork, BlockAttempt]]:
    """The attempts that may only run on workers that have left."""
    restricted = [work for work in works if work.is_outside(cluster.share.route)]
    members = cluster.members() if restricted else frozenset()
    attempts = [(work, each) for work in restricted for each in work.attempts if each.workers is not None]
    return [(work, each) for work, each in attempts if members and (each.workers or members).isdisjoint(members)]


def _slow_and_other_workers(
    due: Sequence[BlockWork], places: TaskPlaces | None, cluster: Cluster
) -> tuple[set[str], frozenset[str] | None]:
    """The workers on which blocks are late that are due, and those that may compute them, too."""
    workers = {} if places is None else places.workers
    slow = {workers[work.attempts[0].key] for work in due if work.attempts[0].key in workers}
    return slow, among(elsewhere(slow, cluster.members()), cluster.eligible_workers())


def _exclude_others(work: BlockWork, attempt: BlockAttempt, cluster: Cluster) -> None:
    """Exclude the workers that are to blame for a block that this attempt has computed."""
    for failure in work.failures:
        if failure.worker:
            cluster.exclude(failure.worker, f"another worker computed the block that failed there: {failure}")
    if attempt.slow:
        cluster.exclude(attempt.slow, "another worker was much faster")


def _refuse_other_block(result: BlockResult, key: str, rows: int) -> None:
    if (result.key, result.rows) != (key, rows):
        raise ClusterError(
            f"a block has another identity: got {result.key} with {result.rows} rows, expected {key} with {rows}"
        )


def _ask_places(attempts: Sequence[BlockAttempt], cluster: Cluster, *, stacks: bool) -> Future[TaskPlaces | None]:
    """Where attempts are, once it is known. Only the workers that may run one are asked about."""
    allowed = [attempt.workers for attempt in attempts]
    asked = None if None in allowed else frozenset().union(*filter(None, allowed))
    return cluster.places_of([attempt.key for attempt in attempts], asked, stacks=stacks)
