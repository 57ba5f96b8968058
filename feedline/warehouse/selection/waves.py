"""Count a table in waves, and save partial counts so that an interrupted count resumes.

Runs where a plan is made. Tasks are created and run in waves, in the table's order, and the counts of all finished
waves are stored in `work_dir` until the whole is. A wave takes about `WAVE_S` at the pace of the one before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.errors import CorruptFileError
from feedline.warehouse.storage import content_store

logger = logging.getLogger(__name__)

COLUMNS = {"row_group": "int64", "rows": "int64", "matched": "int64", "by_bloom": "bool", "bloom_bytes": "int64"}
WAVE_S = 30.0
FIRST_TASKS = 64
_MOST_TASKS = 4096  # per wave, of up to 32 files each: 130 MB of tasks
_GROWTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CountProgress:
    """Progress of a count: rows in counted row groups, and in all row groups to count."""

    rows: int
    all_rows: int


Say: TypeAlias = Callable[[CountProgress], None]
_listener: ContextVar[Say | None] = ContextVar("feedline_count_listener", default=None)


@contextmanager
def on_count_progress(say: Say) -> Iterator[None]:
    """Call `say` after every wave of a count that runs in this thread inside the block."""
    before = _listener.set(say)
    try:
        yield
    finally:
        _listener.reset(before)


def report_progress(progress: CountProgress) -> None:
    """Report progress to `on_count_progress`, or else to the log."""
    say = _listener.get()
    if say is not None:
        say(progress)
    else:
        logger.info("counted %s of %s rows", f"{progress.rows:,}", f"{progress.all_rows:,}")


def next_tasks(tasks: int, seconds: float) -> int:
    """Return the number of tasks in the next wave, after one of `tasks` tasks that took `seconds`."""
    most = min(_GROWTH * tasks, _MOST_TASKS)
    return most if seconds <= 0 else max(1, int(min(most, tasks * WAVE_S / seconds)))


def counts_table(row_groups: npt.NDArray[np.int64], facts: list[npt.NDArray[np.generic]]) -> pa.Table:
    """Build a table of counts by row group: rows, matched, by_bloom, bloom_bytes (see `counting.Count`)."""
    values = zip([row_groups, *facts], COLUMNS.values(), strict=True)
    return pa.table([np.asarray(array).astype(kind) for array, kind in values], names=list(COLUMNS))


def load_counts(work_dir: str, name: str, stored: npt.NDArray[np.int64]) -> pa.Table | None:
    """Load a table of counts from `work_dir`; None if there is none, or it is damaged or inconsistent.

    `stored`: rows of each row group of the table.
    """
    try:
        (table,) = content_store.load(work_dir, name, tables=1)
    except (FileNotFoundError, CorruptFileError):
        return None
    if table.column_names != list(COLUMNS):
        return None
    row_groups, rows, matched = (table[column].to_numpy() for column in ("row_group", "rows", "matched"))
    if not len(row_groups):
        return table
    if row_groups.min() < 0 or row_groups.max() >= len(stored) or (np.diff(row_groups) <= 0).any():
        return None
    wrong = (rows < 0) | (rows > matched) | (matched > stored[row_groups])
    return None if wrong.any() else table


class PartialCounts:
    """The stored counts of an unfinished count, in `work_dir` under a name of their own."""

    def __init__(self, work_dir: str, name: str) -> None:
        self._work_dir, self._name = work_dir, name
        self._saved = False

    def load(self, row_groups: npt.NDArray[np.int64], stored: npt.NDArray[np.int64]) -> pa.Table:
        """Load what an earlier run counted of these row groups."""
        table = load_counts(self._work_dir, self._name, stored)
        if table is None:
            return counts_table(np.zeros(0, np.int64), [np.zeros(0)] * (len(COLUMNS) - 1))
        self._saved = True
        return table.filter(pa.array(np.isin(table["row_group"].to_numpy(), row_groups)))

    def save(self, tables: list[pa.Table]) -> pa.Table:
        """Save these counts and return them as one table."""
        table = pa.concat_tables(tables).sort_by("row_group").combine_chunks()
        content_store.create(self._work_dir, self._name, [table])
        self._saved = True
        return table

    def forget(self) -> None:
        """Remove the stored counts: the full count is saved, or never will be."""
        if self._saved:
            content_store.remove(self._work_dir, self._name)
