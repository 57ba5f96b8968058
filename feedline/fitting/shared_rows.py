"""Divide the rows that several tables of a fit read among them, so that each is learnt from once.

Runs in: the process that fits. Pure, but for the real paths of files. Tables share a row group if they read the same
file. One table comes first in it: one that takes it whole, else the one that is named first; the others observe the
rows that no table before them reads (`observe`), and do not read a row group that a table before them takes whole. So
a fit has the union of the selected rows, whatever their filters, samples and exclusions are and how they are written.
Tables whose features differ divide rows only for the fits that learn the same values from both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from feedline.fitting.fit_table import FitTable
from feedline.fitting.fit_tasks import fit_tasks
from feedline.fitting.observe import FitPiece
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.snapshot.same_files import same_files
from feedline.warehouse.snapshot.snapshot import Snapshot

Int64s = npt.NDArray[np.int64]


class SharedRows:
    """The tables of a fit with their selections, and which row groups they share."""

    def __init__(self, tables: Sequence[FitTable], selections: Sequence[Selection]) -> None:
        self._tables = tables
        self._selections = selections
        self._whole = [
            selection.rows == table.snapshot.rows_per_row_group
            for table, selection in zip(tables, selections, strict=True)
        ]
        self._earlier = [self._earlier_of(index) for index in range(len(tables))]

    def selection(self, index: int, alike: Sequence[frozenset[int]]) -> Selection:
        """What a table reads for a pass: its selection, without row groups that a table before it takes whole. alike:
        for each fit of the pass, the tables of which it learns the same values."""
        selection, earlier = self._selections[index], self._earlier[index]
        rows = selection.rows.copy()
        for other in earlier.keys() & frozenset.intersection(*alike):
            there = earlier[other]
            rows[(there >= 0) & self._whole[other][np.maximum(there, 0)]] = 0
        return replace(selection, rows=rows)

    def tasks(self, index: int, alike: Sequence[frozenset[int]], threads: int) -> list[tuple[FitPiece, ...]]:
        """The tasks of a pass over a table."""
        snapshot = self._tables[index].snapshot
        tasks = fit_tasks(snapshot, self.selection(index, alike), threads)
        others = sorted(self._earlier[index].keys() & frozenset[int]().union(*alike))
        files = {path: file for file, path in enumerate(snapshot.files["path"].to_pylist())} if others else {}

        def piece(fragment: Fragment) -> FitPiece:
            if not others:
                return FitPiece(fragment)
            own = snapshot.row_groups_of(files[fragment.path])[list(fragment.row_groups)]
            earlier = [(other, self._read(other, self._earlier[index][other][own])) for other in others]
            return FitPiece(fragment, tuple((other, read) for other, read in earlier if read is not None))

        return [tuple(map(piece, fragments)) for fragments in tasks]

    def _read(self, index: int, row_groups: Int64s) -> Fragment | None:
        """The fragment of some row groups of one file in another table; below 0 there is none."""
        row_groups = row_groups[row_groups >= 0]
        return self._selections[index].fragment(self._tables[index].snapshot, row_groups) if len(row_groups) else None

    def _earlier_of(self, index: int) -> dict[int, Int64s]:
        """By table: int64 [row groups], the row group that it reads before this table does; -1 where it does not."""
        own, found = self._tables[index].snapshot, dict[int, Int64s]()
        for other, table in enumerate(self._tables):
            if other == index:
                continue
            there = _same_row_groups(table.snapshot, own)
            place = np.maximum(there, 0)
            whole, mine = self._whole[other][place], self._whole[index]
            first = (whole & ~mine) | ((whole == mine) & (other < index))
            there[~(first & (self._selections[other].rows[place] != 0))] = -1
            if (there >= 0).any():
                found[other] = there
        return found


def _same_row_groups(one: Snapshot, other: Snapshot) -> Int64s:
    """int64 [row groups of `other`]: the index of the same row group in `one`, -1 without one."""
    file = same_files(one, other)[other.file_of_row_group]
    if not len(one.files) or not (file >= 0).any():
        return np.full(len(file), -1, np.int64)
    starts = np.searchsorted(one.file_of_row_group, np.arange(len(one.files)))
    return np.where(file >= 0, starts[file] + other.row_group_in_file, -1).astype(np.int64)
