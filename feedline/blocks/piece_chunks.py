"""Read the rows of a block's piece, chunk by chunk.

Runs in: Dask workers: threads of the feeder, processes on this machine, or anywhere in a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import polars as pl

from feedline.blocks.jobs import CompiledJob
from feedline.blocks.request import PieceRequest
from feedline.errors import note_place
from feedline.warehouse.histories.joined_rows import ListColumns
from feedline.warehouse.reading.columns import CHUNK_ROWS, expand_series
from feedline.warehouse.reading.fragment import Chunk
from feedline.warehouse.reading.read import read_fragment
from feedline.warehouse.rebase.recorded_rows import remaining_rows


def piece_chunks(
    compiled: CompiledJob,
    piece: PieceRequest,
    columns: Sequence[str] | None = None,
    *,
    as_stored: bool = False,
    joined: bool = True,
    first_rows: int = 0,
) -> Iterator[Chunk]:
    """The piece's rows, chunk by chunk, of at most CHUNK_ROWS rows. columns: those of the frames (default: the job's).

    first_rows: of the first chunk, about, from which they grow (0: all alike). as_stored: columns may come as unique
    rows, or as codes, and without deduplicated groups, whose runs end with a chunk, chunks may be larger, but not
    larger than the piece needs. joined: with the lists that rows get from histories, which `BlockEncoder` adds
    otherwise.

    A piece that has the last rows of its fragment is read to the end, so that more rows than were planned are an error
    (`read_fragment`), too.
    """
    position, missing = 0, piece.rows
    is_last = piece.skip + piece.rows == remaining_rows(piece.fragment)
    larger = as_stored and len(compiled.parts) == 1
    request = replace(
        compiled.read,
        chunk_rows=max(CHUNK_ROWS, piece.skip + piece.rows) if larger else CHUNK_ROWS,
        first_rows=piece.skip + first_rows if first_rows else 0,
    )
    if columns is not None:
        request = replace(request, columns=columns, marks=())
    if not as_stored:
        request = replace(request, compact=(), coded={})
    lists = ListColumns.of(piece.fragment, request)
    try:
        for chunk in read_fragment(piece.fragment, request if lists is None else lists.stored):
            height = chunk.frame.height
            # 4 rows after 5 others, in chunks of 4: none of the first chunk, [1, 4) of the second, [0, 1) of the third
            start = min(max(piece.skip - position, 0), height)
            stop = min(height, start + missing)
            position += height
            missing -= max(0, stop - start)
            if stop > start:
                handover = [chunk if stop - start == height else chunk.part(start, stop)]
                del chunk
                if lists is None or not joined:
                    yield handover.pop()  # no reference stays: the caller can free it before the next is decoded
                else:
                    yield from lists.join(handover.pop())
            if missing == 0 and not is_last:
                break
    except Exception as error:
        note_place(error, f"file {piece.fragment.uri}")
        raise


def column_values(chunk: Chunk, name: str) -> pl.Series:
    """A column of a chunk, of every row."""
    column, values = chunk.frame.get_column(name), chunk.dictionaries.get(name)
    return column if values is None else expand_series(column, values)
