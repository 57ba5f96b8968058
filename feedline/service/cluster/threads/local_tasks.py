"""Tasks on workers that are threads of this process: their arguments and outcomes never leave it.

Runs in: the feeder; `_run` in threads of its worker. Dask gets a call with the key of a task, which costs it little:
no argument is pickled, no result is fetched. The thread that has run a task hands its outcome over at once. Trainers
that hold the same key share a task, as they do in Dask.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from distributed import Future

from feedline.service.cluster.attempts import Arrived, Outcome, Submit, failure_of

_MOST_RELEASED = 256  # keys whose release Dask may not have heard of

# Those of this process, by the number that a task names: there is nothing else of them in a task.
_tables: weakref.WeakValueDictionary[int, LocalTasks] = weakref.WeakValueDictionary()


@dataclass(slots=True)
class _HeldTask:
    """A task. name: its key in Dask. waiting: who gets its outcome, once it is there (`done`). futures: Dask's, one per
    holder."""

    call: Callable[[], Outcome]
    name: str
    waiting: list[Arrived] = field(default_factory=list)
    futures: list[Future[Any]] = field(default_factory=list)
    done: bool = False
    outcome: Outcome = None


class LocalTask:
    """A hold on a task."""

    def __init__(self, tasks: LocalTasks, key: str, future: Future[Any]) -> None:
        self._tasks = tasks
        self._key = key
        self._future = future

    def cancel(self) -> None:
        """Release the task; without another hold it is cancelled, and its outcome dropped."""
        self._tasks.release(self._key, self._future)


class LocalTasks:
    """The tasks that are held. All but `_run` is called by one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, _HeldTask] = {}
        self._released: dict[str, None] = {}  # keys, the last ones at the end
        self._again = 0  # tasks whose key had been released
        _tables[id(self)] = self

    def start(
        self, submit: Submit, function: Callable[..., Outcome], *arguments: Any, key: str, arrived: Arrived
    ) -> LocalTask | None:
        """Start a task, or share the one of this key; None if Dask's client is closed. arrived: called once, in any
        thread, unless the task is released."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _HeldTask(partial(function, *arguments), self._name(key))
            was_done = entry.done
            if not was_done:
                entry.waiting.append(arrived)
        future = submit(_run, id(self), key, key=entry.name)
        if future is None:
            with self._lock:
                entry.waiting[:] = [each for each in entry.waiting if each is not arrived]
                if not entry.futures:
                    del self._entries[key]
            return None
        entry.futures.append(future)
        if was_done:
            arrived(key, entry.outcome)
        return LocalTask(self, key, future)

    def _name(self, key: str) -> str:
        """The key in Dask: another one for a task that was released lately, which Dask would take for done."""
        if key not in self._released:
            return key
        self._again += 1
        return f"{key}-{self._again}"

    def run(self, key: str) -> None:
        """Run a task, if somebody still holds it."""
        with self._lock:
            entry = self._entries.get(key)
        if entry is not None and not entry.done:
            self._finish(key, entry.call())

    def look(self) -> None:
        """End tasks that Dask has ended without running them: they failed before they began, or were lost. Called about
        once a second."""
        with self._lock:
            ended = [
                (key, entry.futures[0])
                for key, entry in self._entries.items()
                if not entry.done and entry.futures and entry.futures[0].status != "pending"
            ]
        for key, future in ended:
            error = future.exception() if future.status == "error" else None
            self._finish(key, None if error is None else failure_of(error, "", ""))

    def _finish(self, key: str, outcome: Outcome) -> None:
        """Hand an outcome over to all who wait for it. Another task of the key may have been started meanwhile."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.done:
                return
            entry.done, entry.outcome = True, outcome
            waiting, entry.waiting = entry.waiting, []
        for arrived in waiting:
            arrived(key, outcome)

    def release(self, key: str, future: Future[Any]) -> None:
        """Release one hold on a task."""
        with self._lock:
            entry = self._entries[key]
            entry.futures.remove(future)
            if not entry.futures:
                del self._entries[key]
                self._released.pop(key, None)
                self._released[key] = None
                if len(self._released) > _MOST_RELEASED:
                    del self._released[next(iter(self._released))]
        future.release()


def _run(table: int, key: str) -> None:
    """The task that Dask sees."""
    tasks = _tables.get(table)
    if tasks is not None:
        tasks.run(key)
