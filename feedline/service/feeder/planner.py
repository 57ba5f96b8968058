"""Resolve the plans of a feeder's trainers, once for all that ask for the same one, and order their epochs.

Runs in: the feeder, in a thread of its own, one request after the other, so that neither other trainers nor questions
about a plan wait for it. Plans and schedules live as long as a session uses them. What the thread does is described by
the calls in it, so that no code on the way has to report.
"""

from __future__ import annotations

import inspect
import queue
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import CodeType
from typing import TypeAlias, TypeVar, cast

from feedline.dataclass import dataclass
from feedline.errors import PlanError
from feedline.loader.wire.facts import Hello
from feedline.loader.wire.run_status import FILES_PHASE
from feedline.planning.agreement import RunStart
from feedline.planning.artifact_choice import fit_artifacts
from feedline.planning.epoch_schedule import EpochSchedule
from feedline.planning.next_epoch_snapshot import NothingLandedError
from feedline.planning.plan import Plan
from feedline.planning.resolve import start_of
from feedline.planning.schedule import Schedule
from feedline.planning.source_plan import SourcePlan
from feedline.progress import Progress, log_progress, on_progress
from feedline.service.cluster.outage import WAITING
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.selection.select import select_rows
from feedline.warehouse.snapshot.footer_tasks import read_footers
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of

# The plan that a hello asks for, in a start; one of those given, if it is among them.
Resolve: TypeAlias = Callable[[Hello, RunStart, Sequence[Plan]], Plan]
# Checks what a rank has agreed on; whether it should look again later.
Verify: TypeAlias = Callable[[RunStart], bool]

T = TypeVar("T")

_FIRST_LOOK_S, _LONGEST_LOOK_S = 1.0, 60.0
_LONGEST_WAIT_S = 30.0  # between two looks at a table from which nothing has landed
_AFTER_END_S = 0.1
_END_S = 5.0  # time for a request under way when the feeder ends
# What a thread does in one of these functions; the innermost call decides.
_ACTIVITIES: tuple[tuple[str, Sequence[Callable[..., object]]], ...] = (
    ("lists the table", [list_table]),
    ("reads footers of the table's files", [read_footers]),
    ("takes or reads the table's snapshot", [snapshot_of, Snapshot.load, Snapshot.read, Snapshot.save]),
    ("counts the rows that the filter and the sample keep", [select_rows]),
    ("fits artifacts", [fit_artifacts]),
    ("orders the epoch's rows", [Plan.schedule, SourcePlan.schedule, Schedule.open_blocks]),
)
_ACTIVITY_OF = {inspect.unwrap(each).__code__: words for words, functions in _ACTIVITIES for each in functions}


