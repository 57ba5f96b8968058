"""An explanation: the verdict on each rank of a run, what columns, ops and features cost, and the advice on data.

Runs in: the process of `feedline explain`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from feedline.dataclass import dataclass
from feedline.loader.limits.linear_bound import ResourceLimits, limits_of
from feedline.loader.limits.machine_advice import Advice, AdviceKind
from feedline.loader.limits.run_facts import Capacity, Interval, RunFacts, sum_samples
from feedline.loader.limits.verdict import Verdict, judge
from feedline.native.kernels import compiled_kernels
from feedline.workbench.explain.cost_process import ChangeKind, DataChange, MeasuredCosts
from feedline.workbench.profile.table_facts import plain_values

# --------------------------------------------------------------------------------------------------------------------
# An explanation: the verdict on each rank of a run, and its facts as plain values.

Source = Literal["short run", "running", "last run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How a run is measured: for how many seconds, each sample as long as `sample_s`, until `stop`. store_bytes_per_s:
    that the store delivers, if known."""

    seconds: float
    stop: Callable[[], bool]
    sample_s: float = 1.0
    store_bytes_per_s: float | None = None


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
    return plain_values(facts)  # type: ignore[no-any-return]


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


# --------------------------------------------------------------------------------------------------------------------
# Turn measured changes of data and features into advice: how many rows per second each would give, by the bound.
# Changes were measured in another process than the run: the CPU time of the run's blocks is taken as it was measured
# there, and the part that a change saves of each stage of it as it was measured here.

_SAVES = "saves {share:.0%} of the blocks' CPU time"
_KINDS: Mapping[ChangeKind, tuple[AdviceKind, str]] = {  # of changes: the kind of the advice, and its reason
    "drop": ("feature", f"{{subject}} {_SAVES} if it is dropped"),
    "truncate": ("feature", f"shorter lists of {{subject}}: {_SAVES}"),
    "optimize": ("decode", f"{{subject}} in other encodings: {_SAVES}"),
    "cache": ("cache", f"an epoch from a cache {_SAVES} from the second on; it needs {{disk_mb:,.0f}} MB of disk"),
    "dedup": ("dedup", f"groups of repeated rows ({{subject}}): {_SAVES}"),
    "row_groups": ("row_groups", "the table has {subject}: larger ones save {share:.0%} of the blocks' CPU time"),
    "op": ("op", "{subject} takes {share:.0%} of the blocks' CPU time"),
}
_MOST_NAMED = 2  # columns, ops or features of a stage, in a verdict
_ENOUGH = 0.75  # of a stage: what takes so much is named alone
_MOST_OF_DECODING = 0.5  # that larger row groups save, where small ones are named instead of columns
_LEAST_PART = 0.2  # of a stage, to be named


def advice_on_data(changes: Sequence[DataChange], facts: RunFacts, capacity: Capacity) -> list[Advice]:
    """Predict rows per second and CPU seconds of a run if each change were made by itself."""
    limits = limits_of(facts, capacity)
    return [_advice(change, limits, facts) for change in changes]


def _advice(change: DataChange, limits: ResourceLimits, facts: RunFacts) -> Advice:
    stages = _gains_of_run(change, facts)
    measured_s = sum(change.stages.values())
    gain = change.gain_s.scaled(sum(stages.values()) / measured_s if measured_s else 1.0)
    # the ends of the interval, as parts of the gain
    ends = (gain.low / gain.cpu_s, gain.high / gain.cpu_s) if gain.cpu_s else (1.0, 1.0)
    low, high = (_rows_ratio(change, limits, facts, stages, part) for part in ends)
    kind, reason = _KINDS[change.kind]
    return Advice(
        kind=kind,
        change=change.how,
        reason=reason.format(subject=change.subject, share=change.share, disk_mb=change.disk_bytes / 1e6),
        rows_ratio=_rows_ratio(change, limits, facts, stages),
        rows_interval=Interval(low=low, high=high),
        cpu_s_saved=gain.cpu_s,
        cpu_interval=Interval(low=gain.low, high=gain.high),
        caveat=change.loses,
    )


def _gains_of_run(change: DataChange, facts: RunFacts) -> dict[str, float]:
    """CPU seconds per million rows that each stage of the run gains."""
    rows = max(facts.block_rows, 1) / 1e6
    times = facts.times
    taken = {"decoding": times.read_cpu_s, "ops": times.transform_cpu_s, "encoding": times.encode_cpu_s}
    found = dict(change.stages)
    for stage, before_s in change.before.items():
        if before_s > 0 and taken[stage] > 0 and stage in found:
            found[stage] = taken[stage] / rows * min(1.0, found[stage] / before_s)
    return found


