"""Scenarios of large clusters, and their outcomes: in simulated time (`scale.py`) or in real time (`scale_real.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scale_feeder import RankFeeder, Workload

WARM_S, MEASURED_S = 15.0, 15.0
LOST_SHARE = 0.1
LONG_S, CALM_S = 0.2, 3.0  # a shorter wait may be the benchmark's own, and so may a later one


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Ranks that each want a step every `step_s`; a tenth of the workers is lost in the middle."""

    name: str
    workers: int
    threads: int
    ranks: int
    step_s: float
    workload: Workload
    has_routes: bool = True

    @property
    def blocks_per_s(self) -> float:
        """Blocks that the trainers use up at their own pace."""
        return self.ranks / self.step_s / self.workload.steps_per_block

    @property
    def use(self) -> float:
        """The share of the workers' threads that this takes."""
        return self.blocks_per_s * self.workload.block_s / (self.workers * self.threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it. delivered: of the steps that trainers wanted, at their pace, in the measured time. scheduler:
    share of its time that it worked. feeder_connections, worker_connections: median and most of one. recovery_s: after
    the loss of workers, until the last stall that it caused ended; 0 without one, None if it went on."""

    blocks_per_s: float
    delivered: float
    scheduler: float
    in_flight: int
    feeder_connections: tuple[float, int]
    worker_connections: tuple[float, int]
    recovery_s: float | None
    real_s: float = 0.0


def counts_of(feeders: Sequence[RankFeeder]) -> tuple[int, int]:
    """Blocks finished and steps taken."""
    return sum(feeder.stats.blocks for feeder in feeders), sum(feeder.taken for feeder in feeders)


def recovery(feeders: Sequence[RankFeeder], lost_s: float, now_s: float) -> float | None:
    """Seconds from a loss until no trainer waited for three seconds; None if that did not come."""
    stalls = sorted((start, to) for feeder in feeders for start, to in feeder.stalls if to > lost_s)
    end_s = lost_s
    for start_s, to_s in stalls:
        if to_s - start_s > LONG_S and start_s < end_s + CALM_S:
            end_s = max(end_s, to_s)
    return None if end_s + CALM_S > now_s else end_s - lost_s
