"""How the facts of many footers become few typed Arrow columns: a snapshot's `row_groups`.

Pure; runs where a snapshot is taken. Files arrive one by one as Python lists. Runs of files with equal schemas are
gathered (`Tally`) and turned into arrays of the files' own types together, because making an array costs microseconds
and a large table has millions of column chunks. At the end, when the table's schema is known, each block is cast to
it: bounds widen without loss, a bound that does not fit is unknown, a column that a block lacks is all null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from feedline.warehouse.bounds import bounds_of, has_bounds, is_text
from feedline.warehouse.footers import ColumnFacts, FileFacts
from feedline.warehouse.schemas import decoded

_FILES_PER_BLOCK = 512


@dataclass(frozen=True, slots=True)
class _Block:
    """Row groups of consecutive files of one kind: per column bytes, nulls, exact and, where kept, bounds."""

    rows: pa.Array
    columns: dict[str, dict[str, pa.Array]]


class Tally:
    """Collects footers in the table's order; `table` gives their row groups under the table's schema."""

    def __init__(self) -> None:
        self.rows_per_file: list[int] = []
        self.row_groups_per_file: list[int] = []
        self._blocks: list[_Block] = []
        self._open: list[FileFacts] = []

    def add(self, facts: FileFacts) -> None:
        """Take the next file's facts."""
        self.rows_per_file.append(sum(facts.rows))
        self.row_groups_per_file.append(len(facts.rows))
        if self._open and (len(self._open) >= _FILES_PER_BLOCK or not _alike(self._open[-1], facts)):
            self._close()
        self._open.append(facts)

    def table(self, schema: pa.Schema) -> pa.Table:
        """Row groups in order: file (int32), row_group (int32, within the file), rows, bytes (int64) and `columns`.

        `columns` is a struct with one field per column of `schema`, itself a struct of bytes and nulls (int64, -1
        unknown) and, for types that have them, min and max in the column's type (null: unknown). Strings and bytes
        have the boolean `exact` besides: bounds are values of the column, not truncated ones.
        """
        if self._open:
            self._close()
        counts = np.asarray(self.row_groups_per_file, np.int64)
        file = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        columns = [pa.concat_arrays([_conformed(block, field) for block in self._blocks]) for field in schema]
        sizes = sum((column.field("bytes").to_numpy() for column in columns), np.zeros(len(file), np.int64))
        return pa.table(
            {
                "file": pa.array(file),
                "row_group": pa.array((np.arange(len(file)) - starts).astype(np.int32)),
                "rows": pa.concat_arrays([pa.array([], pa.int64()), *(block.rows for block in self._blocks)]),
                "bytes": pa.array(sizes, pa.int64()),
                "columns": pa.StructArray.from_arrays(columns, names=schema.names),
            }
        )

    def _close(self) -> None:
        files, self._open = self._open, []
        columns = {
            field.name: _arrays([facts.columns[index] for facts in files], decoded(field.type))
            for index, field in enumerate(files[0].schema)
        }
        rows = pa.array([count for facts in files for count in facts.rows], pa.int64())
        self._blocks.append(_Block(rows, columns))


def _alike(one: FileFacts, other: FileFacts) -> bool:
    """Whether bounds of both are stored alike; one Arrow type may have several physical ones."""
    return one.physical == other.physical and bool(one.schema == other.schema)


def _arrays(facts: Sequence[ColumnFacts], kind: pa.DataType) -> dict[str, pa.Array]:
    arrays = {
        "bytes": pa.array([value for column in facts for value in column.bytes], pa.int64()),
        "nulls": pa.array([value for column in facts for value in column.nulls], pa.int64()),
        "exact": pa.array([value for column in facts for value in column.exact], pa.bool_()),
    }
    if has_bounds(kind):
        low = list(chain.from_iterable(column.low for column in facts))
        high = list(chain.from_iterable(column.high for column in facts))
        arrays["min"], arrays["max"] = bounds_of(low, high, facts[0].physical, kind)
    return arrays


def _conformed(block: _Block, field: pa.Field) -> pa.StructArray:
    """A block's facts of one column of the table's schema."""
    found = block.columns.get(field.name)
    size = len(block.rows)
    if found is None:
        nulls = pa.array(np.full(size, -1)) if pat.is_nested(field.type) else block.rows
        found = {"bytes": pa.array(np.zeros(size, np.int64)), "nulls": nulls, "exact": pa.array([False] * size)}
    parts = {"bytes": found["bytes"], "nulls": found["nulls"]}
    if has_bounds(field.type):
        for side in ("min", "max"):
            parts[side] = _cast(found[side], field.type) if side in found else pa.nulls(size, field.type)
    if is_text(field.type):
        parts["exact"] = found["exact"]
    return pa.StructArray.from_arrays(list(parts.values()), names=list(parts))


def _cast(bound: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return bound.cast(kind)
    except pa.ArrowInvalid:
        return pa.nulls(len(bound), kind)
