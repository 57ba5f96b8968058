"""Order the rows of a clustered table: keys by their hash, the rows of a key together and sorted.

Runs in the tasks of `optimize`. Pure. Rows are ordered by (hash of the key, key, sort columns), nulls first; equal rows
keep their order. All rows with a null key are one group; a `bucket` is a range of hashes (`parquet.key_hashes`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from feedline.errors import TableArgumentError
from feedline.hashing import Words
from feedline.warehouse.parquet.key_hashes import key_hashes, series_of
from feedline.warehouse.parquet.schemas import child_fields, is_list
from feedline.warehouse.snapshot.column_facts import contiguous

Int64s = npt.NDArray[np.int64]


def refuse_keys(schema: pa.Schema, names: Sequence[str], option: str) -> None:
    """Raise TableArgumentError for columns by whose type rows cannot be clustered or sorted."""
    for name in names:
        kind = schema.field(name).type
        if child_fields(kind) or pat.is_null(kind) or pat.is_decimal256(kind) or pat.is_interval(kind):
            raise TableArgumentError(
                f"{option} names column {name!r} of type {kind}: expected numbers, strings, dates or times. "
                "Name another column"
            )


def buckets_of(hashes: Words, buckets: int) -> npt.NDArray[np.int32]:
    """int32 [rows]: which of `buckets` equal ranges of hashes each hash falls into, in ascending order."""
    # hashes [0, 2**62, 2**63, 2**64 - 1] in 4 buckets -> [0, 1, 2, 3]
    high = hashes >> np.uint64(32)  # 32 bits times up to 2**31 buckets fit 64 bits
    return (high * np.uint64(buckets) >> np.uint64(32)).astype(np.int32)


def row_order(table: pa.Table, keys: Sequence[str], sort_by: Sequence[str]) -> Int64s:
    """int64 [rows]: the rows of `table` in clustered order."""
    columns = {"hash": pl.Series(key_hashes(table, keys))}
    columns |= {f"key {name}": series_of(table[name]) for name in keys}
    columns |= {f"sort {name}": series_of(table[name]) for name in sort_by}
    frame = pl.DataFrame(columns)
    order = frame.select(pl.arg_sort_by(list(columns), nulls_last=False, maintain_order=True)).to_series()
    return order.to_numpy().astype(np.int64)


class Gatherer:
    """Gathers rows of a table by index, any number of times; columns are prepared once.

    `tables` holds the one table and is emptied, so that the table's memory can be freed column by column.
    """

    def __init__(self, tables: list[pa.Table]) -> None:
        table = tables.pop()
        self.schema = table.schema
        self.rows = table.num_rows
        self._columns: list[pa.Array | pl.Series] = []
        while table.num_columns:
            column = contiguous(table.column(0))
            table = table.remove_column(0)
            self._columns.append(series_of(column) if is_ragged(column.type) else column)
        pa.default_memory_pool().release_unused()  # decoding leaves about as much again

    def take(self, indices: Int64s) -> pa.Table:
        index = pa.array(indices)
        arrays = [
            as_list(column.gather(indices), field.type) if isinstance(column, pl.Series) else column.take(index)
            for column, field in zip(self._columns, self.schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def as_list(series: pl.Series, kind: pa.DataType) -> pa.Array:
    """Convert a Polars list series to an Arrow array of that list type, without copying the values."""
    array = series.to_arrow()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    offsets = array.offsets if pat.is_large_list(kind) else array.offsets.cast(pa.int32())
    values = array.values.cast(kind.value_type)
    list_class = pa.LargeListArray if pat.is_large_list(kind) else pa.ListArray
    mask = array.is_null() if array.null_count else None
    return list_class.from_arrays(offsets, values, type=kind, mask=mask)


def is_ragged(kind: pa.DataType) -> bool:
    """Whether a column is lists of numbers, which Polars gathers faster than Arrow."""
    if not is_list(kind):
        return False
    item = kind.value_type
    return bool(pat.is_integer(item) or pat.is_float32(item) or pat.is_float64(item))
