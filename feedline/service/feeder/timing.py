"""Decide when a block is due, and when it is overdue.

Runs in: the feeder. Pure: clocks' readings are arguments.

Due: a block's priority is the time at which its trainer will need it, by the scheduler's clock, but no earlier than its
virtual start (`fair_share.py`). Dask fixes a task's priority when it first sees its key. See
docs/decisions/0023-shares-of-a-cluster.md.

Overdue: a needed block that has taken ten times as long as others is also computed on another worker.
"""

from __future__ import annotations

import math
from collections import deque

from feedline.service.cluster.fair_share import priority
from feedline.service.cluster.recent import Recent

# No block is due later than this, since the pace may change.
HORIZON_S = 10.0
_OVERDUE_TIMES = 10
_OVERDUE_S = 30.0
_RECENT_BLOCKS = 256
# Steps that show a trainer's own pace: the first ones fill a ring that is empty.
_ENOUGH_STEPS = 12


class FinishedBlocks:
    """When recent blocks were submitted, and when their results came."""

    def __init__(self) -> None:
        self._durations_s = Recent()
        self._times_s: deque[tuple[float, float]] = deque(maxlen=_RECENT_BLOCKS)

    def add(self, submitted_s: float, now_s: float) -> None:
        self._durations_s.add(now_s - submitted_s)
        self._times_s.append((submitted_s, now_s))

    @property
    def median_s(self) -> float:
        """Seconds from the submission of a block to its result; 0 before the first."""
        return self._durations_s.median

    def overtook(self, submitted_s: float) -> bool:
        """Whether blocks that were submitted later came while one submitted then was late: else everything may stall, a
        store, say, and its worker is not to blame."""
        late_from_s = submitted_s + self.median_s
        return any(at_s >= submitted_s and done_s > late_from_s for at_s, done_s in self._times_s)


class TrainerPace:
    """Seconds per step that the trainer takes, without waiting for blocks."""

    def __init__(self) -> None:
        self._recent = Recent()
        self._last: tuple[float, float] | None = None

    def step(self, now_s: float, waited_s: float, steps: int = 1) -> None:
        """Count delivered steps. waited_s: seconds that all steps so far have waited for blocks."""
        if self._last is not None:
            last_s, last_waited_s = self._last
            # Steps at 1 s and 3 s, of which it waited 1.5 s -> 0.5 s of its own.
            step_s = max(0.0, now_s - last_s - (waited_s - last_waited_s)) / steps
            for _ in range(steps):
                self._recent.add(step_s)
        self._last = (now_s, waited_s)

    @property
    def step_s(self) -> float:
        """Median of recent steps; 0 before the second one."""
        return self._recent.median

    @property
    def known_step_s(self) -> float:
        """`step_s`, or 0 as long as the steps may only have filled the ring."""
        return self._recent.median if len(self._recent) >= _ENOUGH_STEPS else 0.0


class Priorities:
    """The priorities of one stream's blocks, from their due times."""

    def __init__(self) -> None:
        self.step = 0
        self._step_s = self._delay_s = 0.0
        self._last: int | None = None

    def begin(self, step: int, step_s: float, delay_s: float) -> None:
        """Set the pace: the trainer needs `step` in `delay_s`, and another one every `step_s`."""
        self.step, self._step_s, self._delay_s = step, step_s, delay_s

    def of(self, first_step: int, now_s: float, start_s: float = -math.inf) -> int:
        """The priority of a block by the first step that needs it. start_s: its virtual start."""
        ahead_s = self._delay_s + max(0, first_step - self.step) * self._step_s
        return priority(now_s + min(HORIZON_S, max(ahead_s, start_s - now_s)))

    def next(self, first_step: int, now_s: float, start_s: float = -math.inf) -> int:
        """The priority of the plan's next block, below the last one: Dask computes equal priorities in any order."""
        # At 1000 s, step 3 due in 2 s, a step each 0.5 s: first steps 3, 3, 4 -> -1002000, -1002001, -1002500.
        due = self.of(first_step, now_s, start_s)
        self._last = due if self._last is None else min(due, self._last - 1)
        return self._last


def overdue_after_s(median_s: float) -> float:
    """Seconds after which a needed block is overdue, if others took `median_s`."""
    return max(_OVERDUE_TIMES * median_s, _OVERDUE_S)
