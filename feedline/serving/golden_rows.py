"""Choose the rows of golden vectors: the first ones of splits spread over the table.

Runs in: the process that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from feedline.errors import DataError
from feedline.expressions import BoundExpression
from feedline.warehouse.reading.read import read_fragment
from feedline.warehouse.reading.sample import BoundSample
from feedline.warehouse.selection.first_rows import screened_splits
from feedline.warehouse.snapshot.snapshot import Snapshot

SPLITS, ROWS_OF_SPLIT = 10, 24
# Rows per chunk, and chunks read of a split before it is given up where the filter keeps few rows.
_CHUNK_ROWS, _CHUNKS = 2_048, 16


def first_rows_of_splits(
    snapshot: Snapshot,
    columns: Sequence[str],
    schema: pa.Schema,
    *,
    where: BoundExpression | None,
    sample: BoundSample | None,
) -> pa.Table:
    """Read the first kept rows of some splits: these columns, in the types of `schema`."""
    target = pa.schema([schema.field(name) for name in columns])
    tables = [target.empty_table()]
    for fragment in screened_splits(snapshot, where, sample, _spread):
        remaining = ROWS_OF_SPLIT
        chunks = read_fragment(fragment, columns, where, schema, sample=sample, chunk_rows=_CHUNK_ROWS)
        for _, chunk in zip(range(_CHUNKS), chunks, strict=False):
            table = chunk.frame.head(remaining).to_arrow()
            tables.append(pa.table([table[name].cast(target.field(name).type) for name in columns], schema=target))
            remaining -= table.num_rows
            if not remaining:
                break
    return pa.concat_tables(tables).combine_chunks()


def _spread(splits: int) -> list[int]:
    """Indices of `SPLITS` splits, evenly spread."""
    return list(dict.fromkeys(np.linspace(0, splits - 1, SPLITS).astype(int).tolist())) if splits else []


def rows_that_encode(rows: pa.Table, encode: Callable[[pa.Table], object]) -> pa.Table:
    """Keep the rows that `encode` accepts; tried together first, then one by one."""
    if not rows.num_rows or _encodes(rows, encode):
        return rows
    kept = [row for row in range(rows.num_rows) if _encodes(rows.slice(row, 1), encode)]
    return rows.take(pa.array(kept, pa.int64()))


def _encodes(rows: pa.Table, encode: Callable[[pa.Table], object]) -> bool:
    try:
        encode(rows)
    except DataError:
        return False
    return True
