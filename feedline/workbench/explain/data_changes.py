"""Find changes of data and features that would cost less, and measure each on sampled blocks.

Runs in: the process that explains. A change is a job and requests of its own: a feature less, shorter lists, the same
rows in other files, from a cache, or deduplicated. Its blocks are computed in turn with those of today, packed as a
slot is, since less data is also less to copy; the gain is the median difference in CPU time. Changes that gain nothing
that can be told from noise are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from feedline.blocks.jobs import CompiledJob, compile_job
from feedline.blocks.piece_chunks import piece_chunks
from feedline.errors import FeedlineError
from feedline.planning.dedup.proposals import describe_proposals
from feedline.planning.source_plan import SourcePlan
from feedline.resources.scratch import scratch_folder
from feedline.spec.dedup_section import DedupSpec
from feedline.spec.features import FeatureSpec, OpCall
from feedline.transforms.compile.dedup_groups import assign_groups
from feedline.warehouse.cache.cache_folder import CacheRef
from feedline.workbench.explain.cost_account import CostAccount, FeatureAccount
from feedline.workbench.explain.cpu_time import NO_CPU, ROUNDS, CpuBudget, estimate, measure_in_turn
from feedline.workbench.explain.measured_costs import ChangeKind, DataChange
from feedline.workbench.explain.pass_costs import REPEATS
from feedline.workbench.explain.rewritten_blocks import (
    ROW_GROUP_ROWS,
    RewrittenSample,
    mean_row_group_rows,
    rewrite_sample,
)
from feedline.workbench.explain.sampled_blocks import (
    STAGES,
    BlockSample,
    StageSeconds,
    bare_job,
    run_sample,
    stage_seconds,
)

_FEATURES = 3  # that are dropped or shortened, each by itself
_LEAST_SHARE = 0.05  # of the CPU time that a feature or an op must take to be tried
_SHORTENS = ("first_x", "list_slice", "pad")  # ops that bound the length of lists
_PERCENTILE = 95
_MOST_KEPT = 0.9  # of the elements of lists, where shortening is tried
_BETTER_COLUMNS, _BETTER_SHARE = 8, 0.9  # columns whose encodings are tried: those that take most of decoding
_CHOOSING_S = 0.5  # CPU of choosing a column's encoding, about
_FEW_ROWS = ROW_GROUP_ROWS // 2  # of row groups that are joined


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A change that is to be measured."""

    change: DataChange
    sample: BlockSample


def find_changes_of_data(
    plan: SourcePlan,
    sample: BlockSample,
    account: CostAccount,
    *,
    budget_s: float = float("inf"),
    rounds: int = ROUNDS,
    only: Collection[ChangeKind] | None = None,
) -> list[DataChange]:
    """Measure the changes that may pay, those that gain most first. only: these kinds (default: all)."""
    budget = CpuBudget(budget_s)
    compiled = compile_job(sample.job)
    block_s = account.block_s.cpu_s / sample.per_million
    better = _slow_columns(account)
    makers: list[tuple[ChangeKind, float, Callable[[Path], list[_Trial]]]] = [  # with CPU seconds to prepare, about
        ("drop", 0.0, lambda _: _dropped(sample, account)),
        ("truncate", block_s, lambda _: _truncated(sample, compiled, account)),
        ("row_groups", 3 * block_s, partial(_larger_row_groups, plan, sample, compiled)),
        ("cache", 3 * block_s, partial(_cached, plan, sample)),
        ("dedup", 4 * block_s, lambda _: _deduplicated(plan, sample)),
        ("optimize", 3 * block_s + _CHOOSING_S * len(better), partial(_optimized, plan, sample, compiled, better)),
    ]
    with ExitStack() as stack:
        candidates: list[_Trial] = []
        for kind, prepare_s, make in makers:
            enough = budget.left_s >= prepare_s + 2 * block_s * (len(candidates) + _FEATURES)
            if (only is None or kind in only) and enough:
                # A codec that pyarrow does not write, a full disk: then this change is not known, the others are.
                with suppress(FeedlineError, pa.ArrowException, OSError):
                    candidates += make(stack.enter_context(scratch_folder()))
        measured = _measure(sample, candidates, budget, rounds)
    heavy = _heavy_ops(account) if only is None or "op" in only else []
    found = (replace(each, before=account.stages) for each in [*measured, *heavy] if each.is_worthwhile)
    return sorted(found, key=lambda each: -each.gain_s.cpu_s)


def _measure(sample: BlockSample, candidates: Sequence[_Trial], budget: CpuBudget, rounds: int) -> list[DataChange]:
    if not candidates:
        return []
    samples = [sample, *(candidate.sample for candidate in candidates)]
    stages: list[list[StageSeconds]] = [[] for _ in samples]

    def run(index: int) -> None:
        stages[index].append(stage_seconds(run_sample(samples[index], packed=True)))

    works = [partial(run, index) for index in range(len(samples))]
    seconds = measure_in_turn(works, budget, rounds=rounds) * sample.per_million
    before_s = float(np.median(seconds[:, 0]))
    medians = [np.median(own[-len(seconds) :], axis=0) for own in stages]
    found = []
    for index, candidate in enumerate(candidates, start=1):
        gain_s = estimate(seconds[:, 0] - seconds[:, index])
        parts = _parts_of(gain_s.cpu_s, medians[0] - medians[index])
        found.append(replace(candidate.change, gain_s=gain_s, before_s=before_s, stages=parts))
    return found


