"""Compute a block: read its pieces, filter, transform, encode and permute their rows.

Runs in: Dask workers: threads of the feeder, processes on this machine, or anywhere in a cluster. A task is stateless
and repeatable: the same `Job` and `BlockRequest` give the same bytes on every worker of the same versions. Its inputs
travel as values (feature specs, schema, the filter as a string) and are compiled once per process.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from feedline.blocks.block_encoder import BlockEncoder, HandOver, StageClock
from feedline.blocks.cache.cached_rows import CachedBlock, cached_rows
from feedline.blocks.environment import check_environment
from feedline.blocks.jobs import CompiledJob, compile_job, find_job
from feedline.blocks.piece_chunks import piece_chunks
from feedline.blocks.request import BlockRequest, BlockResult, Buckets, Draws, Job, PieceRequest
from feedline.blocks.row_order import chunk_order, ordered_rows
from feedline.errors import DataError
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.encoding.encode import can_order
from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.loader.encoding.slot import encoded_rows, write_rows
from feedline.warehouse.rebase.recorded_rows import recorded, recorder_of


class _ComputedRows:
    """The rows of a block that are all computed: each chunk is encoded before the next one is decoded. Its methods are
    those of `CachedBlock`."""

    cached: CacheCounts | None = None

    def __init__(
        self, job: Job, compiled: CompiledJob, request: BlockRequest, clock: StageClock, hand_over: HandOver | None
    ) -> None:
        self._job, self._compiled, self._clock = job, compiled, clock
        permutes = request.permutation is not None and not isinstance(job.order, Buckets | Draws)
        self._encoder = BlockEncoder(compiled, clock, whole=permutes and can_order(compiled.layout.schema))
        if hand_over is not None and request.permutation is None:
            self._encoder.hand_over(hand_over, request.rows)
        self.rows = 0

    def add(self, piece: PieceRequest) -> pl.Series:
        encoder, order, values = self._encoder, self._job.order, list[pl.Series]()
        encoder.begin_piece()
        first_rows = 0 if self.rows else encoder.first_rows
        chunks = piece_chunks(self._compiled, piece, as_stored=True, joined=False, first_rows=first_rows)
        for chunk in recorded(chunks, recorder_of(self._job.record, piece.fragment, piece.skip, piece.rows)):
            if order is not None:
                values.append(chunk_order(order, chunk))
            self.rows += chunk.frame.height
            self._clock.lap("read")
            encoder.add(chunk)
            del chunk  # before the next one is decoded
        return pl.concat(values) if values else _no_values()

    def finish(self, index: NDArray[np.int64] | None) -> list[Rows]:
        if index is None:
            return [*self._encoder.finish()]
        rows: list[Rows] = [self._encoder.finish_in_order(index)]
        self._clock.lap("encode")
        return rows

    def quality(self) -> Quality:
        return self._encoder.observer.quality()


@functools.cache
def _no_values() -> pl.Series:
    """What no order needs, made once: it takes 20 us."""
    return pl.Series()


def run_block(
    job: Job | str, request: BlockRequest, key: str, packed: bool, hand_over: HandOver | None = None
) -> BlockResult:
    """Compute a block. packed: as one buffer, for a result that leaves the process. job: the job or its digest.
    hand_over: of blocks in plan order whose rows are not recorded; errors may be others, where several rows are wrong.

    Raises UnknownJobError for a digest that this process does not hold; DataError with file, row group and row;
    CorruptFileError and TableChangedError with file and row group; ClusterError if the environment differs.
    """
    job = find_job(job)
    check_environment(job.environment)
    compiled, clock = compile_job(job), StageClock()
    if job.record is not None:
        hand_over = None
    cache = cached_rows(job, compiled)
    block: _ComputedRows | CachedBlock = (
        _ComputedRows(job, compiled, request, clock, hand_over)
        if cache is None
        else cache.block(request, clock, hand_over)
    )
    values = [block.add(piece) for piece in request.pieces]
    clock.lap("read")
    if block.rows != request.read_rows:
        raise DataError(
            f"block {key} has another number of rows than planned: got {block.rows}, expected {request.read_rows}"
        )
    rows = block.finish(ordered_rows(job.order, request, values.__getitem__))
    image = pack_block(compiled.layout, rows) if packed else None
    clock.lap("encode")
    return BlockResult(
        key=key,
        rows=request.rows,
        parts=None if packed else tuple(rows),
        image=image,
        nbytes_read=request.nbytes,
        quality=block.quality(),
        cached=block.cached,
        times=clock.times(),
    )


def pack_block(layout: SlotLayout, parts: Sequence[Rows]) -> pa.Buffer:
    """A block as one buffer in slot layout, which is pickled out of band."""
    return pa.py_buffer(write_rows(layout, parts))


def unpack_block(layout: SlotLayout, result: BlockResult) -> tuple[Rows, ...]:
    """The rows of a result, as views of its buffer."""
    return result.parts if result.parts is not None else (encoded_rows(layout, result.image),)


def first_chunks(job: Job, requests: Iterable[BlockRequest], count: int) -> list[pl.DataFrame]:
    """The first chunks of some blocks as tasks read them: filtered, at most `CHUNK_ROWS` rows each, not permuted."""
    compiled = compile_job(job)
    chunks = (
        chunk.frame for request in requests for piece in request.pieces for chunk in piece_chunks(compiled, piece)
    )
    return list(itertools.islice(chunks, count))


def first_block_rows(job: Job, request: BlockRequest, rows: int) -> tuple[pl.DataFrame, list[int]]:
    """The first rows of a block as its task reads them, at most `rows`, and where among them a piece begins."""
    compiled = compile_job(job)
    frames: list[pl.DataFrame] = []
    borders: list[int] = []
    height = 0
    for piece in request.pieces:
        borders.append(height)
        for chunk in piece_chunks(compiled, piece):
            frames.append(chunk.frame)
            height += chunk.frame.height
            if height >= rows:
                break
        if height >= rows:
            break
    frame = pl.concat(frames, rechunk=True).head(rows)
    return frame, [border for border in borders if border < frame.height]
