"""Reduce the results of many tasks to one, with few results in memory at once.

Runs in: the process that fits. A tree: `FAN_IN` results of a level are merged into one of the next as soon as they are
ready, before further tasks begin. Results stay where they were computed; only the last one comes to this process. Which
results are merged together depends on timing, so merging must not depend on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from typing import Any, Protocol

from feedline.blocks.environment import Environment, local_environment
from feedline.warehouse.storage.parallel import Pool, interruptible

FAN_IN = 4  # at least two; more means fewer merges and more states at once


class Workers(Protocol):
    """Who computes: handles stand for results, wherever these are."""

    @property
    def environment(self) -> Environment:
        """What their processes compute with: every one refuses a task that expects something else."""
        ...

    @property
    def threads(self) -> int:
        """How many tasks run at a time."""
        ...

    @property
    def processes(self) -> int:
        """In how many processes they run."""
        ...

    def start(self, function: Callable[..., Any], *arguments: Any, urgent: bool) -> Any:
        """Begin function(*arguments); a list among the arguments may hold handles, and stands for their results."""
        ...

    def finished(self, handles: Sequence[Any]) -> Sequence[Any]:
        """Wait for at least one of them. Raises what a task raised."""
        ...

    def result(self, handle: Any) -> Any:
        """The result of a finished one, here."""
        ...

    def forget(self, handles: Sequence[Any]) -> None:
        """Nobody wants their results any more."""
        ...

    def at_the_end(self, remove: Callable[[], None]) -> None:
        """Remove what tasks have written, when none works any more."""
        ...


def reduce_tasks(
    workers: Workers,
    each: Callable[[Any, Any], Any],
    merge: Callable[[Any, list[Any]], Any],
    job: Any,
    tasks: Sequence[Any],
    *,
    done: Callable[[Any], None] = lambda task: None,
) -> Any:
    """merge(job, [each(job, task) for task in tasks]), as a tree. `done` hears of each task that is done.

    Raises what a task raises, after the others were called off.
    """
    running: dict[Any, tuple[int, Any]] = {}  # by handle: level, and the task of the lowest
    waiting: defaultdict[int, list[Any]] = defaultdict(list)
    queue = iter(tasks)
    window = 2 * workers.threads

    def submit() -> bool:
        """Begin the next merge or task, if there is something to begin."""
        for level in sorted(waiting, reverse=True):
            if len(waiting[level]) >= FAN_IN:
                joined, waiting[level] = waiting[level][:FAN_IN], waiting[level][FAN_IN:]
                running[workers.start(merge, job, joined, urgent=True)] = level + 1, None
                return True
        if sum(level == 0 for level, _ in running.values()) < window and (task := next(queue, None)) is not None:
            running[workers.start(each, job, task, urgent=False)] = 0, task
            return True
        left = [handle for handles in waiting.values() for handle in handles]
        if not running and len(left) > 1:
            running[workers.start(merge, job, left[:FAN_IN], urgent=True)] = len(waiting), None
            waiting.clear()
            waiting[0].extend(left[FAN_IN:])
            return True
        return False

    try:
        while True:
            while submit():
                pass
            if not running:
                break
            for handle in workers.finished(list(running)):
                level, task = running.pop(handle)
                waiting[level].append(handle)
                if task is not None:
                    done(task)
        [last] = [handle for handles in waiting.values() for handle in handles]
        return workers.result(last)
    finally:
        workers.forget([*running, *(handle for handles in waiting.values() for handle in handles)])


def map_tasks(workers: Workers, function: Callable[[Any, Any], Any], job: Any, tasks: Sequence[Any]) -> list[Any]:
    """[function(job, task) for task in tasks], for small results. Raises what a task raises."""
    handles = [workers.start(function, job, task, urgent=False) for task in tasks]
    left = set(handles)
    try:
        while left:
            left.difference_update(workers.finished(list(left)))
        return [workers.result(handle) for handle in handles]
    finally:
        workers.forget(handles)


class Threads:
    """Threads of this process."""

    def __init__(self, pool: Pool, threads: int) -> None:
        self._pool = pool
        self.threads = threads
        self.processes = 1
        self.environment = local_environment()

    def start(self, function: Callable[..., Any], *arguments: Any, urgent: bool) -> Future[Any]:
        """Begin function(*arguments); what handles stand for is there already."""
        resolved = [
            [one.result() if isinstance(one, Future) else one for one in argument]
            if isinstance(argument, list)
            else argument
            for argument in arguments
        ]
        return self._pool.submit(function, *resolved)

    def finished(self, handles: Sequence[Future[Any]]) -> Sequence[Future[Any]]:
        """Wait for at least one of them."""
        done = list(wait(handles, return_when=FIRST_COMPLETED).done)
        for handle in done:
            handle.result()
        return done

    def result(self, handle: Future[Any]) -> Any:
        """What a finished one returned."""
        return handle.result()

    def forget(self, handles: Sequence[Future[Any]]) -> None:
        """Call off what has not begun, and wait for what has."""
        for handle in handles:
            handle.cancel()
        wait(handles)

    def at_the_end(self, remove: Callable[[], None]) -> None:
        """Remove what tasks have written: they have ended."""
        remove()


@contextmanager
def threads_here(threads: int) -> Iterator[Threads]:
    """So many threads of this process; what they wait for ends when the block is left by an exception."""
    with interruptible(threads, "feedline-fit") as pool:
        yield Threads(pool, threads)
