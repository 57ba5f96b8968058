"""Make a value once per key, however many threads ask for it at the same time, and keep what is in use.

Runs in: workers. A key in use is one that was asked for within `IDLE_S`: those stay, however many there are, since a
worker that serves nine jobs must not compile each of them again and again. Of all others the last few stay.
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
    making: threading.Lock = field(default_factory=threading.Lock)
    made: list[V] = field(default_factory=list)  # one, when it was made


class SingleFlight(Generic[K, V]):
    """Values by key. Threads may share it."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, _Flight[V]] = OrderedDict()  # the one asked for last at the end

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The key's value; `make` is called where there is none, by one thread while others wait. What it raises is
        raised here, and the next one who asks tries again."""
        entry = self._entry(key)
        with entry.making:
            if not entry.made:
                entry.made.append(make())
            return entry.made[0]

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
