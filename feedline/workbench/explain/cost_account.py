"""Account for what a plan's columns, ops and features cost: CPU seconds and compressed bytes per million rows.

Runs in: the process that explains; `measure_costs` with nothing else running in it. A feature has its part of what its
columns take, in equal parts with the features that read them, too, and of what its ops and its encoding take. What all
share (opening files, filter, calls, the order of rows) is nobody's. The account is compared with whole blocks as tasks
compute them: the difference is a part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from feedline.blocks.jobs import compile_job
from feedline.errors import PlanError
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import Quality, measures, merge
from feedline.planning.source_plan import SourcePlan
from feedline.resources.cgroups import available_cores
from feedline.workbench.explain.column_costs import ColumnCost, DecodeCosts, measure_decoding
from feedline.workbench.explain.cpu_time import NO_CPU, ROUNDS, CpuBudget, CpuEstimate, estimate, measure_in_turn
from feedline.workbench.explain.lock_share import measure_lock_share
from feedline.workbench.explain.pass_costs import PassCosts, measure_passes
from feedline.workbench.explain.sampled_blocks import (
    STAGES,
    BlockSample,
    StageSeconds,
    run_sample,
    sample_blocks,
    stage_seconds,
)

_LOCK_PART = 0.15  # of the account's CPU seconds, for the share of the interpreter's lock


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureAccount:
    """What a feature costs per million rows. nbytes: compressed, its part of its columns'. problems: its share of all
    values of the sample that were null, unknown or not finite.
    """

    name: str
    group: str
    columns: tuple[str, ...]
    decode_s: CpuEstimate
    ops_s: CpuEstimate
    encode_s: CpuEstimate
    nbytes: float
    problems: float = 0.0

    @property
    def cpu_s(self) -> CpuEstimate:
        return self.decode_s.plus(self.ops_s).plus(self.encode_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAccount:
    """All of a plan's features, per million rows, and the whole that they are parts of.

    shared_s: what is no feature's own, of decoding, of passes and of the order of rows; block_s: of whole blocks as
    tasks compute them, of which the parts that were measured are `accounted_s`. stages: the time of blocks in decoding,
    ops and encoding. lock_share: of that time, for which a thread holds the interpreter's lock (None: there is one
    core, where nobody waits for it). rows: of the sample; epoch_rows: that one epoch has.
    """

    rows: int
    blocks: int
    epoch_rows: int
    features: tuple[FeatureAccount, ...]
    decoding: DecodeCosts
    passes: PassCosts
    block_s: CpuEstimate
    stages: Mapping[str, float]
    measuring_s: float
    lock_share: float | None = None

    @property
    def shared_s(self) -> float:
        return self.decoding.shared.cpu_s + self.passes.shared.cpu_s + self.passes.order.cpu_s

    @property
    def accounted_s(self) -> float:
        return self.shared_s + sum(feature.cpu_s.cpu_s for feature in self.features)

    @property
    def difference_s(self) -> float:
        """What blocks take beyond what was measured in parts; negative where they take less."""
        return self.block_s.cpu_s - self.accounted_s

    def share(self, feature: FeatureAccount) -> float:
        """A feature's part of what blocks take, from 0 to 1."""
        return feature.cpu_s.cpu_s / max(self.block_s.cpu_s, self.accounted_s, 1e-12)

    def facts(self) -> dict[str, Any]:
        """Plain values. Times are CPU seconds per million rows, of an epoch where the name says so."""
        epoch = self.epoch_rows / 1e6
        return {
            "rows": self.rows,
            "blocks": self.blocks,
            "epoch_rows": self.epoch_rows,
            "measuring_s": self.measuring_s,
            "block_s": asdict(self.block_s),
            "stages": dict(self.stages),
            "lock_share": self.lock_share,
            "decode_s": asdict(self.decoding.whole),
            "pass_s": asdict(self.passes.whole),
            "shared_s": self.shared_s,
            "difference_s": self.difference_s,
            "columns": [_column_facts(column) for column in self.decoding.columns],
            "features": [
                {
                    **asdict(feature),
                    "cpu_s": asdict(feature.cpu_s),
                    "share": self.share(feature),
                    "epoch_cpu_s": feature.cpu_s.cpu_s * epoch,
                    "epoch_bytes": feature.nbytes * epoch,
                    "steps": [asdict(step) for step in cost.steps],
                }
                for feature, cost in zip(self.features, self.passes.features, strict=True)
            ],
        }


