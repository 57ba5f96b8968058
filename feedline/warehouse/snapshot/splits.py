"""Cut a table into splits: runs of whole row groups of one file, the units of reading, encoding and caching.

Pure. Greedy, file by file: a run takes row groups while its rows stay within `split_rows`, and at least one, so a split
is larger than `split_rows` only if a single row group is. Row groups without rows belong to no split, unless they are
between two of the same run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feedline.errors import PlanError

Ints = npt.NDArray[np.int64] | npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Splits:
    """Per split, in the table's order: its file, its run of row groups (indices into the table's) and its rows."""

    file: npt.NDArray[np.int32]
    first_row_group: npt.NDArray[np.int32]
    stop_row_group: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.file)

    def of_file(self, file: int) -> range:
        """The splits of a file. By bisection; for needles of another type numpy would copy the array."""
        first, stop = np.searchsorted(self.file, np.array([file, file + 1], self.file.dtype))
        return range(int(first), int(stop))


def plan_splits(rows_per_row_group: Ints, file_of_row_group: Ints, split_rows: int) -> Splits:
    """Cut the row groups (in the table's order, with the rows to read of each) into splits.

    Raises PlanError for a `split_rows` below 1.
    """
    if split_rows < 1:
        raise PlanError(f"split_rows is too small: got {split_rows}, expected at least 1")
    filled = np.flatnonzero(rows_per_row_group)
    rows = rows_per_row_group[filled].astype(np.int64)
    file = file_of_row_group[filled].astype(np.int32)
    first = _starts(rows, file, split_rows)
    stop = np.append(first[1:], len(filled))[: len(first)]
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows)])
    return Splits(
        file=file[first],
        first_row_group=filled[first].astype(np.int32),
        stop_row_group=(filled[stop - 1] + 1).astype(np.int32),
        rows=before[stop] - before[first],
    )


def _starts(rows: npt.NDArray[np.int64], file: npt.NDArray[np.int32], split_rows: int) -> npt.NDArray[np.int64]:
    """The start of each run: the start of the next run is computed for all row groups at once, then followed."""
    if not len(rows):
        return np.zeros(0, np.int64)
    total = np.cumsum(rows)
    fitting = np.searchsorted(total, total - rows + split_rows, side="right")
    file_end = np.searchsorted(file, file, side="right")
    following = np.minimum(np.maximum(fitting, np.arange(len(rows)) + 1), file_end).tolist()
    starts = []
    start = 0
    while start < len(following):
        starts.append(start)
        start = following[start]
    return np.asarray(starts, np.int64)
