"""Resolve the plans of a feeder's trainers, once for all that ask for the same one.

Runs in: the feeder. Planning a new table takes as long as its listing and counting, and other trainers must not wait
for it: a feeder of several trainers plans in a thread, one request after the other. Plans and schedules live as long as
a session uses them.
"""

from __future__ import annotations

import queue
import threading
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


class _Planned:
    """A plan that sessions use, and its schedules by epoch."""

    def __init__(self, plan: Plan) -> None:
        self.plan = weakref.ref(plan)
        self.schedules: weakref.WeakValueDictionary[int, Schedule] = weakref.WeakValueDictionary()


class Planner:
    """Plans for several sessions. in_thread: plan in a thread of its own (default: in the caller's)."""

    def __init__(self, resolve: Resolve, *, in_thread: bool = False) -> None:
        self._resolve = resolve
        self._planned: list[_Planned] = []
        self._requests: queue.SimpleQueue[tuple[Hello, Future[Plan], Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="feedline-planner", daemon=True) if in_thread else None
        if self._thread is not None:
            self._thread.start()

    def plan(self, hello: Hello, done: Callable[[], None]) -> Future[Plan]:
        """The plan, or the error, that answers a hello. `done` is called when it is there, in any thread."""
        future: Future[Plan] = Future()
        if self._thread is None:
            self._answer(hello, future, done)
        else:
            self._requests.put((hello, future, done))
        return future

    def schedule(self, plan: Plan, epoch: int) -> Schedule:
        """The epoch's schedule, one for all sessions. Raises PlanError where it has no step."""
        schedules = next(each.schedules for each in self._planned if each.plan() is plan)
        schedule = schedules.get(epoch)
        if schedule is None:
            schedule = schedules[epoch] = plan.schedule(epoch)
        return schedule

    def close(self) -> None:
        """Take no more requests, and wait for the one under way, which the cluster's end interrupts."""
        if self._thread is not None:
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
