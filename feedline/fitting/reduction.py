"""Reduce the results of many tasks to one, with few results in memory at once.

Runs in: the process that fits. Results form a tree: `FAN_IN` results of a level are merged into one of the next level
as soon as they are ready, before further tasks start. Results stay where they were computed; only the final one is
fetched. Which results are merged together depends on timing, so merging must be associative and commutative.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from typing import Any, Protocol

from feedline.blocks.environment import Environment, local_environment
from feedline.warehouse.storage.parallel import Pool, interruptible

_TASKS_PER_THREAD = 2  # that run, wait, or have a result that waits
FAN_IN = 4  # at least two; a larger one means fewer merges and more states at once


class Workers(Protocol):
    """An executor; handles stand for results, wherever they are stored."""

    @property
    def environment(self) -> Environment:
        """Versions and settings of their processes; each refuses a task that expects others."""
        ...

    @property
    def threads(self) -> int:
        """Tasks that run at once."""
        ...

    @property
    def processes(self) -> int:
        """Processes of the threads."""
        ...

    def start(self, function: Callable[..., Any], *arguments: Any, urgent: bool) -> Any:
        """Submit function(*arguments); handles in lists among the arguments stand for their results."""
        ...

    def wait_any(self, handles: Sequence[Any]) -> Sequence[Any]:
        """Wait for at least one handle; returns those that are done. Raises what a task raised."""
        ...

    def result(self, handle: Any) -> Any:
        """Fetch the result of a task that is done."""
        ...

    def forget(self, handles: Sequence[Any]) -> None:
        """Cancel tasks and release their results."""
        ...

    def remove_when_idle(self, remove: Callable[[], None]) -> None:
        """Call `remove`, which deletes the files of tasks, when no task runs any more."""
        ...


def reduce_tasks(
    workers: Workers,
    each: Callable[[Any, Any], Any],
    merge: Callable[[Any, list[Any]], Any],
    job: Any,
    tasks: Sequence[Any],
    *,
    on_done: Callable[[Any], None] = lambda task: None,
) -> Any:
    """Compute merge(job, [each(job, task) for task in tasks]) as a tree. `on_done` is called after each task.

    Raises what a task raises, after cancelling the others.
    """
    running: dict[Any, tuple[int, Any]] = {}  # by handle: its level, and the task at level 0
    waiting: defaultdict[int, list[Any]] = defaultdict(list)
    queue = iter(tasks)

    def submit() -> bool:
        """Start the next merge or task; returns whether there was one."""
        for level in sorted(waiting, reverse=True):
            if len(waiting[level]) >= FAN_IN:
                group, waiting[level] = waiting[level][:FAN_IN], waiting[level][FAN_IN:]
                running[workers.start(merge, job, group, urgent=True)] = level + 1, None
                return True
        window = 2 * workers.threads  # of now: workers may come and go
        if sum(level == 0 for level, _ in running.values()) < window and (task := next(queue, None)) is not None:
            running[workers.start(each, job, task, urgent=False)] = 0, task
            return True
        # six results: four were merged into one of level 1, which is merged with the other two at the end
        pending = [handle for handles in waiting.values() for handle in handles]
        if not running and len(pending) > 1:
            running[workers.start(merge, job, pending[:FAN_IN], urgent=True)] = len(waiting), None
            waiting.clear()
            waiting[0].extend(pending[FAN_IN:])
            return True
        return False

    try:
        while True:
            while submit():
                pass
            if not running:
                break
            for handle in workers.wait_any(list(running)):
                level, task = running.pop(handle)
                waiting[level].append(handle)
                if task is not None:
                    on_done(task)
        [last] = [handle for handles in waiting.values() for handle in handles]
        return workers.result(last)
    finally:
        workers.forget([*running, *(handle for handles in waiting.values() for handle in handles)])


def map_tasks(workers: Workers, function: Callable[[Any, Any], Any], job: Any, tasks: Sequence[Any]) -> list[Any]:
    """Compute [function(job, task) for task in tasks], for small results. Raises what a task raises."""
    handles = [workers.start(function, job, task, urgent=False) for task in tasks]
    pending = set(handles)
    try:
        while pending:
            pending.difference_update(workers.wait_any(list(pending)))
        return [workers.result(handle) for handle in handles]
    finally:
        workers.forget(handles)


def run_tasks(workers: Workers, function: Callable[[Any, Any], Any], job: Any, tasks: Sequence[Any]) -> Generator[Any]:
    """Yield the results function(job, task) in the order of the tasks, with few of them at once, running or waiting.

    Raises what a task raises, after cancelling the others.
    """
    handles: deque[Any] = deque()
    queue = iter(tasks)
    try:
        while True:
            while len(handles) < _TASKS_PER_THREAD * workers.threads and (task := next(queue, None)) is not None:
                handles.append(workers.start(function, job, task, urgent=False))
            if not handles:
                return
            workers.wait_any([handles[0]])
            yield workers.result(handles.popleft())
    finally:
        workers.forget(handles)


class Threads:
    """Workers that are threads of this process."""

    def __init__(self, pool: Pool, threads: int) -> None:
        self._pool = pool
        self.threads = threads
        self.processes = 1
        self.environment = local_environment()

    def start(self, function: Callable[..., Any], *arguments: Any, urgent: bool) -> Future[Any]:
        """Submit function(*arguments); the results of handles in lists are available."""
        resolved = [
            [one.result() if isinstance(one, Future) else one for one in argument]
            if isinstance(argument, list)
            else argument
            for argument in arguments
        ]
        return self._pool.submit(function, *resolved)

    def wait_any(self, handles: Sequence[Future[Any]]) -> Sequence[Future[Any]]:
        """Wait for at least one handle; returns those that are done."""
        done = list(wait(handles, return_when=FIRST_COMPLETED).done)
        for handle in done:
            handle.result()
        return done

    def result(self, handle: Future[Any]) -> Any:
        """Return the result of a task that is done."""
        return handle.result()

    def forget(self, handles: Sequence[Future[Any]]) -> None:
        """Cancel tasks that have not started, and wait for the others."""
        for handle in handles:
            handle.cancel()
        wait(handles)

    def remove_when_idle(self, remove: Callable[[], None]) -> None:
        """Call `remove`: all tasks have ended."""
        remove()


@contextmanager
def threads_here(threads: int) -> Iterator[Threads]:
    """Start threads in this process; an exception in the block interrupts their waits."""
    with interruptible(threads, "feedline-fit") as pool:
        yield Threads(pool, threads)
