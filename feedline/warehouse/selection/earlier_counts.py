"""Carry the kept counts of an earlier snapshot over to a later one of the same table, for files that have not changed.

Pure; runs where a plan is made. A table that is followed grows by a few files; only these are counted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from feedline.warehouse.selection.waves import COLUMNS, counts_table
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.snapshot.snapshot import Snapshot, retimed_text
from feedline.warehouse.storage.file_identity import known_files

logger = logging.getLogger(__name__)

Int64s = npt.NDArray[np.int64]


def same_types(before: Snapshot, after: Snapshot, columns: Collection[str]) -> bool:
    """Whether both snapshots have these columns, in the same types."""
    return all(
        name in before.schema.names and before.schema.field(name).type == after.schema.field(name).type
        for name in columns
    )


def row_groups_before(before: Snapshot, after: Snapshot) -> Int64s:
    """int64 [row groups of the later snapshot]: the same row group's index in the earlier one; -1 without one, and
    where the file is another one (`file_identity`)."""
    known = known_files(after.files, before.files)
    if known.retimed.any():
        logger.warning("%s", retimed_text(after, known.retimed, "counted again"))
    starts = np.searchsorted(before.file_of_row_group, np.arange(len(before.files)))
    mine = after.file_of_row_group
    if not len(mine) or not len(starts):
        return np.full(len(mine), -1, np.int64)
    file = known.before
    return np.where(file[mine] >= 0, starts[file[mine]] + after.row_group_in_file, -1).astype(np.int64)


def carried_counts(table: pa.Table, before: Int64s, row_groups: Int64s) -> pa.Table:
    """The kept counts of an earlier snapshot (`table`), as those of some row groups of the later one. before: see
    `row_groups_before`."""
    wanted = row_groups[before[row_groups] >= 0]
    index = pc.index_in(pa.array(before[wanted]), value_set=contiguous(table["row_group"]))
    found = np.flatnonzero(index.is_valid().to_numpy(zero_copy_only=False))
    rows = table.take(index.take(pa.array(found)))
    return counts_table(wanted[found], [rows[name].to_numpy() for name in list(COLUMNS)[1:]])
