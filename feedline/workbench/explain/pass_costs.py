"""Measure what transforming and encoding each feature costs, in CPU time, on sampled blocks.

Runs in: the process that explains. A run computes all features of a block in one pass, with columns as codes where
files have dictionaries. Here the block is decoded once, and its chunks go through that pass for each feature alone.
What every pass takes (`shared`) follows from the three cheapest features, alone and together. A step that several
features share is paid by all of them in equal parts, by what each step takes on a frame of values. To find the rows
that repeat in a deduplicated group is a step of its features: their ops are computed on the others. All features go
through the pass as in a run, too: the sum may differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.block_encoder import BlockEncoder, StageClock, expanded_chunk
from feedline.blocks.compute import run_block
from feedline.blocks.jobs import CompiledJob, compile_like
from feedline.blocks.piece_chunks import piece_chunks
from feedline.blocks.request import BlockRequest, BlockResult, Buckets, Draws, Job, PieceRequest
from feedline.blocks.row_order import chunk_order, ordered_rows
from feedline.config.features import FeatureSpec
from feedline.dataclass import dataclass
from feedline.errors import PlanError
from feedline.loader.encoding.encode import can_order
from feedline.native.unique_rows import UniqueRows
from feedline.planning.source_plan import SourcePlan
from feedline.transforms.compile.step_passes import step_passes
from feedline.warehouse.reading.fragment import Chunk
from feedline.workbench.explain.cpu_time import NO_CPU, CpuBudget, CpuEstimate, estimate, measure_in_turn

# --------------------------------------------------------------------------------------------------------------------
# Choose blocks of a plan to measure on: a few, evenly spaced over the first lane's epoch. A sampled block is what a
# task computes, without the job's cache and its recording of rows: what a row costs that is computed.

StageSeconds: TypeAlias = NDArray[np.float64]  # [stages]: CPU seconds of decoding, ops, encoding

STAGES = ("decoding", "ops", "encoding")
BLOCKS = 2
_MOST_ROWS = 65_536  # of a block: more of them cost time, and tell nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSample:
    """Blocks of a job, and the rows of an epoch that they stand for. row_groups: that an epoch reads."""

    job: Job
    requests: tuple[BlockRequest, ...]
    epoch_rows: int
    row_groups: NDArray[np.int64]

    @property
    def rows(self) -> int:
        return sum(request.rows for request in self.requests)

    @property
    def per_million(self) -> float:
        """A million rows by those of the sample."""
        return 1e6 / max(self.rows, 1)


def sample_blocks(plan: SourcePlan, blocks: int = BLOCKS) -> BlockSample:
    """Choose blocks of a plan's first epoch. Raises PlanError where it has none."""
    schedule = plan.schedule(0)
    indices = schedule.block_indices(0)
    if not len(indices):
        raise PlanError("the plan has no block to measure: expected at least one row in source.where")
    chosen = np.unique(np.linspace(0, len(indices) - 1, blocks + 2)[1:-1].round().astype(int)).tolist()
    requests = [plan.request(schedule.block(0, indices[index]), 0) for index in chosen]
    return BlockSample(
        job=bare_job(plan.job),
        requests=tuple(map(_shorten, requests)),
        epoch_rows=schedule.rows,
        row_groups=np.flatnonzero(plan.remaining_rows(0) > 0),
    )


def bare_job(job: Job, features: Sequence[FeatureSpec] | None = None) -> Job:
    """The job without cache and recording, perhaps with other features."""
    return replace(
        job, features=job.features if features is None else tuple(features), cache=None, auto=None, record=None
    )


def _shorten(request: BlockRequest) -> BlockRequest:
    """The first pieces of a large block; all of one whose order depends on all of its rows."""
    if request.rows <= _MOST_ROWS or request.rows != request.read_rows or request.shares is not None:
        return request
    pieces: list[PieceRequest] = []
    missing = _MOST_ROWS
    for piece in request.pieces:
        pieces.append(replace(piece, rows=min(piece.rows, missing)))
        missing -= pieces[-1].rows
        if missing <= 0:
            break
    return replace(request, pieces=tuple(pieces), rows=_MOST_ROWS - missing)


