"""Count the rows of a fragment's row groups that filter and sample keep, reading as little as possible.

Runs in counting tasks, wherever `map` runs them. Where no column decides (`RowFilter.parts` is empty), rows are counted
by arithmetic. Else bloom filters are read first, where they are smaller than the columns; a row group that they exclude
is not read. For the others, the columns of the filter and of the sample are.
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


class Count(NamedTuple):
    """The count of one row group: rows kept, and rows that `where` keeps before the sample.

    `by_bloom`: bloom filters exclude every row, none was read. `bloom_bytes`: bytes of bloom filters that were read.
    """

    rows: int
    matched: int
    by_bloom: bool = False
    bloom_bytes: int = 0


def count_fragment(
    fragment: Fragment, where: BoundExpression | None, schema: pa.Schema, *, sample: BoundSample | None = None
) -> tuple[Count, ...]:
    """One count per row group of a fragment, all of them UNCOUNTED. Raises what reading raises."""
    row_filter = RowFilter(where=where, sample=sample)
    known: dict[int, Count] = {}
    bloom_bytes = [0] * len(fragment.row_groups)

    def skip(file: OpenFile) -> Collection[int]:
        filters = RowGroupFilters(file.parquet, file.stored, dict(fragment.partition), file.read_at, fragment.bytes)
        for position, row_group in enumerate(fragment.row_groups):
            here = row_filter.for_row_group(proven=fragment.proven_of(position), whole=False)
            if here.where is not None:
                worth = _stored_bytes(file, row_group, here.where.columns)
                excluded, bloom_bytes[position] = filters.refute(here.where.predicate, row_group, worth=worth)
                if excluded:
                    known[position] = Count(0, 0, True, bloom_bytes[position])
            elif not here.parts:
                known[position] = _by_arithmetic(file, fragment, row_group, here.sample)
        return known

    kept, matched = [0] * len(fragment.row_groups), [0] * len(fragment.row_groups)
    for batch in batches(fragment, (), row_filter, schema, counts=kept, skip=skip):
        result = batch.row_filter.apply(batch.data, fragment.path, batch.first_row)
        stays = result.stays
        kept[batch.position] += batch.data.num_rows if stays is None else int(np.count_nonzero(stays))
        matched[batch.position] += result.matched
    return tuple(
        known.get(position) or Count(kept[position], matched[position], False, bloom_bytes[position])
        for position in range(len(fragment.row_groups))
    )


def _stored_bytes(file: OpenFile, row_group: int, columns: Iterable[str]) -> int:
    """Compressed bytes of some columns: what reading them costs, and what a filter may save."""
    chunks = file.metadata.row_group(row_group)
    leaves = [leaf for name in columns for leaf in file.stored.get(name, range(0))]
    return sum(chunks.column(leaf).total_compressed_size for leaf in leaves)


def _by_arithmetic(file: OpenFile, fragment: Fragment, row_group: int, sample: BoundSample | None) -> Count:
    first, stop = file.row_starts()[row_group : row_group + 2]
    rows = stop - first
    return Count(rows if sample is None else sampled_rows(sample.sample, fragment.path, first, rows), rows)
