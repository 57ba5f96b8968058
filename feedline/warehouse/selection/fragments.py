"""Divide a row selection into fragments, one per split of the rows that are, or may be, kept."""

from __future__ import annotations

import numpy as np

from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.splits import plan_splits

SPLIT_ROWS = 65_536


def plan_fragments(snapshot: Snapshot, selection: Selection, split_rows: int) -> list[Fragment]:
    """Return the fragments in the table's order. Uncounted row groups are split by their stored rows."""
    planned = np.where(selection.rows == UNCOUNTED, snapshot.rows_per_row_group, selection.rows)
    splits = plan_splits(planned, snapshot.file_of_row_group, split_rows)
    groups = (np.arange(*bounds) for bounds in zip(splits.first_row_group, splits.stop_row_group, strict=True))
    return [selection.fragment(snapshot, each) for each in groups]
