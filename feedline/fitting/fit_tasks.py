"""The tasks of a pass over a table that fits artifacts.

Pure. Runs in: the process that fits.
"""

from __future__ import annotations

import numpy as np

from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.snapshot.snapshot import Snapshot

# Rows of a task: few enough tasks for little overhead, enough to keep all threads busy and to report progress.
_MIN_TASK_ROWS, _MAX_TASK_ROWS, _TASKS_PER_THREAD = 131_072, 1_048_576, 8
_TASK_FILES = 64


def fit_tasks(snapshot: Snapshot, selection: Selection, threads: int) -> list[tuple[Fragment, ...]]:
    """Divide the row groups that may hold rows to learn from into tasks of about equal rows, in table order. Pure."""
    row_groups = np.flatnonzero(selection.rows)
    if not len(row_groups):
        return []
    stored = snapshot.rows_per_row_group[row_groups].astype(np.int64)
    share = int(stored.sum()) // (_TASKS_PER_THREAD * threads)
    rows = min(max(share, _MIN_TASK_ROWS), _MAX_TASK_ROWS)
    # row groups of 50,000 rows, and tasks of 131,072: begins 0, 50,000, 100,000, 150,000 -> parts 0, 0, 0, 1
    file, part = snapshot.file_of_row_group[row_groups], (np.cumsum(stored) - stored) // rows
    borders = np.flatnonzero((file[1:] != file[:-1]) | (part[1:] != part[:-1])) + 1
    tasks: dict[tuple[int, int], list[Fragment]] = {}
    for index, run in enumerate(np.split(np.arange(len(row_groups)), borders)):
        fragment = selection.fragment(snapshot, row_groups[run])
        tasks.setdefault((int(part[run[0]]), index // _TASK_FILES), []).append(fragment)
    return [tuple(fragments) for fragments in tasks.values()]