def run_sample(sample: BlockSample, *, packed: bool) -> list[BlockResult]:
    """Compute the blocks of a sample. packed: their rows, as a slot has them."""
    return [run_block(sample.job, request, "explain", packed=packed) for request in sample.requests]


def stage_seconds(results: Sequence[BlockResult]) -> StageSeconds:
    """What blocks took."""
    found: StageSeconds = np.array([tuple(each.times.cpu_stages.values()) for each in results]).sum(axis=0)
    return found


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """The chunks of a block's pieces, and the order of its rows (None: as they are)."""

    pieces: tuple[tuple[Chunk, ...], ...]
    index: NDArray[np.int64] | None


def decode_block(job: Job, compiled: CompiledJob, request: BlockRequest) -> DecodedBlock:
    """Decode a block as its task does, and keep the chunks."""
    pieces = tuple(tuple(piece_chunks(compiled, piece, as_stored=True)) for piece in request.pieces)
    return DecodedBlock(pieces, order_block(job, request, pieces))


def order_block(job: Job, request: BlockRequest, pieces: Sequence[Sequence[Chunk]]) -> NDArray[np.int64] | None:
    """The order of a block's rows, from its decoded pieces; None: as they are."""
    order = job.order

    def values(index: int) -> pl.Series:
        assert order is not None
        return pl.concat([chunk_order(order, chunk) for chunk in pieces[index]])

    return ordered_rows(order, request, values)


def encode_block(job: Job, compiled: CompiledJob, decoded: DecodedBlock, clock: StageClock) -> None:
    """Transform and encode the chunks of a block as its task does, for the features of `compiled`."""
    permutes = decoded.index is not None and not isinstance(job.order, Buckets | Draws)
    encoder = BlockEncoder(compiled, clock, whole=permutes and can_order(compiled.layout.schema))
    for chunks in decoded.pieces:
        encoder.begin_piece()
        for chunk in chunks:
            encoder.add(chunk)
    if decoded.index is None:
        encoder.finish()
    else:
        encoder.finish_in_order(decoded.index)
    clock.lap("encode")


# --------------------------------------------------------------------------------------------------------------------

