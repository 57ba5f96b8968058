"""Count how long a trainer has waited for a part of the cluster that is missing.

Runs in: the feeder, and whoever computes on a cluster. Pure: the clock's reading is an argument.

Time counts only while somebody waits for work that the missing part has to do: a trainer that evaluates, or still has
batches in its ring, needs no cluster, however long that is scaled to zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Counted for one look at most: a process that was itself stopped for an hour has not waited for an hour.
_LONGEST_LOOK_S = 5.0

Missing = Literal["scheduler", "worker"]
Verdict = Literal["whole", "new", "waiting", "over"]


@dataclass(slots=True)
class OutageTimer:
    """Look at it every second or so. `limit_s`: how long to wait for what is missing."""

    limit_s: float
    waited_s: float = 0.0
    _missing: Missing | None = None
    _looked_s: float = 0.0

    def look(self, now_s: float, missing: Missing | None, *, waiting: bool) -> Verdict:
        """What is missing now, and whether somebody has waited for it since the last look.

        whole: nothing is missing; new: it has not been missing before; over: it was waited for longer than the limit.
        """
        before, self._missing = self._missing, missing
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        if missing != before:
            self.waited_s = 0.0
            return "whole" if missing is None else "new"
        if missing is None:
            return "whole"
        if waiting:
            self.waited_s += min(passed_s, _LONGEST_LOOK_S)
        return "over" if self.waited_s > self.limit_s else "waiting"
