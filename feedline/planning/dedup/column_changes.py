"""Count how often columns repeat the row above them, and find columns that change in the same rows.

Runs in: the process of `feedline plan`. Pure. Groups are joined, two at a time, as long as that makes a batch smaller:
docs/decisions/0032-groups-of-unique-rows.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.warehouse.parquet.repeated_rows import run_starts_at

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

INVERSE_BYTES = 4  # of a group's inverse, per row
# Columns that change in more rows than this are in no proposal: a group of them saves less than comparing it takes.
_MOST_CHANGES = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChanges:
    """Where each column of some rows changes.

    sessions: bool [rows], where a run of rows begins that stay together: of `shuffle.by`, or of a file or a block.
    changes: by column, bool [rows], where it differs from the row above; false where a session begins.
    """

    sessions: Bools
    changes: Mapping[str, Bools]

    @property
    def rows(self) -> int:
        return len(self.sessions)

    @property
    def session_rows(self) -> float:
        """S: the mean number of rows of a session."""
        return self.rows / int(np.count_nonzero(self.sessions))

    def first_rows(self, columns: Sequence[str]) -> Bools:
        """bool [rows]: where a run begins whose rows are equal in these columns."""
        found = self.sessions.copy()
        for name in columns:
            found |= self.changes[name]
        return found

    def unique_rows(self, columns: Sequence[str]) -> int:
        """The runs of rows that are equal in these columns."""
        return int(np.count_nonzero(self.first_rows(columns)))

    def factor(self, columns: Sequence[str]) -> float:
        """Rows by unique rows."""
        return self.rows / self.unique_rows(columns)

    def repeated(self, column: str) -> float:
        """d: the share of rows, without the first of each session, in which the column repeats the row above."""
        others = self.rows - int(np.count_nonzero(self.sessions))
        return 1 - int(np.count_nonzero(self.changes[column])) / others if others else 0.0


def factor_of(session_rows: float, repeated: float) -> float:
    """The factor of a column in sessions of mean S rows that repeats the row above with probability d (RecD)."""
    # sessions of 10 rows, in which 9 of 10 rows repeat: 1 + 9 * 0.1 unique rows of 10 -> 5.3
    return session_rows / (1 + (session_rows - 1) * (1 - repeated))


def find_changes(
    frames: Sequence[tuple[pl.DataFrame, Sequence[int]]], columns: Mapping[str, Sequence[str]], by: str | None
) -> ColumnChanges:
    """Where columns change in frames of rows, each with the rows at which a piece of it begins. columns: for each
    column the columns of the frames that hold it, or parts of it. by: the column of sessions."""
    sessions = [run_starts_at(frame, () if by is None else (by,), borders) for frame, borders in frames]
    changes = {}
    for name, parts in columns.items():
        found = [run_starts_at(frame, parts, ()) for frame, _ in frames]
        changes[name] = np.concatenate(found) & ~np.concatenate(sessions)
    return ColumnChanges(sessions=np.concatenate(sessions), changes=changes)


def without_worst(
    measured: ColumnChanges, columns: Sequence[str], marks: Sequence[str] = ()
) -> tuple[str, float] | None:
    """The column without which the factor of the others is highest, and that factor; None for a single column. marks:
    what is compared besides, and cannot be left out."""
    if len(columns) < 2:
        return None
    factors = {name: measured.factor([other for other in (*columns, *marks) if other != name]) for name in columns}
    worst = max(factors, key=factors.__getitem__)
    return worst, factors[worst]


def propose_groups(measured: ColumnChanges, row_bytes: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Groups of columns that save bytes, those that save most first, each in the order of `row_bytes`. row_bytes: by
    column the bytes per row of the features that derive from it."""
    names = [name for name in row_bytes if measured.unique_rows([name]) <= _MOST_CHANGES * measured.rows]
    if not names:
        return []
    groups = _join_groups(
        [measured.first_rows([name]) for name in names], np.array([row_bytes[each] for each in names])
    )
    found = [tuple(names[index] for index in sorted(group)) for group in groups]
    saved = {columns: _bytes_saved(measured, columns, row_bytes) for columns in found}
    return sorted((columns for columns in found if saved[columns] > 0), key=lambda columns: -saved[columns])


def _bytes_saved(measured: ColumnChanges, columns: Sequence[str], row_bytes: Mapping[str, float]) -> float:
    return sum(row_bytes[name] for name in columns) * (1 - 1 / measured.factor(columns)) - INVERSE_BYTES


def _join_groups(first_rows: Sequence[Bools], nbytes: Floats) -> list[list[int]]:
    """Sets of columns, joined two at a time while that saves bytes. first_rows: per column, bool [rows], where its runs
    begin. nbytes: float64 [columns], of a row."""
    rows = len(first_rows[0])
    bits = [np.packbits(each, bitorder="little") for each in first_rows]
    words = np.stack([np.pad(each, (0, -len(each) % 8)).view(np.uint64) for each in bits])
    members = [[index] for index in range(len(words))]
    nbytes, unique = nbytes.copy(), _ones(words)
    joined = np.stack([_ones(words | each) for each in words])  # the unique rows of two groups as one
    while True:
        costs = nbytes[:, None] * (joined - unique[:, None]) + nbytes * (joined - unique)
        gains = INVERSE_BYTES - costs / rows
        gains[~np.outer(unique > 0, unique > 0) | np.eye(len(words), dtype=np.bool_)] = -np.inf
        first, second = sorted(map(int, np.unravel_index(gains.argmax(), gains.shape)))
        if gains[first, second] < 0:
            return [group for group in members if group]
        members[first] += members[second]
        members[second] = []
        words[first] |= words[second]
        nbytes[first] += nbytes[second]
        unique[first], unique[second] = joined[first, second], 0  # every group has a unique row, but for joined ones
        joined[first] = joined[:, first] = _ones(words | words[first])


def _ones(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """int64 [groups]: the bits that are set in each row of words."""
    counts: NDArray[np.int64] = np.bitwise_count(words).sum(axis=1, dtype=np.int64)
    return counts
