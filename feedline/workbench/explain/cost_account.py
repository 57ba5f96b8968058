"""Account for what a plan's columns, ops and features cost: CPU seconds and compressed bytes per million rows.

Runs in: the process that explains; `measure_costs` with nothing else running in it. A feature has its part of what its
columns take, in equal parts with the features that read them, too, and of what its ops and its encoding take. What all
share (opening files, filter, calls, the order of rows) is nobody's. The account is compared with whole blocks as tasks
compute them: the difference is a part of it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.blocks.jobs import CompiledJob, compile_job
from feedline.blocks.piece_chunks import piece_chunks
from feedline.blocks.request import BlockRequest, BlockResult
from feedline.dataclass import dataclass
from feedline.errors import PlanError
from feedline.expressions.column_parts import part_of
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import Quality, measures, merge
from feedline.loader.limits.run_facts import RunFacts, sum_samples
from feedline.planning.source_plan import SourcePlan
from feedline.resources.cgroups import available_cores
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.read import arrow_columns, bytes_of
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.workbench.explain.cpu_time import NO_CPU, ROUNDS, CpuBudget, CpuEstimate, estimate, measure_in_turn
from feedline.workbench.explain.pass_costs import (
    STAGES,
    BlockSample,
    PassCosts,
    StageSeconds,
    measure_passes,
    run_sample,
    sample_blocks,
    stage_seconds,
)

# --------------------------------------------------------------------------------------------------------------------
# Measure what decoding each column costs, in CPU time, on sampled blocks. A run decodes all columns of a chunk in one
# call. Here each column is decoded alone, beside a column that no file has, which comes as nulls: what that takes by
# itself is opening files and filter. What a call takes that decodes anything follows from the smallest columns, alone
# and together. Both are `shared`, and a column costs what it takes beyond. All columns are decoded as in a run, too:
# the sum may differ.

_MOST_COLUMNS = 400  # that are decoded one by one: the largest; the others as one
_SMALLEST = 8  # columns that tell what a call takes
_CALLS_S = 0.0015  # CPU of a call for one column of a piece, about: so that a budget is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnCost:
    """A column, or a part of one: CPU seconds and compressed bytes per million rows. encodings, codecs: of its Parquet
    columns in the first row group; decoder: `kernel`, or `pyarrow` and why. is_measured: alone; else it has its part of
    what is left, by bytes."""

    name: str
    cpu_s: CpuEstimate
    bytes: int
    encodings: tuple[str, ...] = ()
    codecs: tuple[str, ...] = ()
    decoder: str = "kernel"
    is_measured: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCosts:
    """CPU seconds per million rows. shared: of opening files, filter and calls; whole: of all columns as a run decodes
    them."""

    columns: tuple[ColumnCost, ...]
    shared: CpuEstimate
    whole: CpuEstimate


def decode_columns(compiled: CompiledJob, request: BlockRequest, columns: Sequence[str] | None) -> None:
    """Decode columns of a block's rows, all of the job's if None, and drop them."""
    for piece in request.pieces:
        for _ in piece_chunks(compiled, piece, columns, as_stored=True):
            pass


def measure_decoding(
    sample: BlockSample, compiled: CompiledJob, snapshot: Snapshot, budget: CpuBudget, *, rounds: int
) -> DecodeCosts:
    """Decode the sample's columns, each alone and all together."""
    per_million = 1e6 / max(int(snapshot.rows_per_row_group[sample.row_groups].sum()), 1)
    sizes = {
        name: round(bytes_of(snapshot, sample.row_groups, [name]) * per_million)
        for name in compiled.read.columns
        if name in snapshot.schema.names or part_of(name) is not None
    }
    most = budget.calls(3 * _CALLS_S * sum(len(request.pieces) for request in sample.requests))
    names = sorted(sizes, key=lambda name: (-sizes[name], name))[: min(_MOST_COLUMNS, most)]
    rest = tuple(name for name in compiled.read.columns if name not in names)
    nothing = _free_name(compiled.read.schema)
    schema = compiled.read.schema.append(pa.field(nothing, pa.int8()))
    beside = replace(compiled, read=replace(compiled.read, schema=schema))

    def decode(job: CompiledJob, columns: Sequence[str] | None) -> None:
        for request in sample.requests:
            decode_columns(job, request, columns)

    works: list[Callable[[], None]] = [partial(decode, compiled, None), partial(decode, beside, (nothing,))]
    works += [partial(decode, beside, (nothing, name)) for name in names]
    works += [partial(decode, beside, (nothing, *rest))] if rest else []
    works.append(partial(decode, beside, (nothing, *names[-_SMALLEST:])))
    seconds = measure_in_turn(works, budget, rounds=rounds) * sample.per_million
    beyond = seconds[:, 2:] - seconds[:, [1]]
    call_s = _call_seconds(beyond[:, : len(names)][:, -_SMALLEST:], beyond[:, -1])
    alone = [estimate(beyond[:, index] - call_s).positive() for index in range(len(names) + bool(rest))]
    stored = stored_as(sample.requests[0].pieces[0].fragment, compiled.read.columns, compiled.read.schema)
    costs = dict(zip(names, alone, strict=False))
    if rest:
        costs |= _divide(alone[-1], {name: sizes.get(name, 0) for name in rest})
    return DecodeCosts(
        columns=tuple(
            ColumnCost(
                name=name,
                cpu_s=costs[name],
                bytes=sizes.get(name, 0),
                is_measured=name not in rest or len(rest) == 1,
                **stored.get(name, {}),
            )
            for name in compiled.read.columns
        ),
        shared=estimate(seconds[:, 1] + call_s),
        whole=estimate(seconds[:, 0]),
    )


