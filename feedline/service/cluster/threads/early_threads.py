"""Compute the first blocks of a feeder in its own threads, until its Dask cluster of threads is up.

Runs in: the feeder. The threads run the same function with the same arguments as a Dask task, in the order of
submission. A key that is started twice, for two ranks, is computed once. What a trainer waits for is handed over in
parts while the rest of its block is computed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from feedline.blocks.block_encoder import HandOver
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.service.cluster.attempts import Arrived, FirstRows, failure_of


@dataclass(slots=True)
class _Computation:
    """parts: those that were handed over; waiting: who gets them as they come."""

    future: Future[Any] = field(default_factory=Future)
    holders: int = 0
    parts: tuple[Rows, ...] = ()
    waiting: list[Arrived] = field(default_factory=list)


class EarlyTask:
    """A task of `EarlyThreads`."""

    def __init__(self, threads: EarlyThreads, key: str) -> None:
        self._threads = threads
        self._key = key

    def cancel(self) -> None:
        """Release the task; the last holder cancels it, if it has not started."""
        self._threads.release(self._key)


class EarlyThreads:
    """A pool of as many threads as the cluster's worker will have. `started`: the number of tasks so far."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="feedline-block")
        self._lock = threading.Lock()
        self._computations: dict[str, _Computation] = {}
        self.started = 0

    def start(
        self, function: Callable[..., Any], *arguments: Any, key: str, arrived: Arrived, first_rows: int = 0
    ) -> EarlyTask:
        """Start a task, or share the one of the same key. `arrived` is called once, in any thread, unless the task is
        cancelled.

        first_rows: of a block whose parts are handed over (0: none are). `arrived` is then called before, too, with
        all `FirstRows` so far; the first part has about so many.
        """
        with self._lock:
            computation = self._computations.get(key)
            if computation is None:
                computation = self._computations[key] = _Computation()
                if first_rows:
                    arguments = *arguments, HandOver(first_rows, lambda part: self._hand_over(key, part))
                computation.future = self._pool.submit(function, *arguments)
                self.started += 1
            computation.holders += 1
            if first_rows:
                computation.waiting.append(arrived)
                if computation.parts:
                    arrived(key, FirstRows(computation.parts))

        def done(future: Future[Any]) -> None:
            if not future.cancelled():
                error = future.exception()
                arrived(key, future.result() if error is None else failure_of(error, ""))

        computation.future.add_done_callback(done)
        return EarlyTask(self, key)

    def _hand_over(self, key: str, part: Rows) -> None:
        """Runs in the task's thread."""
        with self._lock:
            computation = self._computations.get(key)
            if computation is not None:
                computation.parts = (*computation.parts, part)
                for arrived in computation.waiting:
                    arrived(key, FirstRows(computation.parts))

    def holds(self, key: str) -> bool:
        """Whether a task of this key runs, or its result is held."""
        with self._lock:
            return key in self._computations

    def release(self, key: str) -> None:
        """Release one hold on a task."""
        with self._lock:
            computation = self._computations[key]
            computation.holders -= 1
            if computation.holders:
                return
            del self._computations[key]
        computation.future.cancel()

    def close(self) -> None:
        """Cancel what has not started, and wait for the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)
