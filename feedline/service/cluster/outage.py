"""Waiting for a missing part of the cluster: how long, and which functions do.

Runs in: every process that computes on a cluster. Pure: time is an argument.

Time counts only while a caller waits for the missing part: a trainer that evaluates, or has batches in its ring, needs
no cluster, even if that is scaled to zero for hours.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Literal, ParamSpec, TypeVar

from feedline.dataclass import dataclass

# The longest time that one look counts: a process that was stopped for an hour has not waited for an hour.
_LONGEST_LOOK_S = 5.0

P = ParamSpec("P")
R = TypeVar("R")
WAITING: set[CodeType] = set()  # of functions that wait for the cluster, to describe what a thread does


def waits(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function that waits for the cluster."""
    WAITING.add(function.__code__)
    return function


Missing = Literal["scheduler", "worker"]
Verdict = Literal["whole", "new", "waiting", "over"]


@dataclass(slots=True)
class OutageTimer:
    """Accumulates waiting time. limit_s: how long to wait for the missing part."""

    limit_s: float
    waited_s: float = 0.0
    _missing: Missing | None = None
    _looked_s: float = 0.0

    def look(self, now_s: float, missing: Missing | None, *, waiting: bool) -> Verdict:
        """Count the time since the last look; called about once a second. waiting: whether a caller waited meanwhile.

        whole: nothing is missing; new: it was not missing at the last look; over: callers waited longer than the limit.
        """
        last_missing, self._missing = self._missing, missing
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        if missing != last_missing:
            self.waited_s = 0.0
            return "whole" if missing is None else "new"
        if missing is None:
            return "whole"
        # Looks at 0, 4, 8, 12 and 3600 s, the third without a caller: 4 + 0 + 4 + 5 s, not an hour, were waited.
        if waiting:
            self.waited_s += min(passed_s, _LONGEST_LOOK_S)
        return "over" if self.waited_s > self.limit_s else "waiting"
