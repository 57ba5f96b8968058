"""Count the rows of a fragment's row groups that filter and sample keep, reading as little as possible.

Runs in counting tasks, wherever `map` runs them. If no column is needed (`RowFilter.parts` is empty), rows are counted
by arithmetic. Otherwise bloom filters are read first, if they are smaller than the columns; row groups that they
exclude are not read. For all others the columns of the filter and of the sample are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from feedline.expressions import BoundExpression
from feedline.warehouse.parquet.bloom import RowGroupFilters
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.read import batches
from feedline.warehouse.reading.row_filter import RowFilter
from feedline.warehouse.reading.sample import BoundSample, sampled_rows

# Of narrow rows, with their codes in the second cache: a chunk costs 0.2 ms however few rows it has.
_CHUNK_ROWS = 131_072


class Count(NamedTuple):
    """The count of one row group: kept rows, and rows that `where` keeps before sampling.

    `by_bloom`: bloom filters excluded every row, and none was read. `bloom_bytes`: bytes of bloom filters read.
    """

    rows: int
    matched: int
    by_bloom: bool = False
    bloom_bytes: int = 0


def count_fragment(
    fragment: Fragment, where: BoundExpression | None, schema: pa.Schema, *, sample: BoundSample | None = None
) -> tuple[Count, ...]:
    """Count each row group of a fragment whose row groups are all UNCOUNTED. Raises what reading raises."""
    row_filter = RowFilter(where=where, sample=sample)
    unread: dict[int, Count] = {}
    bloom_bytes = [0] * len(fragment.row_groups)

    def skip(file: OpenFile) -> Collection[int]:
        partition = dict(fragment.partition)
        filters = RowGroupFilters(file.metadata, file.schema, file.stored, partition, file.read_at, fragment.bytes)
        for position, row_group in enumerate(fragment.row_groups):
            conditions = row_filter.for_row_group(proofs=fragment.proofs_of(position), whole=False)
            if conditions.where is not None:
                worth = _stored_bytes(file, row_group, conditions.where.columns)
                excluded, bloom_bytes[position] = filters.refute(conditions.where.predicate, row_group, worth=worth)
                if excluded:
                    unread[position] = Count(0, 0, True, bloom_bytes[position])
            elif not conditions.parts:
                unread[position] = _by_arithmetic(file, fragment, row_group, conditions.sample)
        return unread

    kept, matched = [0] * len(fragment.row_groups), [0] * len(fragment.row_groups)
    for batch in batches(fragment, (), row_filter, schema, chunk_rows=_CHUNK_ROWS, counts=kept, skip=skip):
        result = batch.row_filter.apply(batch.data, fragment.path, batch.first_row)
        stays = result.stays
        kept[batch.position] += batch.data.num_rows if stays is None else int(np.count_nonzero(stays))
        matched[batch.position] += result.matched
    return tuple(
        unread.get(position) or Count(kept[position], matched[position], False, bloom_bytes[position])
        for position in range(len(fragment.row_groups))
    )


def _stored_bytes(file: OpenFile, row_group: int, columns: Iterable[str]) -> int:
    """Return the compressed bytes of these columns, which a bloom filter may save."""
    chunks = file.metadata.row_group(row_group)
    leaves = [leaf for name in columns for leaf in file.stored.get(name, range(0))]
    return sum(chunks.column(leaf).total_compressed_size for leaf in leaves)


def _by_arithmetic(file: OpenFile, fragment: Fragment, row_group: int, sample: BoundSample | None) -> Count:
    first, stop = file.row_starts()[row_group : row_group + 2]
    rows = stop - first
    return Count(rows if sample is None else sampled_rows(sample.sample, fragment.path, first, rows), rows)