def _parts_of(gain_s: float, stages: StageSeconds) -> dict[str, float]:
    """A gain by the stages that gain."""
    gains = np.maximum(stages, 0.0)
    shares = gains / gains.sum() if gains.sum() > 0 else np.full(len(STAGES), 1 / len(STAGES))
    return dict(zip(STAGES, (gain_s * shares).tolist(), strict=True))


def _costly(account: CostAccount, *, groups: Collection[str] | None = None) -> list[FeatureAccount]:
    """The features that cost most, without labels and extras."""
    chosen = [
        feature
        for feature in account.features
        if account.share(feature) >= _LEAST_SHARE
        and feature.group not in ("label", "extra")
        and (groups is None or feature.group in groups)
    ]
    return sorted(chosen, key=lambda feature: -feature.cpu_s.cpu_s)[:_FEATURES]


def _dropped(sample: BlockSample, account: CostAccount) -> list[_Trial]:
    found = []
    for feature in _costly(account):
        others = tuple(each for each in sample.job.features if each.name != feature.name)
        if not others:
            continue
        change = DataChange(
            kind="drop",
            subject=feature.name,
            how=f"remove {feature.name} from `features`",
            loses="the model loses the feature",
            gain_s=NO_CPU,
            before_s=0.0,
            saved_bytes=feature.nbytes,
        )
        found.append(_Trial(change=change, sample=_with_features(sample, others)))
    return found


def _with_features(sample: BlockSample, features: Sequence[FeatureSpec]) -> BlockSample:
    return replace(sample, job=bare_job(sample.job, features))


def _truncated(sample: BlockSample, compiled: CompiledJob, account: CostAccount) -> list[_Trial]:
    """Lists without a bound, cut after the elements that 95 % of the rows have at most."""
    by_name = {feature.name: feature for feature in sample.job.features}
    found = []
    for feature in _costly(account, groups=("sparse",)):
        spec = by_name[feature.name]
        if spec.op is not None or spec.expr is not None or any(call.op in _SHORTENS for call in spec.ops):
            continue
        lengths = _list_lengths(sample, compiled, spec.column or spec.name)
        if lengths is None or not lengths.sum():
            continue
        most = max(1, int(np.percentile(lengths, _PERCENTILE)))
        kept = float(np.minimum(lengths, most).sum() / lengths.sum())
        if kept > _MOST_KEPT:
            continue
        call = OpCall(op="first_x", arguments=json.dumps({"": most}))
        shorter = tuple(
            replace(each, ops=(call, *each.ops)) if each.name == spec.name else each for each in sample.job.features
        )
        change = DataChange(
            kind="truncate",
            subject=feature.name,
            how=f"{feature.name}: [{{first_x: {most}}}, ...] in `features`",
            loses=f"{1 - kept:.0%} of its elements are lost, all of the longest {100 - _PERCENTILE} % of rows",
            gain_s=NO_CPU,
            before_s=0.0,
        )
        found.append(_Trial(change=change, sample=_with_features(sample, shorter)))
    return found


def _list_lengths(sample: BlockSample, compiled: CompiledJob, column: str) -> NDArray[np.int64] | None:
    """int64 [rows]: the lengths of a column's lists; None for a column of others."""
    lengths = [
        chunk.frame.get_column(column).list.len().fill_null(0).to_numpy()
        for request in sample.requests
        for piece in request.pieces
        for chunk in piece_chunks(compiled, piece, [column])
        if isinstance(chunk.frame.get_column(column).dtype, pl.List)
    ]
    return np.concatenate(lengths).astype(np.int64) if lengths else None


def _larger_row_groups(plan: SourcePlan, sample: BlockSample, compiled: CompiledJob, folder: Path) -> list[_Trial]:
    mean = mean_row_group_rows(sample, plan.snapshot.rows_per_row_group)
    if mean >= _FEW_ROWS:
        return []
    rewritten = rewrite_sample(sample, compiled, folder, merge=True)
    change = DataChange(
        kind="row_groups",
        subject=f"row groups of {mean:,.0f} rows",
        how=_optimize_command(plan, rewritten),
        gain_s=NO_CPU,
        before_s=0.0,
        saved_bytes=(rewritten.before - rewritten.nbytes) * sample.per_million,
    )
    return [_Trial(change=change, sample=rewritten.sample)]


