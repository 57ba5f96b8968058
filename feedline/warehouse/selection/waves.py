"""Count a table in waves: the sizes of waves, and the tables of counts that are kept.

Pure; runs where a plan is made. A wave takes about `WAVE_S` at the pace of the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

COLUMNS = {"row_group": "int64", "rows": "int64", "matched": "int64", "by_bloom": "bool", "bloom_bytes": "int64"}
WAVE_S = 30.0
FIRST_TASKS = 64
_MOST_TASKS = 4096  # per wave, of up to 32 files each: 130 MB of tasks
_GROWTH = 4


def next_tasks(tasks: int, seconds: float) -> int:
    """Return the number of tasks in the next wave, after one of `tasks` tasks that took `seconds`."""
    most = min(_GROWTH * tasks, _MOST_TASKS)
    return most if seconds <= 0 else max(1, int(min(most, tasks * WAVE_S / seconds)))


def counts_table(row_groups: npt.NDArray[np.int64], facts: list[npt.NDArray[np.generic]]) -> pa.Table:
    """Build a table of counts by row group: rows, matched, by_bloom, bloom_bytes (see `counting.Count`)."""
    values = zip([row_groups, *facts], COLUMNS.values(), strict=True)
    return pa.table([np.asarray(array).astype(kind) for array, kind in values], names=list(COLUMNS))


def checked_counts(tables: Sequence[pa.Table] | None, stored: npt.NDArray[np.int64]) -> pa.Table | None:
    """The one table of counts that was kept; None if there is none, or it is inconsistent.

    `stored`: rows of each row group of the table.
    """
    if tables is None or len(tables) != 1:
        return None
    (table,) = tables
    if table.column_names != list(COLUMNS):
        return None
    row_groups, rows, matched = (table[column].to_numpy() for column in ("row_group", "rows", "matched"))
    if not len(row_groups):
        return table
    if row_groups.min() < 0 or row_groups.max() >= len(stored) or (np.diff(row_groups) <= 0).any():
        return None
    wrong = (rows < 0) | (rows > matched) | (matched > stored[row_groups])
    return None if wrong.any() else table


def counts_of(
    tables: Sequence[pa.Table] | None, row_groups: npt.NDArray[np.int64], stored: npt.NDArray[np.int64]
) -> pa.Table:
    """The kept counts of some row groups, as `checked_counts`; an empty table where there are none."""
    table = checked_counts(tables, stored)
    if table is None:
        return counts_table(np.zeros(0, np.int64), [np.zeros(0)] * (len(COLUMNS) - 1))
    return table.filter(pa.array(np.isin(table["row_group"].to_numpy(), row_groups)))
