"""Measure works in CPU time, in turn, within a budget.

Runs in: the process that explains, with nothing else running in it. The time is that of the process: Polars' pool and
pyarrow's threads are part of it. Works are run one after the other, in rounds, so that a machine that becomes slower
changes all of them, and every other round in reverse, as each work finds the caches that the one before it leaves.
Differences are taken within a round, and their median over the rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from feedline.dataclass import dataclass

ROUNDS = 9
_MOST_CALLS = 1e9
_LONE_ROUND = 0.25  # of a value that was measured once


@dataclass(frozen=True, slots=True)
class CpuEstimate:
    """CPU seconds with an interval: the median of rounds, and the least and the most of them."""

    cpu_s: float
    low: float
    high: float

    def scaled(self, factor: float) -> CpuEstimate:
        """The same for more or fewer rows."""
        return CpuEstimate(self.cpu_s * factor, self.low * factor, self.high * factor)

    def positive(self) -> CpuEstimate:
        """The same without negative seconds, which are noise of what costs next to nothing."""
        return CpuEstimate(max(self.cpu_s, 0.0), max(self.low, 0.0), max(self.high, 0.0))

    def __add__(self, other: CpuEstimate) -> CpuEstimate:
        return CpuEstimate(self.cpu_s + other.cpu_s, self.low + other.low, self.high + other.high)


NO_CPU = CpuEstimate(0.0, 0.0, 0.0)


@dataclass(slots=True)
class CpuBudget:
    """CPU seconds that measuring may take: no round begins that would end after them, the first of each kind apart."""

    seconds: float = float("inf")
    clock: Callable[[], float] = time.process_time
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self.clock()

    @property
    def used_s(self) -> float:
        return self.clock() - self._started

    @property
    def left_s(self) -> float:
        return max(0.0, self.seconds - self.used_s)

    def calls(self, each_s: float) -> int:
        """How many calls of so many seconds it has room for; one at least."""
        return int(min(max(self.left_s / each_s, 1.0), _MOST_CALLS))


def measure_in_turn(
    works: Sequence[Callable[[], object]], budget: CpuBudget, *, rounds: int = ROUNDS
) -> NDArray[np.float64]:
    """CPU seconds of each work in each round: float64 [rounds, works]; at least one round.

    The first round, in which all is compiled and allocated, is left out if others could be done.
    """
    found: list[list[float]] = []
    while len(found) <= rounds:
        seconds = [0.0] * len(works)
        for index in range(len(works)) if len(found) % 2 else reversed(range(len(works))):
            start = budget.clock()
            works[index]()
            seconds[index] = budget.clock() - start
        found.append(seconds)
        if budget.left_s < sum(seconds):
            break
    rows = found[1:] or found
    return np.array(rows, np.float64).reshape(len(rows), len(works))


def estimate(seconds: NDArray[np.float64]) -> CpuEstimate:
    """The estimate of one value, measured in rounds: float64 [rounds]."""
    middle = float(np.median(seconds))
    if len(seconds) == 1:
        return CpuEstimate(middle, middle - abs(middle) * _LONE_ROUND, middle + abs(middle) * _LONE_ROUND)
    return CpuEstimate(middle, float(seconds.min()), float(seconds.max()))
