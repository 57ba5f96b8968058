"""Decide how many threads of workers the passes of a job can use: counts, footers, fits.

Runs in: every process that computes on a cluster, with each of its reports. Pure: time and counts are arguments.

A pass can use a thread for each task that has not ended, and asks for more than one only when it has lasted as long as
a trainer would have to wait: docs/decisions/0022-workers-follow-waiting-trainers.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

# For so long the most that was asked for stays: longer than the pause between two waves.
HELD_S = 10.0


@dataclass(slots=True)
class PassDemand:
    """The demand of all passes of a process. grow_after_s: for which one must have lasted."""

    grow_after_s: float
    _since_s: float | None = None  # the beginning of the pass
    _recent: deque[tuple[float, float]] = field(default_factory=deque)  # times and demands

    def look(self, open_tasks: int, now_s: float) -> float:
        """The threads that the tasks which have not ended can use; 0 without a pass. Called every few seconds."""
        if open_tasks and self._since_s is None:
            self._since_s = now_s
        demand = 0.0
        if open_tasks and self._since_s is not None:
            demand = float(open_tasks) if now_s - self._since_s >= self.grow_after_s else 1.0
        self._recent.append((now_s, demand))
        while self._recent[0][0] < now_s - HELD_S:
            self._recent.popleft()
        most = max(each for _, each in self._recent)
        if not most:
            self._since_s = None
        return most
