"""Tell which stored rows of a row group are read: those that filter and sample keep, without excluded ones.

Runs wherever rows are read. Only the columns of filter and sample are read, and none where they need none.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from feedline.expressions import BoundExpression
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.reading.fragment import Fragment, unpack_mask
from feedline.warehouse.reading.read import batches
from feedline.warehouse.reading.row_filter import RowFilter
from feedline.warehouse.reading.sample import Bools, BoundSample


def kept_mask(
    fragment: Fragment, where: BoundExpression | None, schema: pa.Schema, *, sample: BoundSample | None = None
) -> Bools:
    """bool [stored rows]: which rows of a fragment's only row group `read_fragment` yields. Raises what it raises."""
    [row_group] = fragment.row_groups
    row_filter = RowFilter(where=where, sample=sample)
    parts, counts = list[Bools](), [0]

    def skip(file: OpenFile) -> Collection[int]:
        first, stop = file.row_starts()[row_group : row_group + 2]
        is_whole = fragment.expected[0] == stop - first
        conditions = row_filter.for_row_group(proofs=fragment.proofs_of(0), whole=is_whole)
        if conditions.parts:
            return ()
        no_columns = pa.record_batch([pa.nulls(stop - first)], names=[""])
        parts.append(_stays(conditions, no_columns, fragment.path, first))
        return (0,)

    for batch in batches(fragment, (), row_filter, schema, counts=counts, skip=skip):
        parts.append(_stays(batch.row_filter, batch.data, fragment.path, batch.first_row))
        counts[0] += int(np.count_nonzero(parts[-1]))
    mask = np.concatenate(parts) if parts else np.zeros(0, np.bool_)
    if fragment.excluded and fragment.excluded[0] is not None:
        kept = np.flatnonzero(mask)
        mask[kept] = ~unpack_mask(fragment.excluded[0], len(kept))
    return mask


def _stays(conditions: RowFilter, data: pa.RecordBatch, path: str, first_row: int) -> Bools:
    stays = conditions.apply(data, path, first_row).stays
    return np.ones(data.num_rows, np.bool_) if stays is None else np.array(stays)