class _Planned:
    """A plan that sessions use, and its schedules by epoch."""

    def __init__(self, plan: Plan) -> None:
        self.plan = weakref.ref(plan)
        self.schedules: weakref.WeakValueDictionary[int, EpochSchedule] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class EpochPlan:
    plan: Plan
    schedule: EpochSchedule


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that waits for files to land: since when, and when it looks again."""

    run: Callable[[], object]
    since_s: float
    due_s: float = 0.0
    pause_s: float = 0.0
    reason: str = ""

    def look_later(self, nothing: NothingLandedError, now_s: float) -> None:
        """Look again after a pause that grows, but soon after the moment at which the run ends."""
        self.reason = str(nothing)
        self.pause_s = min(max(2 * self.pause_s, _FIRST_LOOK_S), _LONGEST_WAIT_S)
        self.due_s = now_s + self.pause_s
        if nothing.ends_in_s is not None:
            self.due_s = min(self.due_s, now_s + nothing.ends_in_s + _AFTER_END_S)


class Planner:
    """Plans for several sessions, in a thread of its own. job: the digest under which the ranks of a start agree.
    `done` is called when an answer, or its error, is there, in any thread."""

    def __init__(
        self,
        resolve: Resolve,
        *,
        job: str,
        verify: Verify = lambda start: False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resolve = resolve
        self._verify = verify
        self._job = job
        self._now_s = now_s
        self._progress: Progress | None = None  # of the request under way, or the last one
        self._began_s = time.monotonic()
        self._waiting: list[_Waiting] = []  # for files that land
        self._is_idle = True
        self._planned: list[_Planned] = []
        self._requests: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="feedline-planner", daemon=True)
        self._thread.start()

    def plan(self, hello: Hello, done: Callable[[], None]) -> tuple[Future[Plan], Agreement]:
        """The plan that answers a hello, and what its rank agrees on with others for it."""
        start = start_of(hello, job=self._job)
        return self._submit(lambda: self._plan(hello, start), done), Agreement(self, start, done)

    def schedule(self, plan: Plan, epoch: int, lanes: range, done: Callable[[], None]) -> Future[EpochSchedule]:
        """The epoch's schedule, one for all sessions. Raises PlanError where it has no step."""
        return self._submit(lambda: self._schedule(plan, epoch, lanes), done)

    def next_epoch(self, hello: Hello, lanes: range, done: Callable[[], None]) -> Future[EpochPlan]:
        """The plan and the schedule of an epoch of a followed table, which a hello names, once it has rows. Raises
        PlanError where the run ends before it."""
        start = start_of(hello, job=self._job)
        return self._submit(lambda: self._next_epoch(hello, start, lanes), done)

    def verify(self, start: RunStart, done: Callable[[], None]) -> Future[bool]:
        """Whether a rank should look again later at what it has agreed on. Raises PlanError where that has changed."""
        return self._submit(lambda: self._verify(start), done)

    @property
    def progress(self) -> Progress | None:
        """That of the request under way, or of the wait for files to land; None if nothing is known."""
        waiting = next(iter(self._waiting), None) if self._is_idle else None
        if waiting is None:
            return self._progress
        seconds = int(time.monotonic() - waiting.since_s)
        return Progress(phase=FILES_PHASE, done=seconds, total=None, unit="s")

    def describe(self) -> str:
        if self._is_idle and self._waiting:
            waiting = self._waiting[0]
            return (
                f"it has waited {time.monotonic() - waiting.since_s:.0f} s for files to land at the epoch's border: "
                f"{waiting.reason}. It looks again every {waiting.pause_s:.0f} s"
            )
        frame = sys._current_frames().get(self._thread.ident or 0)
        calls = [] if frame is None else [each.f_code for each, _ in traceback.walk_stack(frame)]
        text = f"it has been planning for {time.monotonic() - self._began_s:.0f} s, and {activity(calls)}"
        return text if self._progress is None else f"{text} ({self._progress.text()})"

    def _note(self, progress: Progress) -> None:
        self._progress = progress
        log_progress(progress)

    def close(self) -> None:
        """Take no more requests, and wait for the one under way, which the cluster's end interrupts."""
        self._requests.put(None)
        self._thread.join(_END_S)

    def _submit(self, answer: Callable[[], T], done: Callable[[], None]) -> Future[T]:
        future: Future[T] = Future()

        def run() -> bool:
            if future.cancelled():
                return True
            result: T | None = None
            failure: Exception | None = None
            self._began_s, self._progress = time.monotonic(), None
            try:
                with on_progress(self._note):
                    result = answer()
            except NothingLandedError:
                raise
            except Exception as error:
                failure = error
            if future.set_running_or_notify_cancel():
                if failure is None:
                    future.set_result(cast("T", result))
                else:
                    future.set_exception(failure)
                done()
            return True

        self._requests.put(run)
        return future

    def _work(self) -> None:
        while self._work_once():  # whose variables would keep the last plan alive
            pass

    def _work_once(self) -> bool:
        """Answer a request, or look again for one that waits for files to land. False at the end."""
        self._is_idle = True
        due_s = min((each.due_s for each in self._waiting), default=None)
        try:
            timeout_s = None if due_s is None else max(0.0, due_s - self._now_s())
            run = self._requests.get(timeout=timeout_s)
            if run is None:
                return False
            waiting = _Waiting(run=run, since_s=time.monotonic())
        except queue.Empty:
            waiting = min(self._waiting, key=lambda each: each.due_s)
            self._waiting.remove(waiting)
        self._is_idle = False
        try:
            waiting.run()
        except NothingLandedError as nothing:
            waiting.look_later(nothing, self._now_s())
            self._waiting.append(waiting)
        return True

    def _plan(self, hello: Hello, start: RunStart) -> Plan:
        planned = [each for each in self._planned if each.plan() is not None]
        plans = [plan for each in planned if (plan := each.plan()) is not None]
        plan = self._resolve(hello, start, plans)
        if not any(plan is each for each in plans):
            planned = [*planned, _Planned(plan)]
        self._planned = planned
        return plan

    def _next_epoch(self, hello: Hello, start: RunStart, lanes: range) -> EpochPlan:
        plan = self._plan(hello, start)
        assert hello.epoch is not None
        if plan.epoch != hello.epoch:
            raise PlanError(f"the run ends before epoch {hello.epoch}: nothing more has landed")
        return EpochPlan(plan, self._schedule(plan, hello.epoch, lanes))

    def _schedule(self, plan: Plan, epoch: int, lanes: range) -> EpochSchedule:
        schedules = next(each.schedules for each in self._planned if each.plan() is plan)
        schedule = schedules.get(epoch)
        if schedule is None:
            schedule = schedules[epoch] = plan.schedule(epoch)
        if schedule.first_step < schedule.steps:
            schedule.open_blocks(lanes)  # which orders the splits, and cuts the lanes
        return schedule


class Agreement:
    """What a rank agreed on with the others for its plan, looked at again while other ranks may still come."""

    def __init__(self, planner: Planner, start: RunStart, done: Callable[[], None]) -> None:
        self._planner = planner
        self._start = start
        self._done = done
        self._pause_s = _FIRST_LOOK_S
        self._due_s = float("inf")  # until the first stream begins
        self._looking: Future[bool] | None = None

    def begin(self) -> None:
        if self._looking is None:
            self._due_s = 0.0

    def look(self, now_s: float) -> None:
        """Look again if it is time to. Raises PlanError if the other ranks have agreed on another value."""
        if self._looking is not None and self._looking.done():
            again, self._looking = self._looking.result(), None
            self._due_s = now_s + self._pause_s if again else float("inf")
            self._pause_s = min(2 * self._pause_s, _LONGEST_LOOK_S)
        if self._looking is None and now_s >= self._due_s:
            self._looking = self._planner.verify(self._start, self._done)


def activity(calls: Sequence[CodeType]) -> str:
    """What a thread does. calls: the code of its calls, the innermost first."""
    for code in calls:
        if code in WAITING:
            return "waits for the Dask cluster"
        if code in _ACTIVITY_OF:
            return _ACTIVITY_OF[code]
    return "resolves the pipeline"
