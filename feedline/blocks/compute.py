"""Compute a block: read its pieces, filter, transform, encode and permute their rows.

Runs in: Dask workers: threads of the feeder, processes on this machine, or anywhere in a cluster. A task is stateless
and repeatable: the same `Job` and `BlockRequest` give the same bytes on every worker of the same versions. Its inputs
travel as values (feature specs, schema, the filter as a string) and are compiled once per process.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from feedline.blocks.block_encoder import BlockEncoder, HandOver, StageClock
from feedline.blocks.environment import check_environment
from feedline.blocks.jobs import CompiledJob, compile_job, find_job
from feedline.blocks.permutation import permuted_rows, run_starts
from feedline.blocks.request import BlockRequest, BlockResult, Job, PieceRequest
from feedline.errors import DataError
from feedline.loader.encoding.encode import can_order
from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.loader.encoding.slot import encoded_rows, write_rows
from feedline.warehouse.reading.columns import CHUNK_ROWS
from feedline.warehouse.reading.expanded_codes import expand_series
from feedline.warehouse.reading.fragment import Chunk
from feedline.warehouse.reading.read import read_fragment
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
    encoder = BlockEncoder(compiled, clock, whole=request.permutation is not None and can_order(compiled.layout.schema))
    if hand_over is not None and request.permutation is None and job.record is None:
        encoder.hand_over(hand_over, request.rows)
    starts, block_rows = list[NDArray[np.int64]](), 0
    for piece in request.pieces:
        groups, piece_rows = list[pl.Series](), 0
        recorder = recorder_of(job.record, piece.fragment, piece.skip, piece.rows)
        encoder.begin_piece()
        for chunk in _chunks(compiled, piece, as_stored=True, first_rows=0 if block_rows else encoder.first_rows):
            if job.by is not None:
                groups.append(_values(chunk, job.by))
            piece_rows += chunk.frame.height
            if recorder is not None:
                recorder.add(chunk.frame)
            clock.lap("read")
            encoder.add(chunk)
            del chunk  # before the next one is decoded
        if groups:
            starts.append(run_starts(pl.concat(groups)) + block_rows)
        block_rows += piece_rows
        if recorder is not None:
            recorder.write()
    clock.lap("read")
    if block_rows != request.rows:
        raise DataError(
            f"block {key} has another number of rows than planned: got {block_rows}, expected {request.rows}"
        )
    if request.permutation is None:
        rows: list[Rows] = [*encoder.finish()]
    else:
        runs = np.concatenate(starts) if job.by is not None else None
        rows = [encoder.finish_in_order(permuted_rows(block_rows, runs, *request.permutation))]
        clock.lap("encode")
    image = pack_block(compiled.layout, rows) if packed else None
    clock.lap("encode")
    return BlockResult(
        key=key,
        rows=block_rows,
        parts=None if packed else tuple(rows),
        image=image,
        read_s=clock.seconds["read"],
        transform_s=clock.seconds["transform"],
        encode_s=clock.seconds["encode"],
        nbytes_read=request.nbytes,
        quality=encoder.observer.quality(),
    )


def pack_block(layout: SlotLayout, parts: Sequence[Rows]) -> pa.Buffer:
    """A block as one buffer in slot layout, which is pickled out of band."""
    return pa.py_buffer(write_rows(layout, parts))


def unpack_block(layout: SlotLayout, result: BlockResult) -> tuple[Rows, ...]:
    """The rows of a result, as views of its buffer."""
    return result.parts if result.parts is not None else (encoded_rows(layout, result.image),)


def _chunks(
    compiled: CompiledJob, piece: PieceRequest, *, as_stored: bool = False, first_rows: int = 0
) -> Iterator[Chunk]:
    """The piece's rows, chunk by chunk, of at most CHUNK_ROWS rows.

    first_rows: of the first chunk, about, from which they grow (0: all alike). as_stored: columns may come as unique
    rows, or as codes, and without deduplicated groups, whose runs end with a chunk, chunks may be larger, but not
    larger than the piece needs.
    """
    position, missing = 0, piece.rows
    larger = as_stored and len(compiled.parts) == 1
    chunks = read_fragment(
        piece.fragment,
        compiled.columns,
        compiled.where,
        compiled.schema,
        sample=compiled.sample,
        marks=compiled.marks,
        chunk_rows=max(CHUNK_ROWS, piece.skip + piece.rows) if larger else CHUNK_ROWS,
        first_rows=piece.skip + first_rows if first_rows else 0,
        compact=compiled.compact if as_stored else (),
        coded=compiled.coded if as_stored else {},
        expanded=compiled.expanded,
    )
    for chunk in chunks:
        height = chunk.frame.height
        start = min(max(piece.skip - position, 0), height)
        stop = min(height, start + missing)
        position += height
        missing -= max(0, stop - start)
        if stop > start:
            handover = [chunk if stop - start == height else chunk.part(start, stop)]
            del chunk
            yield handover.pop()  # no reference stays here, so that the caller can free it before the next is decoded
        if missing == 0:
            break


def first_chunks(job: Job, requests: Iterable[BlockRequest], count: int) -> list[pl.DataFrame]:
    """The first chunks of some blocks as tasks read them: filtered, at most `CHUNK_ROWS` rows each, not permuted."""
    compiled = compile_job(job)
    chunks = (chunk.frame for request in requests for piece in request.pieces for chunk in _chunks(compiled, piece))
    return list(itertools.islice(chunks, count))


def first_block_rows(job: Job, request: BlockRequest, rows: int) -> tuple[pl.DataFrame, list[int]]:
    """The first rows of a block as its task reads them, at most `rows`, and where among them a piece begins."""
    compiled = compile_job(job)
    frames: list[pl.DataFrame] = []
    borders: list[int] = []
    height = 0
    for piece in request.pieces:
        borders.append(height)
        for chunk in _chunks(compiled, piece):
            frames.append(chunk.frame)
            height += chunk.frame.height
            if height >= rows:
                break
        if height >= rows:
            break
    frame = pl.concat(frames, rechunk=True).head(rows)
    return frame, [border for border in borders if border < frame.height]


def _values(chunk: Chunk, name: str) -> pl.Series:
    column, values = chunk.frame.get_column(name), chunk.dictionaries.get(name)
    return column if values is None else expand_series(column, values)
