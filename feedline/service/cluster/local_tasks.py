"""Tasks on threads of this process: plain ones until its Dask cluster of threads is up, then workers of that.

Runs in: the feeder; `_run` in threads of its worker. Arguments and outcomes stay here: Dask gets a call with the key of
a task, which costs it little, and the thread that has run a task hands its outcome over at once. Trainers that hold the
same key share a task. Plain threads run tasks in the order of submission, and hand over what a trainer waits for in
parts while the rest of its block is computed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from feedline.blocks.block_encoder import HandOver
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.service.cluster.attempts import Arrived, FirstRows, Outcome, Submit, failure_of

if TYPE_CHECKING:
    from distributed import Future

_MOST_RELEASED = 256  # keys whose release Dask may not have heard of

# Those of this process, by the number that a task names: there is nothing else of them in a task.
_tables: weakref.WeakValueDictionary[int, LocalTasks] = weakref.WeakValueDictionary()


@dataclass(slots=True, eq=False)
class LocalTask:
    """A task, which its holders share. call: until it runs. future: Dask's (None: of a plain thread). waiting: who gets
    its outcome, once it is there (`done`), and before that its `parts`."""

    tasks: LocalTasks
    key: str
    call: Callable[[], Outcome] | None = None
    future: Future[Any] | None = None
    holders: int = 0
    waiting: list[Arrived] = field(default_factory=list)
    parts: tuple[Rows, ...] = ()
    done: bool = False
    outcome: Outcome = None

    def cancel(self) -> None:
        """Release one hold; without another the task is cancelled, and its outcome dropped."""
        self.tasks.release(self)


class LocalTasks:
    """The tasks that are held. threads: the most plain ones, as many as the cluster's worker will have. `start`, `look`
    and `release` are called by one thread."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="feedline-block")
        self._lock = threading.Lock()
        self._entries: dict[str, LocalTask] = {}
        self._released: dict[str, None] = {}  # keys, the last ones at the end
        self._again = 0  # tasks whose key had been released
        _tables[id(self)] = self

    def start(
        self,
        submit: Submit | None,
        function: Callable[..., Outcome],
        *arguments: Any,
        key: str,
        arrived: Arrived,
        first_rows: int = 0,
    ) -> LocalTask | None:
        """Start a task, or share the one of this key; None if Dask's client is closed. submit: None for a plain thread.
        arrived: called once, in any thread, unless the task is released.

        first_rows: of a block whose parts are handed over (0: none are). `arrived` is then called before, too, with
        all `FirstRows` so far; the first part has about so many.
        """
        with self._lock:
            task = self._entries.get(key)
            if task is None:
                task = self._entries[key] = LocalTask(self, key)
                if first_rows:
                    arguments = *arguments, HandOver(first_rows, partial(self._hand_over, task))
                task.call = partial(function, *arguments)
            task.holders += 1
        if task.holders == 1 and not self._submit(task, submit):
            del self._entries[key]
            return None
        with self._lock:
            if task.parts and not task.done:
                arrived(key, FirstRows(task.parts))
            if not task.done:
                task.waiting.append(arrived)
                return task
        arrived(key, task.outcome)
        return task

    def _submit(self, task: LocalTask, submit: Submit | None) -> bool:
        if submit is None:
            self._pool.submit(self.run, task.key)
        else:
            task.future = submit(_run, id(self), task.key, key=self._name(task.key))
        return submit is None or task.future is not None

    def _name(self, key: str) -> str:
        """The key in Dask: another one for a task that was released lately, which Dask would take for done."""
        if key not in self._released:
            return key
        self._again += 1
        return f"{key}-{self._again}"

    def run(self, key: str) -> None:
        """Run a task, if somebody still holds it."""
        with self._lock:
            task = self._entries.get(key)
            if task is None or task.call is None:
                return
            call, task.call = task.call, None
        try:
            outcome = call()
        except Exception as error:
            outcome = failure_of(error, "")
        self._finish(task, outcome)

    def look(self) -> None:
        """End tasks that Dask has ended without running them: they failed before they began, or were lost. Called about
        once a second."""
        with self._lock:
            tasks = [task for task in self._entries.values() if not task.done]
        for task in tasks:
            if (future := task.future) is not None and future.status != "pending":
                error = future.exception() if future.status == "error" else None
                self._finish(task, None if error is None else failure_of(error, "", ""))

    def _hand_over(self, task: LocalTask, part: Rows) -> None:
        """Runs in the task's thread."""
        with self._lock:
            task.parts = (*task.parts, part)
            for arrived in task.waiting:
                arrived(task.key, FirstRows(task.parts))

    def _finish(self, task: LocalTask, outcome: Outcome) -> None:
        with self._lock:
            if task.done or not task.holders:
                return
            task.done, task.outcome = True, outcome
            waiting, task.waiting = task.waiting, []
        for arrived in waiting:
            arrived(task.key, outcome)

    def release(self, task: LocalTask) -> None:
        with self._lock:
            task.holders -= 1
            if task.holders:
                return
            del self._entries[task.key]
            self._released.pop(task.key, None)
            self._released[task.key] = None
            if len(self._released) > _MOST_RELEASED:
                del self._released[next(iter(self._released))]
        if task.future is not None:
            task.future.release()

    def close(self) -> None:
        """Cancel what no plain thread has started, and wait for the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _run(table: int, key: str) -> None:
    """The task that Dask sees."""
    tasks = _tables.get(table)
    if tasks is not None:
        tasks.run(key)