def _call_seconds(alone: NDArray[np.float64], together: NDArray[np.float64]) -> float:
    """What a call takes that decodes anything: n columns alone take (n - 1) times that more than together. alone:
    float64 [rounds, n]; together: float64 [rounds]."""
    count = alone.shape[1]
    if count < 2:
        return 0.0
    # columns alone [0.3, 0.4] s, both together 0.6 s -> a call takes 0.1 s
    found = float(np.median((alone.sum(axis=1) - together) / (count - 1)))
    return min(max(found, 0.0), max(float(np.median(alone, axis=0).min()), 0.0))


def _divide(whole: CpuEstimate, weights: Mapping[str, float]) -> dict[str, CpuEstimate]:
    total = sum(weights.values())
    return {name: whole.scaled(weight / total if total else 1 / len(weights)) for name, weight in weights.items()}


def _free_name(schema: pa.Schema) -> str:
    name = "__nothing"
    while schema.get_field_index(name) >= 0:
        name = f"_{name}"
    return name


def stored_as(fragment: Fragment, columns: Sequence[str], schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """How the file of a fragment stores these columns, as `ColumnCost` has it; those that it has not are left out."""
    left = arrow_columns(fragment, columns, schema)
    found = {}
    with fragment.open() as file:
        group = file.metadata.row_group(fragment.row_groups[0])
        for name in columns:
            part = part_of(name)
            column = name if name in file.stored or part is None else part.column
            if column not in file.stored:
                continue
            chunks = [group.column(leaf) for leaf in file.stored[column]]
            encodings = [value_encoding(chunk.encodings, *chunk.encodings[:1]) for chunk in chunks]
            reason = left.get(column)
            found[name] = {
                "encodings": tuple(dict.fromkeys(encodings)),
                "codecs": tuple(dict.fromkeys(str(chunk.compression).lower() for chunk in chunks)),
                "decoder": "kernel" if reason is None else f"pyarrow: {reason}",
            }
    return found


def value_encoding(names: Sequence[str], otherwise: str = "") -> str:
    """The encoding of a chunk's values, of all that its pages name (levels are always RLE). otherwise: where these name
    that of levels alone."""
    if any("DICTIONARY" in name for name in names):
        return "DICTIONARY"
    return next((name for name in names if name not in ("RLE", "BIT_PACKED")), otherwise)


# --------------------------------------------------------------------------------------------------------------------
# Measure the share of a block thread's CPU time for which it holds the interpreter's lock, on sampled blocks. Threads
# of one process compute the same blocks. Of two, each needs the lock for a share h of its time, and finds it held for
# a share h of that: it waits h * h seconds per CPU second. Where threads mostly wait for a store, so many run that
# one other computes on average.

_ROUNDS = 3
_ROUND_S = 0.1  # of each thread: its start is a small part of that
_MOST_THREADS = 16  # each holds a block


def measure_lock_share(run: Callable[[], Sequence[BlockResult]], budget: CpuBudget) -> float:
    """The share, from 0 to 1. run: computes some blocks; called by several threads at once. One round is measured at
    least, whatever is left of the budget."""
    shares = list[float]()
    while not shares or (len(shares) < _ROUNDS and budget.left_s > budget.used_s / len(shares)):
        alone = _computed(run, 1)
        busy = alone.block_busy_s
        threads = min(
            _MOST_THREADS, 1 + round(busy / max(busy - alone.times.fetch_s, busy / _MOST_THREADS)) if busy else 2
        )
        shares.append(lock_share(alone, _computed(run, threads), threads))
    return float(np.median(shares))


def lock_share(alone: RunFacts, together: RunFacts, threads: int) -> float:
    """The share by what one thread waits, and so many together."""
    if not (alone.block_cpu_s > 0 and together.block_cpu_s > 0 and together.block_busy_s > 0):
        return 0.0
    # one thread never waits, two wait 0.25 s per CPU second -> each holds the lock for half of its time
    others = (threads - 1) * max(0.0, 1 - together.times.fetch_s / together.block_busy_s)
    waits = together.lock_wait_s / together.block_cpu_s - alone.lock_wait_s / alone.block_cpu_s
    return min(1.0, (max(0.0, waits) / others) ** 0.5) if others > 0 else 0.0


def _computed(run: Callable[[], Sequence[BlockResult]], threads: int) -> RunFacts:
    begins = threading.Barrier(threads)

    def compute() -> RunFacts:
        found: list[RunFacts] = []
        begins.wait()
        ends_s = time.perf_counter() + _ROUND_S
        while not found or time.perf_counter() < ends_s:
            results = run()
            found.append(RunFacts(times=BlockTimes.total(each.times for each in results)))
        return sum_samples(found)

    with ThreadPoolExecutor(threads, "feedline-lock-share") as pool:
        return sum_samples(list(pool.map(lambda _: compute(), range(threads))))


# --------------------------------------------------------------------------------------------------------------------

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
        return self.decode_s + self.ops_s + self.encode_s


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
            "columns": [asdict(column) for column in self.decoding.columns],
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
                decode_s=sum((column.cpu_s.scaled(1 / readers[column.name]) for column in own), NO_CPU),
                ops_s=costs[feature.name].ops_s,
                encode_s=costs[feature.name].encode_s,
                nbytes=sum(column.bytes / readers[column.name] for column in own),
                problems=(problems or {}).get(feature.name, 0.0) / total if total else 0.0,
            )
        )
    return tuple(found)
