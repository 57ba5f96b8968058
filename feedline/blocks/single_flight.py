"""Make a value once per key, however many threads ask for it at the same time, and cache values in use.

Runs in: workers. A key that was asked for within `IDLE_S` is in use, and stays, however many there are: a worker that
serves nine jobs must not compile each of them repeatedly. Of idle keys the last `IDLE_KEPT` stay.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

IDLE_S = 600.0
IDLE_KEPT = 8

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class _Flight(Generic[V]):
    used_s: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    values: list[V] = field(default_factory=list)  # one, once it exists


class SingleFlight(Generic[K, V]):
    """Values by key. Threads may share it."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, _Flight[V]] = OrderedDict()  # the one asked for last is last

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The key's value. Where there is none, one thread calls `make` while others wait; what it raises is raised
        here, and the next caller tries again."""
        entry = self._entry(key)
        with entry.lock:
            if not entry.values:
                entry.values.append(make())
            return entry.values[0]

    def _entry(self, key: K) -> _Flight[V]:
        with self._lock:
            now = self._now_s()
            entry = self._entries.setdefault(key, _Flight(now))
            entry.used_s = now
            self._entries.move_to_end(key)
            idle = [known for known, other in self._entries.items() if now - other.used_s > IDLE_S]
            for known in idle[: max(0, len(idle) - IDLE_KEPT)]:
                del self._entries[known]
            return entry
