"""Cut a table into splits: runs of whole row groups of one file, the units of reading, encoding and caching.

Pure. Greedy, file by file: a run takes row groups while its rows stay within `split_rows`, and at least one, so a split
is larger than `split_rows` only if a single row group is. Row groups without rows belong to no split, unless they are
between two of the same run. The rows that a filter keeps may be limited in the same way.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feedline.dataclass import dataclass
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


def plan_splits(
    rows_per_row_group: Ints, file_of_row_group: Ints, split_rows: int, *, kept: tuple[Ints, int] | None = None
) -> Splits:
    """Cut the row groups (in the table's order, with the rows to read of each) into splits.

    kept: the rows of each that a filter keeps, and how many of them a split has at most (default: any number).

    Raises PlanError for a `split_rows` below 1.
    """
    if split_rows < 1:
        raise PlanError(f"split_rows is too small: got {split_rows}, expected at least 1")
    filled = np.flatnonzero(rows_per_row_group)
    rows = rows_per_row_group[filled].astype(np.int64)
    file = file_of_row_group[filled].astype(np.int32)
    limits = [(rows, split_rows)]
    if kept is not None:
        limits.append((kept[0][filled].astype(np.int64), kept[1]))
    first = _starts(limits, file)
    stop = np.append(first[1:], len(filled))[: len(first)]
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows)])
    return Splits(
        file=file[first],
        first_row_group=filled[first].astype(np.int32),
        stop_row_group=(filled[stop - 1] + 1).astype(np.int32),
        rows=before[stop] - before[first],
    )


def _starts(limits: list[tuple[npt.NDArray[np.int64], int]], file: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """The start of each run: the start of the next run is computed for all row groups at once, then followed.

    limits: the rows of each row group by some count, and how many of them a run has at most.
    """
    if not len(file):
        return np.zeros(0, np.int64)
    # rows [3, 4, 2, 9] of one file, at most 7 -> each run would end before [2, 3, 3, 4]; followed from 0: [0, 2, 3]
    following = np.searchsorted(file, file, side="right")
    for rows, most in limits:
        total = np.cumsum(rows)
        fitting = np.searchsorted(total, total - rows + most, side="right")
        following = np.minimum(following, np.maximum(fitting, np.arange(len(rows)) + 1))
    ends = following.tolist()
    starts = []
    start = 0
    while start < len(ends):
        starts.append(start)
        start = ends[start]
    return np.asarray(starts, np.int64)
