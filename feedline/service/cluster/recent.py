"""The last values of a measure, for their median and maximum.

Runs in: the feeder. Pure.
"""

from __future__ import annotations

import statistics
from collections import deque

_RECENT = 31


class Recent:
    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_RECENT)

    def add(self, value: float) -> None:
        self._values.append(value)

    @property
    def median(self) -> float:
        """0 without values."""
        return statistics.median(self._values) if self._values else 0.0

    @property
    def largest(self) -> float:
        """0 without values."""
        return max(self._values, default=0.0)

    def __len__(self) -> int:
        return len(self._values)
