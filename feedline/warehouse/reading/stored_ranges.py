"""The byte ranges of a file that reading some columns of a row group requests.

Runs in: the process that measures a store. Pure, but for the file's footer, which is open.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from feedline.warehouse.parquet.footer import chunk_ranges
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.resolved_columns import resolve_columns
from feedline.warehouse.reading.row_filter import RowFilter
from feedline.warehouse.storage.ranges import Range, coalesce


def stored_ranges(
    file: OpenFile, fragment: Fragment, columns: Sequence[str], row_filter: RowFilter, schema: pa.Schema
) -> list[Range]:
    """The ranges to request of all row groups of a fragment, as a run requests them of a store: neighbouring columns
    together. file: of the fragment, open. Raises TableError for an unknown column."""
    keys = frozenset(name for name, _ in fragment.partition)
    found: list[Range] = []
    for position, row_group in enumerate(fragment.row_groups):
        whole = fragment.expected[position] == file.metadata.row_group(row_group).num_rows
        here = row_filter.for_row_group(proofs=fragment.proofs_of(position), whole=whole)
        names = (*columns, *sorted(here.parts.difference(columns)))
        stored = resolve_columns(file, schema, names, frozenset(), keys)
        leaves = [*stored.leaves, *stored.flag_leaves(file)]
        found += coalesce(chunk_ranges(file.metadata, row_group, leaves, fragment.bytes))
    return found
