"""Decide when a block is due, and when it is overdue.

Runs in: the feeder. Pure: clocks' readings are arguments.

Due: a Dask cluster that several jobs share computes first what a trainer needs first. A block's priority is the time at
which its trainer will need it, by the clock of the feeder's host, so that jobs of different ages and speeds compare;
hosts whose clocks differ by seconds favour the one that is behind by as much. A trainer's pace is the time that it
takes per step by itself: a job that waits for blocks needs all of them now, and shares the cluster with others of that
kind in the order of submission.

Overdue: a needed block that has taken ten times as long as others is computed a second time, elsewhere.
"""

from __future__ import annotations

import statistics
from collections import deque

# No block is due later than this from now: a pace may change.
HORIZON_S = 10.0
_OVERDUE_TIMES = 10
_OVERDUE_S = 30.0
_RECENT = 31


class Recent:
    """The median of the last values."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_RECENT)

    def add(self, value: float) -> None:
        self._values.append(value)

    @property
    def median(self) -> float:
        """0 where there is none."""
        return statistics.median(self._values) if self._values else 0.0


class TrainerPace:
    """Seconds per step that the trainer takes by itself."""

    def __init__(self) -> None:
        self._recent = Recent()
        self._last: tuple[float, float] | None = None

    def step(self, now_s: float, waited_s: float) -> None:
        """A step was handed over. waited_s: how long steps have waited for blocks so far, all together."""
        if self._last is not None:
            before_s, waited_before_s = self._last
            self._recent.add(max(0.0, now_s - before_s - (waited_s - waited_before_s)))
        self._last = (now_s, waited_s)

    @property
    def step_s(self) -> float:
        """0 before there were two."""
        return self._recent.median


def priority(due_s: float) -> int:
    """For Dask, where the larger goes first: ms, negated."""
    return -round(due_s * 1000)


class Priorities:
    """Of one stream's blocks: when they are due."""

    def __init__(self) -> None:
        self.step = 0
        self._step_s = self._delay_s = 0.0
        self._last: int | None = None

    def begin(self, step: int, step_s: float, delay_s: float) -> None:
        """The trainer will ask for `step` in `delay_s`, and for another every `step_s`."""
        self.step, self._step_s, self._delay_s = step, step_s, delay_s

    def of(self, first_step: int, now_s: float) -> int:
        """Of a block that begins with a step."""
        ahead_s = self._delay_s + max(0, first_step - self.step) * self._step_s
        return priority(now_s + min(HORIZON_S, ahead_s))

    def next(self, first_step: int, now_s: float) -> int:
        """Of the block that follows in the plan: Dask computes equal ones in any order."""
        wanted = self.of(first_step, now_s)
        self._last = wanted if self._last is None else min(wanted, self._last - 1)
        return self._last


def overdue_after_s(median_s: float) -> float:
    """How long a needed block may take where others took `median_s`."""
    return max(_OVERDUE_TIMES * median_s, _OVERDUE_S)
