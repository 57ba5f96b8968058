"""Decide how many workers a feeder's trainers need, by whether they wait for batches.

Runs in: the feeder, once a second. Pure: measurements come in, a number of workers and the reason of a change go out.
A constant load ends at one number, the least without waiting: docs/decisions/0022-workers-follow-waiting-trainers.md.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise

from feedline.dataclass import dataclass

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
        # 4 steps in 3 s, of which 0.5, 0.5 and 1 were waiting: 1.33 steps/s, at its own pace 4 (in 1 s); without the
        # worst second it waited 1 of 2 s.
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


# The estimate is so uncertain that a tenth of a worker too few is tried; waiting corrects it.
_TOLERANCE = 0.1
_FASTEST_GROWTH = 4
_LEAST_GROWTH = 1.1
# Blocks per thread that show what a number of workers achieves: the first ones load libraries.
_ENOUGH_ROUNDS = 2
# Added workers must add at least this share of what they would if nothing else were the limit.
_LEAST_EFFICIENCY = 0.3
# After growth that did not help.
_RETRY_S = 600.0
# Waiting that lasts this many times `grow_after_s` says that the estimate is too low; less may be left of the change
# that made it high enough.
_PERSISTENT = 4
# The part of `shrink_after_s` whose most is kept: rates at its beginning are means over what was before.
_KEPT = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRules:
    """Limits and thresholds. most_workers: None for no limit. wait: share of time that a trainer may wait. unit: what
    is counted as workers, for messages: "threads" of a cluster that others share.

    grow_after_s, shrink_after_s: for which a trainer has waited, or not.
    """

    least_workers: int = 0
    most_workers: int | None = None
    wait: float = 0.03
    grow_after_s: float = 5.0
    shrink_after_s: float = 60.0
    unit: str = "workers"

    def clamp(self, workers: int) -> int:
        return max(self.least_workers, workers if self.most_workers is None else min(workers, self.most_workers))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSample:
    """A measurement. workers: that the feeder can count on now. most_useful: those beyond which the window of blocks in
    flight leaves workers idle (None: it does not)."""

    now_s: float
    load: FeederLoad
    workers: float
    threads_per_worker: float
    most_useful: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """The number of workers; the reason if it has changed."""

    workers: int
    reason: str | None = None


def is_calm(load: FeederLoad, wait: float) -> bool:
    """Whether no trainer waits: neither of late nor now."""
    return load.wait_fraction <= wait and not (load.starved and load.steps_ready <= 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growth:
    """The last growth, until it is known whether it helped."""

    before: int
    blocks_per_s: float
    has_failed: bool = False  # at a first try


@dataclass(slots=True)
class Autoscaler:
    """As few workers as keep the trainers from waiting."""

    rules: ScalingRules
    wanted: int = field(init=False)
    _waiting_since_s: float | None = None
    _idle_since_s: float | None = None
    _needs: deque[tuple[float, float]] = field(default_factory=deque)  # while calm: time, workers in use
    _too_few: tuple[int, float] | None = None  # workers with which a trainer waited, those that it needed by estimate
    _growth: _Growth | None = None
    _ceiling: tuple[int, float] | None = None  # workers beyond which growth did not help, until when that counts

    def __post_init__(self) -> None:
        self.wanted = self.rules.clamp(max(1, self.rules.least_workers))

    def decide(self, sample: ScalingSample) -> ScalingDecision:
        """The number of workers after this measurement."""
        load, rules = sample.load, self.rules
        if load.ranks and not self.wanted:
            return self._change(1, "a trainer has come")
        if is_calm(load, rules.wait):
            return self._shrink(sample)
        self._idle_since_s = None
        self._needs.clear()
        threads = max(1.0, sample.workers) * sample.threads_per_worker
        if load.wait_fraction <= rules.wait:
            self._waiting_since_s = None
            return self._same
        if self._waiting_since_s is None:
            self._waiting_since_s = sample.now_s
        if load.seconds < rules.grow_after_s or load.blocks < _ENOUGH_ROUNDS * threads:
            return self._same
        if sample.workers < self.wanted - 0.5:  # those that were asked for have not come
            self._waiting_since_s = sample.now_s
            return self._same
        need = load.pace_blocks_per_s * load.block_s / sample.threads_per_worker
        waited_s = sample.now_s - self._waiting_since_s
        if _workers(need) <= self.wanted and waited_s < _PERSISTENT * rules.grow_after_s:
            return self._same
        target = self._target(sample, need)
        return self._judge(sample, target) or self._grow(sample, target, need)

    @property
    def _same(self) -> ScalingDecision:
        return ScalingDecision(workers=self.wanted)

    def _judge(self, sample: ScalingSample, target: int) -> ScalingDecision | None:
        """Take back growth that did not help at two numbers of workers, of which one may have been bad; else None."""
        growth, rate = self._growth, sample.load.blocks_per_s
        if growth is None:
            return None
        expected = self.wanted / growth.before - 1
        if rate >= growth.blocks_per_s * (1 + _LEAST_EFFICIENCY * expected):
            self._growth = None
            return None
        if target > self.wanted and not growth.has_failed:
            self._growth = replace(growth, has_failed=True)
            return None
        self._growth, self._ceiling = None, (growth.before, sample.now_s + _RETRY_S)
        return self._change(
            growth.before,
            f"more {self.rules.unit} did not help ({growth.blocks_per_s:.2g} blocks/s before, {rate:.2g} after)",
        )

    def _target(self, sample: ScalingSample, need: float) -> int:
        least = max(self.wanted + 1, math.floor(self.wanted * _LEAST_GROWTH))
        target = self.rules.clamp(max(least, min(_workers(need), _FASTEST_GROWTH * self.wanted)))
        if sample.most_useful is not None:
            target = min(target, sample.most_useful)
        if self._ceiling is not None:
            if sample.now_s < self._ceiling[1]:
                target = min(target, self._ceiling[0])
            else:
                self._ceiling = None
        return max(target, self.wanted)

    def _grow(self, sample: ScalingSample, target: int, need: float) -> ScalingDecision:
        load = sample.load
        if target == self.wanted:
            return self._same
        self._too_few = self.wanted, need
        if self._growth is None:
            self._growth = _Growth(before=self.wanted, blocks_per_s=load.blocks_per_s)
        return self._change(
            target,
            f"trainers wait {load.wait_fraction:.0%} of the time, and need {need:.1f} {self.rules.unit} by their own "
            "pace",
        )

    def _shrink(self, sample: ScalingSample) -> ScalingDecision:
        load, now_s = sample.load, sample.now_s
        self._growth = self._waiting_since_s = None
        in_use = load.use_blocks_per_s * load.block_s / sample.threads_per_worker
        self._needs.append((now_s, in_use))
        while self._needs[0][0] < now_s - _KEPT * self.rules.shrink_after_s:
            self._needs.popleft()
        if _workers(in_use) >= self.wanted:
            self._idle_since_s = None
            return self._same
        if self._idle_since_s is None:
            self._idle_since_s = now_s
        if now_s - self._idle_since_s < self.rules.shrink_after_s:
            return self._same
        most = max(need for _, need in self._needs)
        target = _workers(most)
        if self._too_few is not None and most >= (1 - 2 * _TOLERANCE) * self._too_few[1]:
            target = max(target, self._too_few[0] + 1)
        target = max(self.rules.clamp(target), min(1, load.ranks))
        if target >= self.wanted:
            return self._same
        idle = self.wanted - math.ceil(most - _TOLERANCE)
        why = "no trainer took a batch" if not most else "ring full"
        return self._change(target, f"{why} for {self.rules.shrink_after_s:.0f} s, {idle} {self.rules.unit} idle")

    def _change(self, target: int, why: str) -> ScalingDecision:
        reason = f"{why}: {self.wanted} → {target}"
        self.wanted = target
        self._idle_since_s = self._waiting_since_s = None
        self._needs.clear()
        return ScalingDecision(workers=target, reason=reason)


def _workers(need: float) -> int:
    return math.ceil(need * (1 - _TOLERANCE) - 1e-9)  # 2.2 -> 2, 2.3 -> 3
