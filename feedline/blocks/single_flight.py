"""Compute a value once per key, even if several threads request it at the same time, and cache values in use.

Runs in: workers. A key requested within the last `IDLE_S` is in use, and all keys in use stay cached: a worker that
serves nine jobs must not compile each of them repeatedly. Of idle keys, the `IDLE_KEPT` most recent ones stay.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import field
from typing import Generic, TypeVar

from feedline.dataclass import dataclass

IDLE_S = 600.0
IDLE_KEPT = 8

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class _Flight(Generic[V]):
    used_s: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    values: list[V] = field(default_factory=list)  # empty until it is computed


class SingleFlight(Generic[K, V]):
    """A thread-safe cache of values by key."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, _Flight[V]] = OrderedDict()  # least recently used first

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The key's value. If there is none, one thread calls `make` while others wait; its exception is raised here,
        and the next caller tries again."""
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
            idle = [other for other, flight in self._entries.items() if now - flight.used_s > IDLE_S]
            for other in idle[: max(0, len(idle) - IDLE_KEPT)]:
                del self._entries[other]
            return entry
