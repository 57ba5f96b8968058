"""Facts of a table that its footers have: sizes, partition keys, nulls and ranges of columns, encodings.

Runs in: the process that profiles. No page is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from feedline.warehouse.reading.fragment import UNCOUNTED, fragment_at
from feedline.warehouse.selection.column_bounds import end_value, value_ranges
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.workbench.profile.table_facts import ColumnProfile, PartitionKey

_CHUNKS = 4096  # of columns in row groups whose encodings are looked up
_MOST_FILES = 4
_LEVELS = {"RLE", "BIT_PACKED"}  # how levels are encoded, beside the values of nearly every column


def partition_keys(snapshot: Snapshot) -> tuple[PartitionKey, ...]:
    """The keys of the table's folders with their values, counted and by their ends."""
    found = []
    for name in snapshot.partition_columns:
        values = pc.struct_field(snapshot.files["partition"], name).combine_chunks().drop_null()
        ends, count = pc.min_max(values), int(pc.count_distinct(values).as_py())
        first, last = (str(end_value(ends[side])) if count else None for side in ("min", "max"))
        found.append(PartitionKey(name=name, type=str(values.type), values=count, first=first, last=last))
    return tuple(found)


def row_group_sizes(snapshot: Snapshot) -> tuple[int, int, int]:
    """The fewest, the median and the most rows of a row group; zeros without any."""
    rows = np.sort(snapshot.rows_per_row_group)
    if not len(rows):
        return 0, 0, 0
    return int(rows[0]), int(rows[(len(rows) - 1) // 2]), int(rows[-1])


def stored_columns_of(
    snapshot: Snapshot, columns: Sequence[str], row_groups: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """How columns are stored: `bytes_per_row`, compressed, of the table; `encodings` and `codecs` of a few of these row
    groups."""
    rows = max(snapshot.rows, 1)
    names = [name for name in columns if name not in snapshot.partition_columns]
    sizes = {name: float(part.sum()) / rows for name, part in snapshot.column_parts(names, "bytes")}
    encodings: dict[str, set[str]] = {name: set() for name in names}
    codecs: dict[str, set[str]] = {name: set() for name in names}
    most = max(1, min(_MOST_FILES, _CHUNKS // max(len(names), 1), len(row_groups)))
    for index in np.unique(np.linspace(0, len(row_groups) - 1, most).astype(int)) if row_groups else ():
        row_group = row_groups[index]
        file = int(snapshot.file_of_row_group[row_group])
        fragment = fragment_at(snapshot, file, np.array([row_group]), np.array([UNCOUNTED]))
        with fragment.open() as opened:
            group = opened.metadata.row_group(fragment.row_groups[0])
            for name in names:
                for leaf in opened.stored.get(name, range(0)):
                    chunk = group.column(leaf)
                    encodings[name].update(chunk.encodings)
                    codecs[name].add(chunk.compression)
    return {
        name: {
            "bytes_per_row": sizes[name],
            "encodings": tuple(sorted(encodings[name] - _LEVELS)) or tuple(sorted(encodings[name])),
            "codecs": tuple(sorted(codecs[name])),
        }
        for name in names
    }


class FooterRanges:
    """Nulls and ranges of columns over some whole row groups (indices in the table; None: unknown, as a filter keeps
    some rows of a row group)."""

    def __init__(self, snapshot: Snapshot, row_groups: npt.NDArray[np.int64] | None) -> None:
        if row_groups is not None and len(row_groups) < len(snapshot.row_groups):
            indices = pa.array(row_groups)
            groups = snapshot.row_groups.take(indices).combine_chunks()
            snapshot = replace(snapshot, row_groups=groups, facts=snapshot.facts.take(row_groups))
        self._snapshot = snapshot
        self._known = row_groups is not None and snapshot.rows > 0

    def apply(self, column: ColumnProfile) -> ColumnProfile:
        """The column's facts with the nulls and the range of all rows, where footers have them."""
        if not self._known:
            return column
        if column.partition:
            files = pa.array(np.unique(self._snapshot.file_of_row_group))
            values = pc.struct_field(self._snapshot.files["partition"], column.name).combine_chunks()
            return _with_keys(column, values.take(files))
        nulls = self._snapshot.column_part(column.name, "nulls")
        if len(nulls) and (nulls >= 0).all():
            column = replace(column, null_rate=int(nulls.sum()) / self._snapshot.rows, null_exact=True)
        if column.role not in ("numeric", "category", "time") or column.null_rate == 1:
            return column
        ends = value_ranges(self._snapshot, [column.name]).get(column.name)
        return column if ends is None else _with_range(column, *ends)


def _with_keys(column: ColumnProfile, values: pa.Array) -> ColumnProfile:
    """The facts of a key with all its values (per file), but for the shares of rows."""
    values = values.drop_null()
    if not len(values) or column.vocabulary is None:
        return column
    ends, count = pc.min_max(values), int(pc.count_distinct(values).as_py())
    column = replace(column, vocabulary=replace(column.vocabulary, table=count, error=0.0), constant=count == 1)
    return _with_range(column, end_value(ends["min"]), end_value(ends["max"]))


def _with_range(column: ColumnProfile, low: Any, high: Any) -> ColumnProfile:
    if column.role == "time":
        return replace(column, first=low, last=high, range_exact=True)
    if column.numbers is None or column.role not in ("numeric", "category"):
        return column
    if not all(map(math.isfinite, (low, high))):
        return replace(column, constant=column.constant and low == high)  # the finite ends are in no footer
    number = int if isinstance(low, int) else float
    numbers = replace(column.numbers, min=number(low) + 0, max=number(high) + 0)  # of -0.0 and 0.0, always 0.0
    return replace(column, numbers=numbers, range_exact=True, constant=column.constant and low == high)