def _rows_ratio(
    change: DataChange, limits: ResourceLimits, facts: RunFacts, stages: Mapping[str, float], part: float = 1.0
) -> float:
    """Rows per second with the change over those of now. stages: gains of the run; part: of them."""
    changed = limits
    for stage, gain_s in stages.items():
        changed = changed.saving(stage, gain_s * part / 1e6)
    kept = _bytes_kept(change, facts)
    uses: dict[str, dict[str, float]] = {
        each.name: {"store wait": each.uses["store wait"] * kept}
        for each in changed.resources
        if "store wait" in each.uses
    }
    return limits.ratio_to(changed.with_uses(uses))


def _bytes_kept(change: DataChange, facts: RunFacts) -> float:
    """The part of the bytes that are still read; from a cache on local disk, none of the store's."""
    if change.kind == "cache":
        return 0.0
    now = facts.nbytes_read / facts.block_rows * 1e6 if facts.block_rows else 0.0
    return min(2.0, max(0.0, 1 - change.saved_bytes / now)) if now else 1.0


def stage_parts(costs: Mapping[str, Any], changes: Sequence[DataChange] = ()) -> dict[str, tuple[str, float]]:
    """What takes most of each stage, as words with names in backticks, and its share of it.

    costs: facts of a `CostAccount`. changes: of the same blocks; small row groups are to blame for what larger ones
    save, if that is most of decoding.
    """
    columns = {_quoted(column): column["cpu_s"]["cpu_s"] for column in costs["columns"]}
    ops: dict[str, float] = {}
    for feature in costs["features"]:
        step = max(feature["steps"], key=lambda step: step["cpu_s"] / step["sharers"], default=None)
        name = _quoted(feature) if step is None else f"{step['op']} of {_quoted(feature)}"
        ops[name] = feature["ops_s"]["cpu_s"]
    encode = {_quoted(feature): feature["encode_s"]["cpu_s"] for feature in costs["features"]}
    stages = {"decoding": columns, "ops": ops, "encoding": encode}
    found = {stage: named for stage, parts in stages.items() if (named := _largest(parts)) is not None}
    for change in changes:
        if change.kind == "row_groups":
            saved = change.stages["decoding"] / max(costs["decode_s"]["cpu_s"], 1e-12)
            if saved >= _MOST_OF_DECODING:
                found["decoding"] = (change.subject, min(saved, 1.0))
    return found


def _quoted(facts: Mapping[str, Any]) -> str:
    return f"`{facts['name']}`"


def _largest(parts: Mapping[str, float]) -> tuple[str, float] | None:
    total = sum(max(each, 0.0) for each in parts.values())
    if total <= 0:
        return None
    named, share = list[str](), 0.0
    for name, part in sorted(parts.items(), key=lambda item: -item[1])[:_MOST_NAMED]:
        if share >= _ENOUGH or part < _LEAST_PART * total:
            break
        named.append(name)
        share += part / total
    return (" and ".join(named), share) if named else None


# --------------------------------------------------------------------------------------------------------------------


def verdict_with_costs(explanation: Explanation, costs: MeasuredCosts | None) -> Verdict:
    """The verdict on the slowest rank, with what costs name and advise."""
    slowest = _with_lock_share(explanation, costs).slowest
    if costs is None:
        return slowest.verdict()
    advice = advice_on_data(costs.changes, sum_samples(slowest.samples), slowest.capacity)
    # The columns of one of several sources are not those of the run.
    return slowest.verdict(advice, {} if costs.source else stage_parts(costs.account, costs.changes))


def explained_with_costs(explanation: Explanation, costs: MeasuredCosts | None, skipped: str = "") -> dict[str, Any]:
    """Facts of an explanation, with costs as `costs`. skipped: why there are none."""
    facts = explanation_facts(_with_lock_share(explanation, costs), verdict_with_costs(explanation, costs))
    return {**facts, "costs": None if costs is None else costs.facts(), "costs_skipped": skipped}


def _with_lock_share(explanation: Explanation, costs: MeasuredCosts | None) -> Explanation:
    """The explanation of runs whose block threads hold the interpreter's lock as sampled blocks do."""
    if costs is None:
        return explanation
    share = costs.account["lock_share"]
    ranks = (replace(each, capacity=replace(each.capacity, lock_share=share)) for each in explanation.ranks)
    return replace(explanation, ranks=tuple(ranks))
