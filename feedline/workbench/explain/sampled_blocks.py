"""Choose blocks of a plan to measure on: a few, evenly spaced over the first lane's epoch.

Runs in: the process that explains. A sampled block is what a task computes, without the job's cache and its recording
of rows: what a row costs that is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.block_encoder import BlockEncoder, StageClock
from feedline.blocks.compute import run_block
from feedline.blocks.jobs import CompiledJob
from feedline.blocks.ordering.row_order import chunk_order, ordered_rows
from feedline.blocks.piece_chunks import piece_chunks
from feedline.blocks.request import BlockRequest, BlockResult, Job, PieceRequest
from feedline.errors import PlanError
from feedline.loader.encoding.encode import can_order
from feedline.planning.source_plan import SourcePlan
from feedline.spec.features import FeatureSpec
from feedline.warehouse.reading.fragment import Chunk

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
    found: StageSeconds = np.array(
        [(each.read_cpu_s, each.transform_cpu_s, each.encode_cpu_s) for each in results]
    ).sum(axis=0)
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
    order = job.ordering

    def values(index: int) -> pl.Series:
        assert order is not None
        return pl.concat([chunk_order(order, chunk) for chunk in pieces[index]])

    return ordered_rows(order, request, values)


def encode_block(job: Job, compiled: CompiledJob, decoded: DecodedBlock, clock: StageClock) -> None:
    """Transform and encode the chunks of a block as its task does, for the features of `compiled`."""
    order = job.ordering
    permutes = decoded.index is not None and (order is None or order.permutes)
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
