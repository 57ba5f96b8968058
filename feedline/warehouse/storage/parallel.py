"""Run a function over many tasks, in threads that stop waiting for a store as soon as one task fails.

Runs in every process. Functions that read tables take a `Map`: `in_threads` here, or one that submits tasks to a Dask
cluster.
"""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from feedline.errors import StoreError
from feedline.resources.cgroups import available_cores

T = TypeVar("T")
Map: TypeAlias = Callable[[Callable[[Any], Any], list[Any]], Iterable[Any]]  # results in the order of the tasks

_exiting = threading.Event()
_stops: set[threading.Event] = set()  # of the `interruptible` blocks under way
_thread = threading.local()


def stop_waiting() -> None:
    """End all waiting for stores: the process is about to end."""
    _exiting.set()
    for stop in tuple(_stops):
        stop.set()


# At exit the interpreter joins the threads of all pools before it calls `atexit`'s functions; only this private hook
# runs earlier, so that waiting threads end.
getattr(threading, "_register_atexit", atexit.register)(stop_waiting)


def stop_event() -> threading.Event:
    """The event that ends this thread's waiting: set when its `interruptible` block ends, or else the process."""
    event: threading.Event = getattr(_thread, "stop", _exiting)
    return event


class Pool:
    """The threads of one `interruptible` block."""

    def __init__(self, executor: ThreadPoolExecutor, stop: threading.Event) -> None:
        self._executor = executor
        self._stop = stop
        self.failure: BaseException | None = None

    def map(self, function: Callable[..., T], *arguments: Iterable[Any]) -> Iterator[T]:
        """As `Executor.map`, but a call that fails ends the waiting of all others."""
        return self._executor.map(functools.partial(self._watch, function), *arguments)

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """As `Executor.submit`, but a call that fails ends the waiting of all others."""
        return self._executor.submit(self._watch, function, *arguments)

    def _watch(self, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return function(*arguments)
        except BaseException as error:
            if not self._stop.is_set():
                self.failure = error
                self._stop.set()
            raise


@contextmanager
def interruptible(threads: int, name: str) -> Iterator[Pool]:
    """A pool whose threads stop waiting for a store as soon as one of them fails or the block raises (Ctrl-C included).
    The first failure is the one that is raised."""
    stop = threading.Event()
    _stops.add(stop)
    if _exiting.is_set():
        stop.set()
    try:
        with ThreadPoolExecutor(
            threads, thread_name_prefix=name, initializer=setattr, initargs=(_thread, "stop", stop)
        ) as executor:
            pool = Pool(executor, stop)
            try:
                yield pool
            except BaseException as error:
                executor.shutdown(wait=False, cancel_futures=True)
                stop.set()
                failure = pool.failure
                if failure is not None and failure is not error and isinstance(error, StoreError):
                    raise failure from failure.__cause__  # the others report only that their waiting was ended
                raise
    finally:
        _stops.discard(stop)


def in_threads(function: Callable[[Any], T], tasks: Iterable[Any], *, threads: int | None = None) -> Iterator[T]:
    """A `Map` in threads of this process (default: one per core that it may use)."""
    with interruptible(threads or available_cores(), "feedline-task") as pool:
        yield from pool.map(function, tasks)