def _optimized(
    plan: SourcePlan, sample: BlockSample, compiled: CompiledJob, better: Sequence[str], folder: Path
) -> list[_Trial]:
    if not better:
        return []
    mean = mean_row_group_rows(sample, plan.snapshot.rows_per_row_group)
    rewritten = rewrite_sample(sample, compiled, folder, better=better, merge=mean < _FEW_ROWS)
    change = DataChange(
        kind="optimize",
        subject=", ".join(better),
        how=_optimize_command(plan, rewritten, " --for decode"),
        gain_s=NO_CPU,
        before_s=0.0,
        saved_bytes=(rewritten.before - rewritten.nbytes) * sample.per_million,
    )
    return [_Trial(change=change, sample=rewritten.sample)]


def _slow_columns(account: CostAccount) -> list[str]:
    """The table's columns that take most of decoding."""
    columns = sorted(account.decoding.columns, key=lambda column: -column.cpu_s.cpu_s)
    total, taken, found = sum(max(column.cpu_s.cpu_s, 0.0) for column in columns), 0.0, list[str]()
    if total < _LEAST_SHARE * account.block_s.cpu_s:
        return []
    for column in columns[:_BETTER_COLUMNS]:
        if taken >= _BETTER_SHARE * total:
            break
        found.append(column.name)
        taken += column.cpu_s.cpu_s
    return found


def _optimize_command(plan: SourcePlan, rewritten: RewrittenSample, options: str = "") -> str:
    """The command that writes the whole table as the sample was written."""
    table, rows = plan.spec.source.table, rewritten.row_group_rows
    rows = ROW_GROUP_ROWS if rows > ROW_GROUP_ROWS // 2 else 1024 * max(1, round(rows / 1024))
    return f"feedline optimize {table if isinstance(table, str) else 'TABLE'} OUT{options} --row-group-rows {rows}"


def _cached(plan: SourcePlan, sample: BlockSample, folder: Path) -> list[_Trial]:
    """Blocks whose features are in a cache: it is filled first."""
    if plan.spec.cache is not None:
        return []
    ref = CacheRef(folder=str(folder / "cache"), size=1 << 40, free=0, shared=False, write_budget=None)
    cached = replace(sample, job=replace(sample.job, cache=ref))
    run_sample(cached, packed=True)
    nbytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    change = DataChange(
        kind="cache",
        subject="all features",
        how="cache: {dir: FOLDER}, on local disk",
        loses="the first epoch fills it",
        gain_s=NO_CPU,
        before_s=0.0,
        disk_bytes=nbytes / max(sample.rows, 1) * sample.epoch_rows,
        from_epoch=1,
    )
    return [_Trial(change=change, sample=cached)]


def _deduplicated(plan: SourcePlan, sample: BlockSample) -> list[_Trial]:
    """Features in the groups that `plan --dedup` would propose, in the table's order."""
    facts = describe_proposals(plan)
    groups = [DedupSpec(name=each["name"], columns=tuple(each["columns"])) for each in facts["proposals"]]
    if not groups or facts["needs_runs"]:
        return []
    plain = [feature for feature in sample.job.features if feature.dedup is None]
    assigned = {
        feature.name: feature
        for feature in assign_groups(plain, groups, out_of_fold=plan.spec.fit.out_of_fold)
        if feature.dedup is not None
    }
    features = tuple(assigned.get(feature.name, feature) for feature in sample.job.features)
    change = DataChange(
        kind="dedup",
        subject=", ".join(group.name for group in groups),
        how=str(facts["yaml"]),
        loses="batches then have groups of unique rows, which the model must expand",
        gain_s=NO_CPU,
        before_s=0.0,
    )
    return [_Trial(change=change, sample=_with_features(sample, features))]


_CHEAPER = {
    "python": "a built-in op, or an expression",
    "expr": "a built-in op, where one computes the same",
    "ngram": "shorter lists before it: first_x",
    "cartesian": "shorter lists before it: first_x",
}


def _heavy_ops(account: CostAccount) -> list[DataChange]:
    """Ops that take much of a block: what they cost is the most that another op could gain.

    Passes tell an op's part of all ops; what those take is taken from whole blocks, which vary less.
    """
    found = []
    before = account.block_s.cpu_s
    scale = account.stages["ops"] / max(account.passes.ops_s, 1e-12)
    for cost in account.passes.features:
        for step in cost.steps:
            if step.op == REPEATS:  # no op
                continue
            part = step.cpu_s / step.sharers / max(cost.ops_s.cpu_s, 1e-12)
            gain_s = cost.ops_s.scaled(scale * min(part, 1.0))
            if gain_s.cpu_s < 2 * _LEAST_SHARE * before:
                continue
            shared = f", shared by {step.sharers} features" if step.sharers > 1 else ""
            found.append(
                DataChange(
                    kind="op",
                    subject=f"{step.op} of {cost.name}",
                    how=f"replace {step.op} of {cost.name} by {_CHEAPER.get(step.op, 'an op that costs less')}{shared}",
                    loses="this is the most that it gains: another op costs something, too",
                    gain_s=gain_s,
                    before_s=before,
                    is_measured=False,
                    stages={"ops": gain_s.cpu_s},
                )
            )
    return found