_CHEAPEST = 3  # features that tell what every pass takes
_MOST_FEATURES = 400  # that are computed one by one
_PASS_S = 0.002  # CPU of a pass over a block for one feature, about: so that a budget is kept
_MOST_STEPS = 48  # features whose steps are measured: those that cost most
_STEP_ROWS = 32_768
_LEAST_S = 1e-12
REPEATS = "repeated rows"  # the step of features of a deduplicated group that is no op


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """A step of a chain: CPU seconds per million rows of this feature alone, and by how many features it is shared. op:
    its name, or REPEATS."""

    op: str
    cpu_s: float
    sharers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """A feature's part of a pass: CPU seconds per million rows. steps: of its chain; empty where they were not
    measured."""

    name: str
    ops_s: CpuEstimate
    encode_s: CpuEstimate
    steps: tuple[StepCost, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCosts:
    """CPU seconds per million rows. shared: of every pass; whole: of all features as a run computes them, of which ops
    take `ops_s`. order: of the rows of blocks, which is no part of passes."""

    features: tuple[PassCost, ...]
    shared: CpuEstimate
    whole: CpuEstimate
    ops_s: float
    order: CpuEstimate = NO_CPU


def measure_passes(sample: BlockSample, compiled: CompiledJob, budget: CpuBudget, *, rounds: int) -> PassCosts:
    """Run the passes of a sample's features, each alone and all together."""
    job, features = sample.job, sample.job.features
    blocks = [decode_block(job, compiled, request) for request in sample.requests]
    most = max(_CHEAPEST, min(budget.calls(3 * _PASS_S * len(blocks)), _MOST_FEATURES))
    chosen = features[:most]
    rest = features[len(chosen) :]
    groups: list[tuple[FeatureSpec, ...]] = [(each,) for each in chosen] + ([rest] if rest else [])
    passes = [_FeaturePass(sample, compiled, blocks, group) for group in groups]
    together = _FeaturePass(sample, compiled, blocks, features)

    def order() -> None:
        for request, block in zip(sample.requests, blocks, strict=True):
            order_block(job, request, block.pieces)

    works = [order, together.run, *(each.run for each in passes)]
    ordering, seconds = np.split(measure_in_turn(works, budget, rounds=rounds) * sample.per_million, [1], axis=1)
    rounds_done = len(seconds)
    shared = _shared_seconds(sample, compiled, blocks, passes, seconds[:, 1:], budget)
    steps = _measure_steps(compiled, features, blocks, budget, seconds[:, 1:], rounds)
    found: list[PassCost] = []
    # Features that read the same column of a group find its repeated rows once in a run, but each when alone.
    repeats_s = sum(each.median_s(REPEATS) for each in passes)
    once = min(1.0, together.median_s(REPEATS) / max(repeats_s, _LEAST_S))
    for index, group in enumerate(groups):
        own = estimate(np.maximum(seconds[:, 1 + index] - shared[:rounds_done].mean(), 0.0))
        repeats, encoding = passes[index].share(REPEATS), passes[index].share("encode")
        for each in group:
            part = own.scaled(1 / len(group))
            computing = 1 - repeats - encoding
            fair, costs = _fair_share(steps.get(each.name, ()), part.cpu_s * computing)
            if repeats:
                costs = (StepCost(op=REPEATS, cpu_s=part.cpu_s * repeats * once), *costs)
            found.append(
                PassCost(
                    name=each.name,
                    ops_s=part.scaled(computing * fair + repeats * once),
                    encode_s=part.scaled(encoding),
                    steps=costs,
                )
            )
    whole = estimate(seconds[:, 0])
    return PassCosts(
        features=tuple(found),
        shared=estimate(shared),
        whole=whole,
        ops_s=whole.cpu_s * (1 - together.share("encode")),
        order=estimate(ordering[:, 0]),
    )


class _ProcessClock(StageClock):
    """CPU seconds of the process per stage, Polars' pool with it; finding repeated rows is one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds[REPEATS] = 0.0
        self._before_s = time.process_time()

    def lap(self, stage: str) -> None:
        now = time.process_time()
        self.seconds[stage] += now - self._before_s
        self._before_s = now

    def lap_repeats(self) -> None:
        self.lap(REPEATS)


class _FeaturePass:
    """The pass of some features over decoded blocks, with the CPU seconds of its stages in every round."""

    def __init__(
        self,
        sample: BlockSample,
        compiled: CompiledJob,
        blocks: Sequence[DecodedBlock],
        features: Sequence[FeatureSpec],
    ) -> None:
        self._job = bare_job(sample.job, features)
        self._compiled = compiled if len(features) == len(sample.job.features) else compile_like(self._job, compiled)
        self._blocks = blocks
        self.features = tuple(features)
        self._stages: dict[str, list[float]] = {"transform": [], "encode": [], REPEATS: []}

    def run(self) -> None:
        """One round."""
        clock = _ProcessClock()
        for block in self._blocks:
            pieces = tuple(tuple(_reduced(chunk, self._compiled) for chunk in chunks) for chunks in block.pieces)
            clock.lap("read")
            encode_block(self._job, self._compiled, DecodedBlock(pieces, block.index), clock)
        for stage, seconds in self._stages.items():
            seconds.append(clock.seconds[stage])

    def median_s(self, stage: str) -> float:
        """CPU seconds of a round in "transform", "encode" or REPEATS."""
        return float(np.median(self._stages[stage]))

    def share(self, stage: str) -> float:
        """The part of its time that a stage takes."""
        return self.median_s(stage) / max(sum(map(self.median_s, self._stages)), _LEAST_S)


def _reduced(chunk: Chunk, compiled: CompiledJob) -> Chunk:
    """A chunk with the columns that some features read; with one at least, which counts its rows."""
    names = {*compiled.read.columns, *(mark.name for mark in compiled.read.marks)}
    own = [name for name in chunk.frame.columns if name in names] or chunk.frame.columns[:1]
    read = [(group, [name for name in group.rows.columns if name in names]) for group in chunk.groups]
    groups = [UniqueRows(group.rows.select(columns), group.inverse) for group, columns in read if columns]
    held = {*own, *(name for group in groups for name in group.rows.columns)}
    dictionaries = {name: values for name, values in chunk.dictionaries.items() if name in held}
    return replace(chunk, frame=chunk.frame.select(own), groups=tuple(groups), dictionaries=dictionaries)


def _shared_seconds(
    sample: BlockSample,
    compiled: CompiledJob,
    blocks: Sequence[DecodedBlock],
    passes: Sequence[_FeaturePass],
    alone: NDArray[np.float64],
    budget: CpuBudget,
) -> NDArray[np.float64]:
    """float64 [rounds]: what every pass takes: n features alone take (n - 1) times that more than together."""
    if len(passes) < 2:
        return np.zeros(1)
    middle = np.median(alone, axis=0)
    chosen = np.argsort(middle, kind="stable")[:_CHEAPEST].tolist()
    some = [feature for index in chosen for feature in passes[index].features]
    works: list[Callable[[], object]] = [passes[index].run for index in chosen]
    together = _FeaturePass(sample, compiled, blocks, some)
    seconds = measure_in_turn([together.run, *works], budget, rounds=len(alone)) * sample.per_million
    shared = (seconds[:, 1:].sum(axis=1) - seconds[:, 0]) / (len(chosen) - 1)
    clipped: NDArray[np.float64] = np.clip(shared, 0.0, float(middle.min()))
    return clipped


def _measure_steps(
    compiled: CompiledJob,
    features: Sequence[FeatureSpec],
    blocks: Sequence[DecodedBlock],
    budget: CpuBudget,
    alone: NDArray[np.float64],
    rounds: int,
) -> dict[str, tuple[StepCost, ...]]:
    """The steps of the features that cost most, and of those with shared steps: relative costs, on the first rows of
    the first block, with the values of all columns."""
    first = next((chunk for block in blocks for piece in block.pieces for chunk in piece), None)
    if first is None or not first.frame.height or compiled.features.missing_fits:
        return {}
    frame = expanded_chunk(first).head(_STEP_ROWS).rechunk()
    middle = np.median(alone, axis=0)
    order = np.argsort(-middle, kind="stable").tolist()
    chosen = [features[index] for index in order if index < len(features)][:_MOST_STEPS]
    names = {feature.name for feature in chosen}
    passes = step_passes(features, compiled.read.schema, compiled.features.artifacts, names)
    by_name = {each[0].feature: each for each in passes if not all(step.is_plain for step in each)}
    measured = [(feature.name, by_name[feature.name]) for feature in chosen if feature.name in by_name]
    works = [partial(step.run, frame) for _, steps in measured for step in steps if not step.is_plain]
    if not works:
        return {}
    seconds = np.median(measure_in_turn(works, budget, rounds=min(rounds, 3)), axis=0).tolist()
    found = {}
    for name, steps in measured:
        before_s, costs = 0.0, list[StepCost]()
        for step in steps:
            if not step.is_plain:  # a pass up to a step takes 3 s, up to the next 5 s -> the latter costs 2 s
                upto_s = max(seconds.pop(0), before_s)
                cpu_s = (upto_s - before_s) / frame.height * 1e6
                costs.append(StepCost(op=step.op or "expr", cpu_s=cpu_s, sharers=step.sharers))
                before_s = upto_s
        found[name] = tuple(costs)
    return found


def _fair_share(steps: Sequence[StepCost], ops_s: float) -> tuple[float, tuple[StepCost, ...]]:
    """The part of its ops' time that a feature pays, and the steps with their parts of that time."""
    # steps of 3 s, shared by three features, and of 1 s -> it pays (1 + 1) / 4
    total = sum(step.cpu_s for step in steps)
    if total <= 0:
        return 1.0, ()
    scaled = tuple(replace(step, cpu_s=step.cpu_s / total * ops_s) for step in steps)
    return sum(step.cpu_s / step.sharers for step in steps) / total, scaled
