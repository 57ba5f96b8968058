"""Find the rows of a table that a condition means, reading as little as possible.

Runs in: the threads of `delete`. Partition values and statistics judge every row group first (`selection.pruning`); one
that they prove to hold such rows alone is not read. Of the others bloom filters are asked, and then the columns of the
condition are read.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import numpy as np
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.progress import track
from feedline.warehouse.delete.condition import Condition
from feedline.warehouse.delete.rewrite import FileRows
from feedline.warehouse.parquet.bloom import RowGroupFilters
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, fragment_at, pack_mask
from feedline.warehouse.reading.read import ReadRequest, batches
from feedline.warehouse.reading.sample import Bools
from feedline.warehouse.selection.column_bounds import statistics_of
from feedline.warehouse.selection.pruning import ALL, NONE, prune
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map

_CHUNK_ROWS = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRows:
    """The rows that a condition means. files: those that hold any. by_partition, by_statistics, by_bloom, read: how
    many row groups were decided by these, the last by reading columns; whole: by statistics, all of whose rows are
    meant. row_groups: how many hold such rows. held_bytes: what these weigh."""

    files: tuple[FileRows, ...]
    all_files: int
    all_row_groups: int
    by_partition: int
    by_statistics: int
    by_bloom: int
    read: int
    whole: int
    row_groups: int
    held_bytes: int

    @property
    def rows(self) -> int:
        return sum(file.count for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileTask:
    """Row groups of a file to judge. fragment: all of them. open: those to read. whole: those that are meant whole."""

    fragment: Fragment
    open: Fragment
    whole: tuple[int, ...]
    rows: tuple[int, ...]


def find_rows(snapshot: Snapshot, condition: Condition, *, map: Map) -> FoundRows:
    """Find the rows in all files. Raises what reading raises."""
    pruned = prune(condition.predicate, statistics_of(snapshot, condition.columns))
    outcome, file_of = pruned.outcome, snapshot.file_of_row_group
    tasks = [_task(snapshot, file, outcome) for file in np.unique(file_of[outcome != NONE]).tolist()]
    rows = [sum(task.rows) for task in tasks]
    request = ReadRequest(condition.columns, snapshot.schema, chunk_rows=_CHUNK_ROWS)
    find = partial(_find_in_file, condition=condition, request=request)
    files: list[FileRows] = []
    by_bloom = 0
    for file, skipped in track(map(find, tasks), "finding", rows, "rows"):
        by_bloom += skipped
        if file.deleted:
            files.append(file)
    paths = {snapshot.path_of(file): file for file in np.unique(file_of).tolist()} if files else {}
    held = [snapshot.row_groups_of(paths[file.fragment.path])[list(file.deleted)] for file in files]
    weights = snapshot.row_groups["bytes"].to_numpy()
    by_partition, whole = int(pruned.by_partition.sum()), int((outcome == ALL).sum())
    return FoundRows(
        files=tuple(files),
        all_files=len(snapshot.files),
        all_row_groups=len(outcome),
        by_partition=by_partition,
        by_statistics=int((outcome == NONE).sum()) - by_partition,
        by_bloom=by_bloom,
        read=len(outcome) - int((outcome == NONE).sum()) - whole - by_bloom,
        whole=whole,
        row_groups=sum(map(len, held)),
        held_bytes=sum(int(weights[groups].sum()) for groups in held),
    )


def _task(snapshot: Snapshot, file: int, outcome: NDArray[np.int8]) -> _FileTask:
    groups = snapshot.row_groups_of(file)
    uncounted = np.full(len(groups), UNCOUNTED)
    own = outcome[groups]
    return _FileTask(
        fragment=fragment_at(snapshot, file, groups, uncounted),
        open=fragment_at(snapshot, file, groups, np.where((own != NONE) & (own != ALL), UNCOUNTED, 0)),
        whole=tuple(np.flatnonzero(own == ALL).tolist()),
        rows=tuple(snapshot.rows_per_row_group[groups].tolist()),
    )


def _find_in_file(task: _FileTask, condition: Condition, request: ReadRequest) -> tuple[FileRows, int]:
    """The rows of a file, and how many row groups bloom filters excluded."""
    masks: dict[int, list[Bools]] = {}
    skipped: Collection[int] = ()

    def skip(file: OpenFile) -> Collection[int]:
        nonlocal skipped
        partition = dict(task.open.partition)
        filters = RowGroupFilters(file.metadata, file.schema, file.stored, partition, file.read_at, task.open.bytes)
        groups = enumerate(task.open.row_groups)
        skipped = [place for place, group in groups if filters.refute(condition.predicate, group)[0]]
        return skipped

    if task.open.row_groups:
        for batch in batches(task.open, request, [0] * len(task.open.row_groups), skip):
            masks.setdefault(task.open.row_groups[batch.position], []).append(condition.true_rows(batch.data))
    joined = {group: np.concatenate(parts) for group, parts in masks.items()}
    deleted = {group: pack_mask(mask) for group, mask in joined.items() if mask.any()}
    deleted |= {group: pack_mask(np.ones(task.rows[group], np.bool_)) for group in task.whole}
    return FileRows(fragment=task.fragment, rows=task.rows, deleted=deleted), len(skipped)
