"""Count the seconds that a thread waits for its store, apart from decoding what has come.

Runs in: every process that reads a table. Waits count in the thread that needs the bytes, not in those that fetch them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class FetchClock(threading.local):
    """The calling thread's seconds. Waits within waits count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of a `with` block, without the CPU time of this thread in it."""
        if self._depth:
            yield
            return
        self._depth = 1
        start_s, cpu_s = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self._depth = 0
            self.seconds += max(0.0, time.perf_counter() - start_s - (time.thread_time() - cpu_s))


FETCH_CLOCK = FetchClock()