def _column_facts(column: ColumnCost) -> dict[str, Any]:
    return {
        "name": column.name,
        "cpu_s": asdict(column.cpu_s),
        "bytes": column.nbytes,
        **asdict(column.stored),
        "is_measured": column.is_measured,
    }


def measure_costs(
    plan: SourcePlan,
    *,
    budget_s: float = float("inf"),
    rounds: int = ROUNDS,
    sample: BlockSample | None = None,
) -> CostAccount:
    """Measure the account of a plan. budget_s: CPU seconds that it may take, about.

    Raises DataError where a row of the sample cannot be computed, PlanError where a fit is missing.
    """
    if plan.features.missing_fits:
        raise PlanError("features wait for fits: got no artifact set with them, expected one. Run feedline fit")
    budget = CpuBudget(budget_s)
    sample = sample or sample_blocks(plan)
    compiled = compile_job(sample.job)
    third = CpuBudget(budget_s / 3)
    qualities: list[Quality] = []
    stages: list[StageSeconds] = []

    def run() -> None:
        results = run_sample(sample, packed=False)
        qualities[:] = [result.quality for result in results]
        stages.append(stage_seconds(results))

    works = [run]
    blocks = measure_in_turn(works, third, rounds=rounds)[:, 0] * sample.per_million
    shares = CpuBudget(budget.left_s * _LOCK_PART)
    share = measure_lock_share(partial(run_sample, sample, packed=False), shares) if available_cores() > 1 else None
    decoding = measure_decoding(sample, compiled, plan.snapshot, CpuBudget(budget.left_s / 2), rounds=rounds)
    passes = measure_passes(sample, compiled, CpuBudget(budget.left_s), rounds=rounds)
    return CostAccount(
        rows=sample.rows,
        blocks=len(sample.requests),
        epoch_rows=sample.epoch_rows,
        features=divide_costs(plan, decoding, passes, _problems(merge(qualities), compiled.layout.schema)),
        decoding=decoding,
        passes=passes,
        block_s=estimate(blocks),
        stages=_divided(float(np.median(blocks)), stages[-len(blocks) :]),
        measuring_s=budget.used_s,
        lock_share=share,
    )


def _divided(block_s: float, rounds: Sequence[StageSeconds]) -> dict[str, float]:
    """The time of blocks by stages. All rounds together: what Polars' pool takes is counted late, but not twice."""
    sums = np.sum(rounds, axis=0)
    return dict(zip(STAGES, (block_s * sums / max(sums.sum(), 1e-12)).tolist(), strict=True))


def _problems(quality: Quality, schema: BatchSchema) -> dict[str, float]:
    """By feature, how many values are null, unknown or not finite."""
    names = ("nulls", "oov", "nonfinite")
    return {name: sum(each.get(one, 0) for one in names) for name, each in measures(quality, schema).items()}


def divide_costs(
    plan: SourcePlan, decoding: DecodeCosts, passes: PassCosts, problems: Mapping[str, float] | None = None
) -> tuple[FeatureAccount, ...]:
    """Each feature's part of what was measured: a column's in equal parts for the features that read it."""
    features = plan.job.features
    outputs = {output.name: output for output in plan.features.outputs}
    readers = Counter(name for output in outputs.values() for name in {*output.reads, *output.row_columns})
    costs = {cost.name: cost for cost in passes.features}
    columns = {column.name: column for column in decoding.columns}
    total = sum(problems.values()) if problems else 0.0
    found = []
    for feature in features:
        output = outputs[feature.name]
        own = [columns[name] for name in dict.fromkeys((*output.reads, *output.row_columns)) if name in columns]
        found.append(
            FeatureAccount(
                name=feature.name,
                group=feature.group,
                columns=tuple(column.name for column in own),
                decode_s=_sum([column.cpu_s.scaled(1 / readers[column.name]) for column in own]),
                ops_s=costs[feature.name].ops_s,
                encode_s=costs[feature.name].encode_s,
                nbytes=sum(column.nbytes / readers[column.name] for column in own),
                problems=(problems or {}).get(feature.name, 0.0) / total if total else 0.0,
            )
        )
    return tuple(found)


def _sum(parts: Sequence[CpuEstimate]) -> CpuEstimate:
    found = NO_CPU
    for part in parts:
        found = found.plus(part)
    return found
