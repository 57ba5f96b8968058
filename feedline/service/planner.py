"""Resolve the plans of a feeder's trainers, once for all that ask for the same one.

Runs in: the feeder. Planning a new table takes as long as its listing and counting, and neither other trainers nor
questions about it must wait for it: a feeder plans in a thread, one request after the other. Plans and schedules live
as long as a session uses them.

What the thread does is described by the calls in it, so that no code on the way has to report.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeAlias

from feedline.loader.facts import Hello
from feedline.planning.plan import Plan
from feedline.planning.schedule import Schedule

# The plan that a hello asks for; one of those given, if it is among them.
Resolve: TypeAlias = Callable[[Hello, Sequence[Plan]], Plan]

_END_S = 5.0  # time for a request under way when the feeder ends
# What a thread does that is in one of these modules, or in these functions; the innermost call decides.
_ACTIVITIES = (
    ("feedline.service.cluster.", ("_connected", "await_workers", "await_scheduler"), "waits for the Dask cluster"),
    ("feedline.warehouse.discovery.", (), "lists the table"),
    ("feedline.warehouse.snapshot.footer_tasks", (), "reads footers of the table's files"),
    ("feedline.warehouse.snapshot.", (), "takes or reads the table's snapshot"),
    ("feedline.warehouse.selection.", (), "counts the rows that the filter and the sample keep"),
    ("feedline.fitting.", (), "fits artifacts"),
)


class _Planned:
    """A plan that sessions use, and its schedules by epoch."""

    def __init__(self, plan: Plan) -> None:
        self.plan = weakref.ref(plan)
        self.schedules: weakref.WeakValueDictionary[int, Schedule] = weakref.WeakValueDictionary()


class Planner:
    """Plans for several sessions, in a thread of its own."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._began_s = time.monotonic()
        self._planned: list[_Planned] = []
        self._requests: queue.SimpleQueue[tuple[Hello, Future[Plan], Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="feedline-planner", daemon=True)
        self._thread.start()

    def plan(self, hello: Hello, done: Callable[[], None]) -> Future[Plan]:
        """The plan, or the error, that answers a hello. `done` is called when it is there, in any thread."""
        future: Future[Plan] = Future()
        self._requests.put((hello, future, done))
        return future

    def describe(self) -> str:
        """What the request under way is doing, and since when."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        calls = []
        while frame is not None:
            calls.append((str(frame.f_globals.get("__name__")), frame.f_code.co_name))
            frame = frame.f_back
        return f"it has been planning for {time.monotonic() - self._began_s:.0f} s, and {activity(calls)}"

    def schedule(self, plan: Plan, epoch: int) -> Schedule:
        """The epoch's schedule, one for all sessions. Raises PlanError where it has no step."""
        schedules = next(each.schedules for each in self._planned if each.plan() is plan)
        schedule = schedules.get(epoch)
        if schedule is None:
            schedule = schedules[epoch] = plan.schedule(epoch)
        return schedule

    def close(self) -> None:
        """Take no more requests, and wait for the one under way, which the cluster's end interrupts."""
        self._requests.put(None)
        self._thread.join(_END_S)

    def _work(self) -> None:
        while self._work_once():  # whose variables would keep the last plan alive
            pass

    def _work_once(self) -> bool:
        request = self._requests.get()
        if request is not None and request[1].set_running_or_notify_cancel():
            self._answer(*request)
        return request is not None

    def _answer(self, hello: Hello, future: Future[Plan], done: Callable[[], None]) -> None:
        self._began_s = time.monotonic()
        planned = [each for each in self._planned if each.plan() is not None]
        plans = [plan for each in planned if (plan := each.plan()) is not None]
        try:
            plan = self._resolve(hello, plans)
        except Exception as error:
            future.set_exception(error)
        else:
            if not any(plan is each for each in plans):
                planned = [*planned, _Planned(plan)]
            self._planned = planned
            future.set_result(plan)
        done()


def activity(calls: Sequence[tuple[str, str]]) -> str:
    """What a thread does. calls: their modules and functions, the innermost first."""
    for module, function in calls:
        for prefix, functions, words in _ACTIVITIES:
            if module.startswith(prefix) and (not functions or function in functions):
                return words
    return "resolves the pipeline"
