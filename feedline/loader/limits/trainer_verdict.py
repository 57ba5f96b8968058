"""A trainer's verdict on its own run, from its feeder's reports and its own waits; and the headspace of a batch.

Runs in: the trainer; no torch. Marks of the counts, a second apart at least, become the samples of the verdict's
intervals.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Generic, TypeVar

from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.loader.limits.run_facts import RunFacts, capacity_of
from feedline.loader.limits.verdict import Verdict, judge, short
from feedline.loader.wire.facts import FeederStats

T = TypeVar("T")

_MARKS = 64
_MARK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerMark:
    """A trainer's counts at a moment: of its feeder, its seconds of waiting, its process's CPU seconds (negative:
    unknown)."""

    at_s: float
    wait_s: float
    cpu_s: float
    rows: int
    stats: FeederStats


class TrainerSamples:
    """The last marks of a trainer's counts. began_s: when its first batch was requested (None: not yet)."""

    def __init__(self, began_s: float | None) -> None:
        self._marks: deque[TrainerMark] = deque(maxlen=_MARKS)
        if began_s is not None:
            self._marks.append(TrainerMark(at_s=began_s, wait_s=0.0, cpu_s=-1.0, rows=0, stats=FeederStats()))
        self._epoch: TrainerMark | None = None  # where the current one began

    def add(self, mark: TrainerMark) -> None:
        """Add a mark; the second one within a second replaces the first."""
        if len(self._marks) > 1 and mark.at_s - self._marks[-2].at_s < _MARK_S:
            self._marks[-1] = mark
        else:
            self._marks.append(mark)

    def verdict(self, spec: PipelineSpec, *, cores: float) -> Verdict:
        """The verdict on all marks."""
        marks = list(self._marks)
        stats = marks[-1].stats if marks else FeederStats()
        samples = [_between(new, old) for old, new in pairwise(marks)]
        return judge(samples, capacity_of(spec, stats, cores=cores))

    def epoch_line(self, mark: TrainerMark, spec: PipelineSpec, *, cores: float) -> str:
        """A line about the epoch that ends with this mark: its rate, waiting, limit and best advice."""
        self.add(mark)
        before = self._epoch or self._marks[0]  # another mark than this one: `began_s` is known by then
        self._epoch = mark
        facts = _between(mark, before)
        verdict = judge([facts], capacity_of(spec, mark.stats, cores=cores))
        best = f" Best advice: {describe_advice(verdict)}." if verdict.advice else ""
        return f"epoch {mark.stats.epoch}: {short(facts.rows_per_s)}. {verdict.sentence}{best}"


def describe_advice(verdict: Verdict) -> str:
    """The first advice in a few words."""
    first = verdict.advice[0]
    gain = (
        f"{first.rows_ratio:.2f}x rows/s" if first.rows_ratio > 1 else f"{first.cpu_s_saved:.2g} CPU-s per M rows less"
    )
    return f"{first.change} ({gain} predicted)"


def _between(new: TrainerMark, old: TrainerMark) -> RunFacts:
    facts = RunFacts.between(
        new.stats,
        old.stats,
        wall_s=new.at_s - old.at_s,
        trainer_wait_s=new.wait_s - old.wait_s,
        trainer_cpu_s=max(0.0, new.cpu_s - old.cpu_s) if old.cpu_s >= 0 else 0.0,
    )
    return replace(facts, rows=new.rows - old.rows)  # the feeder announces ahead


class Headspace(Generic[T]):
    """Yields a batch that was received, again and again: the trainer's own pace, which no loader can exceed.

    The run's position, its steps and its state are as before: nothing is requested of the feeder meanwhile. What is
    done with the batch is the trainer's: steps of an optimizer change the model, so measure before the training, or
    with a copy. The first step warms up and is not counted. rows: of the batch. rows_per_s: of the run, to compare.
    """

    def __init__(
        self,
        batch: T,
        rows: int,
        *,
        steps: int,
        rows_per_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._batch, self._rows, self._left, self._clock = batch, rows, steps, clock
        self._measured = rows_per_s
        self._began_s: float | None = None
        self.steps = 0
        self.seconds = 0.0

    def __iter__(self) -> Iterator[T]:
        for number in range(self._left + 1):
            if number == 1:
                self._began_s = self._clock()
            yield self._batch
            if self._began_s is not None and number:
                self.steps, self.seconds = number, self._clock() - self._began_s

    @property
    def rows_per_s(self) -> float:
        """The rows per second that the trainer takes without waiting."""
        return self.steps * self._rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def gain(self) -> float:
        """The most that any loader could gain: this rate over the run's; 1 before both are known."""
        return self.rows_per_s / self._measured if self._measured > 0 and self.seconds > 0 else 1.0
