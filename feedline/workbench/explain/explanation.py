"""An explanation: the verdict on each rank of a run, and its facts as plain values.

Runs in: the process of `feedline explain`. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from feedline.loader.limits.advice import Advice
from feedline.loader.limits.run_facts import Capacity, RunFacts, sum_samples
from feedline.loader.limits.verdict import Verdict, judge
from feedline.native.kernels import compiled_kernels

Source = Literal["short run", "running", "last run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadspaceFacts:
    """What a trainer takes that repeats batches it has: rows per second, and the most that any loader could gain."""

    rows_per_s: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSamples:
    """The samples of one rank, and the capacities of its run."""

    rank: int
    samples: tuple[RunFacts, ...]
    capacity: Capacity

    def verdict(self, advice: Sequence[Advice] = (), parts: Mapping[str, tuple[str, float]] | None = None) -> Verdict:
        """The verdict on the rank. advice, parts: see `judge`."""
        return judge(self.samples, self.capacity, advice, parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What limits a run. source: how it was measured. ranks: their samples, ascending. seconds: that were measured.
    stopped: before its time. headspace: None unless asked for."""

    name: str
    source: Source
    ranks: tuple[RankSamples, ...]
    seconds: float
    stopped: bool = False
    headspace: HeadspaceFacts | None = None

    @property
    def slowest(self) -> RankSamples:
        """The rank whose trainer waits most; all others wait for it in each step."""
        return max(self.ranks, key=lambda each: sum_samples(each.samples).trainer_wait or 0.0)


def explanation_facts(explanation: Explanation, verdict: Verdict) -> dict[str, Any]:
    """An explanation as plain values, for `--json` and pages. verdict: on its slowest rank, with all advice."""
    facts = {
        "name": explanation.name,
        "kernels": list(compiled_kernels()),
        "source": explanation.source,
        "seconds": explanation.seconds,
        "stopped": explanation.stopped,
        "rank": explanation.slowest.rank,
        **_verdict_facts(verdict),
        "capacity": asdict(explanation.slowest.capacity),
        "samples": [asdict(sample) for sample in explanation.slowest.samples],
        "ranks": [
            {"rank": each.rank, "sentence": (own := each.verdict()).sentence, "rows_per_s": own.rows_per_s,
             "trainer_wait": own.trainer_wait}
            for each in explanation.ranks
        ],
        "headspace": None if explanation.headspace is None else asdict(explanation.headspace),
    }  # fmt: skip
    return _finite(facts)  # type: ignore[no-any-return]


def _verdict_facts(verdict: Verdict) -> dict[str, Any]:
    bounds = [
        {"resource": each.name, "capacity": each.capacity, "unit": each.unit, "uses": dict(each.uses),
         "rows_per_s": each.rows_per_s}
        for each in verdict.limits.resources
    ]  # fmt: skip
    return {
        "verdict": verdict.sentence,
        "limit": verdict.limit,
        "stage": verdict.stage,
        "ties": list(verdict.ties),
        "trainer_wait": verdict.trainer_wait,
        "rows_per_s": verdict.rows_per_s,
        "interval": None if verdict.interval is None else asdict(verdict.interval),
        "bound": verdict.bound,
        "headroom": verdict.headroom,
        "bounds": bounds,
        "stages": [asdict(stage) for stage in verdict.stages],
        "advice": [asdict(advice) for advice in verdict.advice],
    }


def _finite(value: Any) -> Any:
    """The value with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
