"""Compute a block: read its pieces, filter, transform, encode and permute their rows.

Runs in: Dask workers: threads of the feeder, processes on this machine, or anywhere in a cluster. A task is stateless
and repeatable: the same `Job` and `BlockRequest` give the same bytes on every worker of the same versions. Its inputs
travel as values (feature specs, schema, the filter as a string) and are compiled once per process.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import polars as pl
import pyarrow as pa

from feedline.blocks.block_encoder import BlockEncoder, HandOver, StageClock
from feedline.blocks.cache.cached_rows import CachedRows, cached_rows
from feedline.blocks.environment import check_environment
from feedline.blocks.jobs import CompiledJob, compile_job, find_job
from feedline.blocks.piece_chunks import piece_chunks
from feedline.blocks.request import BlockRequest, BlockResult, Job
from feedline.blocks.row_order import chunk_order, ordered_rows
from feedline.errors import DataError
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.encoding.encode import can_order
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.quality import Quality, merge
from feedline.loader.encoding.shuffled_rows import Rows, shuffle
from feedline.loader.encoding.slot import encoded_rows, write_rows
from feedline.warehouse.rebase.recorded_rows import recorder_of


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
    compiled = compile_job(job)
    clock = StageClock()
    cache = cached_rows(job, compiled)
    if cache is not None:
        return _run_cached(job, compiled, cache, request, key, packed, hand_over if job.record is None else None)
    order = job.ordering
    permutes = request.permutation is not None and (order is None or order.permutes)
    encoder = BlockEncoder(compiled, clock, whole=permutes and can_order(compiled.layout.schema))
    if hand_over is not None and request.permutation is None and job.record is None:
        encoder.hand_over(hand_over, request.rows)
    values, block_rows = list[pl.Series](), 0
    for piece in request.pieces:
        of_piece = list[pl.Series]()
        recorder = recorder_of(job.record, piece.fragment, piece.skip, piece.rows)
        encoder.begin_piece()
        for chunk in piece_chunks(compiled, piece, as_stored=True, first_rows=0 if block_rows else encoder.first_rows):
            if order is not None:
                of_piece.append(chunk_order(order, chunk))
            block_rows += chunk.frame.height
            if recorder is not None:
                recorder.add(chunk.frame)
            clock.lap("read")
            encoder.add(chunk)
            del chunk  # before the next one is decoded
        if of_piece:
            values.append(pl.concat(of_piece))
        if recorder is not None:
            recorder.write()
    clock.lap("read")
    _check_rows(key, block_rows, request)
    index = ordered_rows(order, request, values.__getitem__)
    if index is None:
        rows: list[Rows] = [*encoder.finish()]
    else:
        rows = [encoder.finish_in_order(index)]
        clock.lap("encode")
    return _result(compiled, request, key, packed, rows, clock, encoder.observer.quality(), None)


def _run_cached(
    job: Job,
    compiled: CompiledJob,
    cache: CachedRows,
    request: BlockRequest,
    key: str,
    packed: bool,
    hand_over: HandOver | None,
) -> BlockResult:
    """The block of a job with a cache: the same rows, part by part."""
    clock, counts = StageClock(), list[CacheCounts]()
    parts, qualities, values = list[EncodedRows](), list[Quality](), list[pl.Series]()
    in_order, block_rows = request.permutation is None, 0
    cache.begin(request.epoch)
    for piece in request.pieces:
        of_piece = list[pl.Series]()
        recorder = recorder_of(job.record, piece.fragment, piece.skip, piece.rows)
        if recorder is not None:
            cache.record(piece, recorder)
        for part in cache.parts(piece, clock, counts.append):
            block_rows += part.rows.rows
            qualities.append(part.quality)
            parts.append(part.rows)
            if part.order is not None:
                of_piece.append(part.order)
            if hand_over is not None and in_order and block_rows < request.rows:
                hand_over.take(part.rows)
        if of_piece:
            values.append(pl.concat(of_piece))
    clock.lap("read")
    _check_rows(key, block_rows, request)
    index = ordered_rows(job.ordering, request, values.__getitem__)
    rows: list[Rows] = [*parts] if index is None else [shuffle(parts, index)]
    cached = sum(counts, CacheCounts())
    return _result(compiled, request, key, packed, rows, clock, merge(qualities), cached)


def _check_rows(key: str, rows: int, request: BlockRequest) -> None:
    if rows != request.read_rows:
        raise DataError(
            f"block {key} has another number of rows than planned: got {rows}, expected {request.read_rows}"
        )


def _result(
    compiled: CompiledJob,
    request: BlockRequest,
    key: str,
    packed: bool,
    rows: list[Rows],
    clock: StageClock,
    quality: Quality,
    cached: CacheCounts | None,
) -> BlockResult:
    image = pack_block(compiled.layout, rows) if packed else None
    clock.lap("encode")
    return BlockResult(
        key=key,
        rows=request.rows,
        parts=None if packed else tuple(rows),
        image=image,
        nbytes_read=request.nbytes,
        quality=quality,
        cached=cached,
        **clock.times(),
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
