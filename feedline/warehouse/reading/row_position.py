"""Add to an error the file, row group and row that it is about.

Runs where a block is computed, after something failed, and then only: chunks know how many rows their row group has
delivered before them, and nothing else of where their rows stood. The row group is read once more, with just the
columns that decide which rows stay, and its rows are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from feedline.errors import DataError, FeedlineError
from feedline.expressions import BoundExpression
from feedline.warehouse.parquet.open_file import open_unchanged
from feedline.warehouse.reading.fragment import Chunk, unpack_mask
from feedline.warehouse.reading.read import batches
from feedline.warehouse.reading.row_filter import RowFilter
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT, BoundSample
from feedline.warehouse.storage.locations import join, locate


def with_row_position(
    error: DataError,
    chunks: Sequence[Chunk],
    where: BoundExpression | None,
    schema: pa.Schema,
    *,
    sample: BoundSample | None = None,
) -> DataError:
    """The error with its position at the end, of the row `error.row` of some chunks laid end to end.

    `where`, `schema` and `sample` are those that the chunks were read with. Rows are counted from 0. Where the file
    cannot be read again the row is left out; an error without a row is about any, so the first chunk is named.
    """
    row = error.row
    if row is None:
        return DataError(f"{error} (file {chunks[0].uri}, row group {chunks[0].row_group})")
    for chunk in chunks:
        if row < chunk.frame.height:
            try:
                found = f", row {row_in_file(chunk, row, where, schema, sample=sample)}"
            except FeedlineError:
                found = ""
            return DataError(f"{error} (file {chunk.uri}, row group {chunk.row_group}{found})")
        row -= chunk.frame.height
    raise AssertionError(f"an error is about row {error.row} of chunks that have fewer")


def row_in_file(
    chunk: Chunk, row: int, where: BoundExpression | None, schema: pa.Schema, *, sample: BoundSample | None = None
) -> int:
    """Which row of its file a row of a chunk is, counted from 0. Raises what reading raises."""
    fragment, position = chunk.fragment, chunk.position
    bits = fragment.excluded[position] if fragment.excluded else None
    alone = replace(
        fragment,
        row_groups=(chunk.row_group,),
        expected=(fragment.expected[position],),
        proven=(fragment.proven_of(position),),
        excluded=(),
    )
    column = next((name for name in chunk.frame.columns if name != SAMPLE_WEIGHT), schema.names[0])
    counts, read, places = [0], 0, []
    for batch in batches(alone, (column,), RowFilter(where=where, sample=sample), schema, counts=counts):
        stays = (
            None if batch.row_filter.idle else batch.row_filter.apply(batch.data, fragment.path, batch.first_row).stays
        )
        kept = np.arange(batch.data.num_rows) if stays is None else np.flatnonzero(stays)
        places.append(kept + read)
        counts[0] += len(kept)
        read += batch.data.num_rows
    delivered = np.concatenate(places)[~unpack_mask(bits, counts[0])]
    location = locate(fragment.table)
    with open_unchanged(location.filesystem, join(location.path, fragment.path), fragment.seen) as file:
        first = file.row_starts()[chunk.row_group]
    return first + int(delivered[chunk.start + row])
