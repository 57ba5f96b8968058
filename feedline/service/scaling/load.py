"""Measure what a feeder's trainers use and wait for.

Runs in: the feeder, in the thread of its loop, once a second; not where blocks are computed by threads of the feeder.
Pure: counts and time are arguments.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

# Rates are means over so many seconds, and over so many times a block's.
_SPAN_S, _SPAN_BLOCKS = 10.0, 5
# A trainer that waits nearly always shows no pace beyond this multiple of its rate.
_LEAST_OWN_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLoad:
    """Counts of one trainer so far, and its present state.

    steps: delivered. blocks, busy_s: finished for it, and the seconds that computing them took. stalled_s: for which
    the trainer has waited for batches. blocks_per_step: that a step uses up, on average. block_s: median computing time
    of recent blocks (0: unknown). ready: finished batches in its ring. in_flight: blocks.
    """

    steps: int
    blocks: int
    busy_s: float
    stalled_s: float
    starved: bool
    blocks_per_step: float
    block_s: float
    ready: int
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederLoad:
    """The load of a feeder: sums over its trainers, means over the last `seconds`, in which `blocks` were finished.

    use_blocks_per_s: that the trainers used up; pace_blocks_per_s: that they would without waiting, by the time that
    each took for itself. wait_fraction: share of the time in which the trainer that waited most waited for a batch,
    without the worst second: a short pause says nothing about workers. busy_threads: that computed blocks.
    """

    ranks: int
    seconds: float
    blocks: int
    blocks_per_s: float
    busy_threads: float
    use_blocks_per_s: float
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

    def restart(self) -> None:
        """Measure from now on: there are other workers."""
        self._samples = {session: deque([samples[-1]]) for session, samples in self._samples.items()}

    def observe(self, loads: Mapping[int, TrainerLoad], now_s: float) -> FeederLoad:
        """Take the trainers' counts, by session; returns the load."""
        for session in set(self._samples) - set(loads):
            self._busy_s_of_gone += self._samples.pop(session)[-1][1].busy_s
        for session, load in loads.items():
            samples = self._samples.setdefault(session, deque())
            samples.append((now_s, load))
            span_s = max(_SPAN_S, _SPAN_BLOCKS * load.block_s)
            while len(samples) > 2 and samples[1][0] <= now_s - span_s:
                samples.popleft()
        return self._sum([_Rates.of(self._samples[session]) for session in loads], list(loads.values()))

    def _sum(self, rates: Sequence[_Rates], loads: Sequence[TrainerLoad]) -> FeederLoad:
        known = [load.block_s for load in loads if load.block_s]
        pairs = list(zip(rates, loads, strict=True))
        return FeederLoad(
            ranks=len(loads),
            seconds=min((rate.seconds for rate in rates), default=0.0),
            blocks=sum(rate.blocks for rate in rates),
            blocks_per_s=sum(rate.blocks / rate.seconds for rate in rates if rate.seconds),
            busy_threads=sum(rate.busy_threads for rate in rates),
            use_blocks_per_s=sum(rate.steps_per_s * load.blocks_per_step for rate, load in pairs),
            pace_blocks_per_s=sum(rate.pace_steps_per_s * load.blocks_per_step for rate, load in pairs),
            block_s=statistics.median(known) if known else 0.0,
            wait_fraction=max((rate.wait_fraction for rate in rates), default=0.0),
            starved=any(load.starved for load in loads),
            steps_ready=sum(load.ready for load in loads),
            blocks_in_flight=sum(load.in_flight for load in loads),
            busy_s_total=self._busy_s_of_gone + sum(load.busy_s for load in loads),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    seconds: float = 0.0
    blocks: int = 0
    steps_per_s: float = 0.0
    pace_steps_per_s: float = 0.0
    busy_threads: float = 0.0
    wait_fraction: float = 0.0

    @classmethod
    def of(cls, samples: Sequence[tuple[float, TrainerLoad]]) -> _Rates:
        (start_s, first), (end_s, last) = samples[0], samples[-1]
        seconds = end_s - start_s
        if seconds <= 0:
            return cls()
        steps_per_s = (last.steps - first.steps) / seconds
        waits = [
            (after.stalled_s - before.stalled_s, at_s - before_s)
            for (before_s, before), (at_s, after) in pairwise(samples)
        ]
        waited_s, (worst_s, worst_of_s) = sum(wait for wait, _ in waits), max(waits)
        own_share = max(_LEAST_OWN_SHARE, 1.0 - waited_s / seconds)
        return cls(
            seconds=seconds,
            blocks=last.blocks - first.blocks,
            steps_per_s=steps_per_s,
            pace_steps_per_s=steps_per_s / own_share,
            busy_threads=(last.busy_s - first.busy_s) / seconds,
            wait_fraction=min(1.0, max(0.0, waited_s - worst_s) / (seconds - worst_of_s)) if len(waits) > 1 else 0.0,
        )
