"""Measure what a feeder's trainers use and wait for.

Runs in: the feeder, in the thread of its loop, once a second; not where blocks are computed by threads of the feeder.
Pure: counts and time are arguments.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Rates are means over so many seconds.
_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLoad:
    """Counts of one trainer so far, and its present state.

    steps: delivered. blocks, busy_s: finished for it, and the seconds that computing them took. stalled_s: in which no
    batch was ready because a block was missing. step_s: its own seconds per step (0: unknown). blocks_per_step: that a
    step uses up, on average. block_s: median computing time of recent blocks (0: unknown). ready: finished batches in
    its ring. in_flight: blocks.
    """

    steps: int
    blocks: int
    busy_s: float
    stalled_s: float
    starved: bool
    step_s: float
    blocks_per_step: float
    block_s: float
    ready: int
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederLoad:
    """The load of a feeder: sums over its trainers, rates of the last ten seconds.

    used_blocks_per_s: that the trainers use up at the rate at which they get them; pace_blocks_per_s: that they would
    at their own pace (0: unknown). wait_fraction: share of the time in which a trainer had no batch, of the one that
    waited most.
    """

    ranks: int
    steps_per_s: float
    blocks_per_s: float
    busy_threads: float
    used_blocks_per_s: float
    pace_blocks_per_s: float
    block_s: float
    wait_fraction: float
    starved: bool
    steps_ready: int
    blocks_in_flight: int
    busy_s_total: float


class LoadMeter:
    """Turns counts into rates."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[tuple[float, TrainerLoad]]] = {}  # by session
        self._busy_s_of_gone = 0.0

    def observe(self, loads: Mapping[int, TrainerLoad], now_s: float) -> FeederLoad:
        """Take the trainers' counts, by session; returns the load."""
        for session in set(self._samples) - set(loads):
            self._busy_s_of_gone += self._samples.pop(session)[-1][1].busy_s
        for session, load in loads.items():
            samples = self._samples.setdefault(session, deque())
            samples.append((now_s, load))
            while len(samples) > 2 and samples[1][0] <= now_s - _WINDOW_S:
                samples.popleft()
        return self._sum([_Rates.of(samples) for samples in self._samples.values()], list(loads.values()))

    def _sum(self, rates: Sequence[_Rates], loads: Sequence[TrainerLoad]) -> FeederLoad:
        known = [load.block_s for load in loads if load.block_s]
        return FeederLoad(
            ranks=len(loads),
            steps_per_s=sum(rate.steps_per_s for rate in rates),
            blocks_per_s=sum(rate.blocks_per_s for rate in rates),
            busy_threads=sum(rate.busy_threads for rate in rates),
            used_blocks_per_s=sum(
                rate.steps_per_s * load.blocks_per_step for rate, load in zip(rates, loads, strict=True)
            ),
            pace_blocks_per_s=sum(load.blocks_per_step / load.step_s for load in loads if load.step_s),
            block_s=statistics.median(known) if known else 0.0,
            wait_fraction=max((rate.wait_fraction for rate in rates), default=0.0),
            starved=any(load.starved for load in loads),
            steps_ready=sum(load.ready for load in loads),
            blocks_in_flight=sum(load.in_flight for load in loads),
            busy_s_total=self._busy_s_of_gone + sum(load.busy_s for load in loads),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """Rates of one trainer."""

    steps_per_s: float
    blocks_per_s: float
    busy_threads: float
    wait_fraction: float

    @classmethod
    def of(cls, samples: Sequence[tuple[float, TrainerLoad]]) -> _Rates:
        (start_s, first), (end_s, last) = samples[0], samples[-1]
        passed_s = end_s - start_s
        if passed_s <= 0:
            return cls(steps_per_s=0.0, blocks_per_s=0.0, busy_threads=0.0, wait_fraction=0.0)
        return cls(
            steps_per_s=(last.steps - first.steps) / passed_s,
            blocks_per_s=(last.blocks - first.blocks) / passed_s,
            busy_threads=(last.busy_s - first.busy_s) / passed_s,
            wait_fraction=_wait_s(first, last) / passed_s,
        )


def _wait_s(first: TrainerLoad, last: TrainerLoad) -> float:
    """Seconds that a trainer waited: its ring had no batch, and it was not at work on the last one."""
    return max(0.0, last.stalled_s - first.stalled_s - (last.steps - first.steps) * last.step_s)
