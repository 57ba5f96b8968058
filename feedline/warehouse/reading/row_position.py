"""Add the file, row group and row to an error about a row.

Runs where a block is computed, and only after a failure. A chunk knows just how many rows its row group delivered
before it, so the row group is read again, with only the columns that filter and sample need, to count its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from feedline.errors import DataError, FeedlineError
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.reading.fragment import Chunk, Fragment, unpack_mask
from feedline.warehouse.reading.read import ReadRequest, batches
from feedline.warehouse.reading.row_filter import RowFilter
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT, Bools


def with_row_position(error: DataError, chunks: Sequence[Chunk], request: ReadRequest) -> DataError:
    """Return the error with the position of row `error.row` (of the concatenated chunks) appended to its message.

    `request`: by which the chunks were read. Rows count from 0. The row is omitted if the file cannot be read again; an
    error without a row gets the position of the first chunk.
    """
    row = error.row
    if row is None:
        return DataError(f"{error} (file {chunks[0].uri}, row group {chunks[0].row_group})")
    for chunk in chunks:
        if row < chunk.frame.height:
            try:
                position = f", row {row_in_file(chunk, row, request)}"
            except FeedlineError:
                position = ""
            return DataError(f"{error} (file {chunk.uri}, row group {chunk.row_group}{position})")
        row -= chunk.frame.height
    raise AssertionError(f"the error names row {error.row}, but the chunks have fewer rows")


def row_in_file(chunk: Chunk, row: int, request: ReadRequest) -> int:
    """Return the index in its file of a row of a chunk. Raises what reading raises."""
    fragment, position = chunk.fragment, chunk.position
    bits = fragment.excluded[position] if fragment.excluded else None
    alone = replace(fragment.alone(position), excluded=())
    column = next((name for name in chunk.frame.columns if name != SAMPLE_WEIGHT), request.schema.names[0])
    counts, read, kept_rows = [0], 0, []
    for batch in batches(alone, request.only(column), counts):
        stays = (
            None if batch.row_filter.idle else batch.row_filter.apply(batch.data, fragment.path, batch.first_row).stays
        )
        index = np.arange(batch.data.num_rows) if stays is None else np.flatnonzero(stays)
        kept_rows.append(index + read)
        counts[0] += len(index)
        read += batch.data.num_rows
    delivered = np.concatenate(kept_rows)[~unpack_mask(bits, counts[0])]
    with fragment.open() as file:
        first, _ = fragment.span_of(position, file)
    return first + int(delivered[chunk.start + row])


# --------------------------------------------------------------------------------------------------------------------
# Tell which stored rows of a row group are read: those that filter and sample keep, without excluded ones. Runs
# wherever rows are read. Only the columns of filter and sample are read, and none where they need none.


def kept_mask(fragment: Fragment, request: ReadRequest) -> Bools:
    """bool [stored rows]: which rows of a fragment's only row group `read_fragment` yields. Raises what it raises."""
    assert len(fragment.row_groups) == 1
    request = request.only()
    row_filter = request.row_filter()
    parts, counts = list[Bools](), [0]

    def skip(file: OpenFile) -> Collection[int]:
        first, stop = fragment.span_of(0, file)
        is_whole = fragment.expected[0] == stop - first
        conditions = row_filter.for_row_group(proofs=fragment.proofs_of(0), whole=is_whole)
        if conditions.parts:
            return ()
        no_columns = pa.record_batch([pa.nulls(stop - first)], names=[""])
        parts.append(_stays(conditions, no_columns, fragment.path, first))
        return (0,)

    for batch in batches(fragment, request, counts, skip):
        parts.append(_stays(batch.row_filter, batch.data, fragment.path, batch.first_row))
        counts[0] += int(np.count_nonzero(parts[-1]))
    mask = np.concatenate(parts) if parts else np.zeros(0, np.bool_)
    if fragment.excluded and fragment.excluded[0] is not None:
        index = np.flatnonzero(mask)
        mask[index] = ~unpack_mask(fragment.excluded[0], len(index))
    return mask


def _stays(conditions: RowFilter, data: pa.RecordBatch, path: str, first_row: int) -> Bools:
    stays = conditions.apply(data, path, first_row).stays
    return np.ones(data.num_rows, np.bool_) if stays is None else np.array(stays)
