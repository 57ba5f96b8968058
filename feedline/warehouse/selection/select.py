"""Select the rows to read of each row group, reading as little as possible to count them.

Runs where a plan is made. Partition values and statistics judge every row group first (`pruning`). Rows sampled by
position are counted by arithmetic. For the rest the counting pass (`counting`) checks bloom filters, then reads the
columns of the filter and of the sample, in tasks that any `map` may run, in waves (`waves`). Counts are stored under
`work_dir/counts`, named by snapshot, filter and sample; a damaged or inconsistent file is ignored.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from feedline.errors import DataError, StateError
from feedline.expressions import BoundExpression, bind_where
from feedline.progress import report_progress
from feedline.warehouse.bad_files import BadFilesFoundError
from feedline.warehouse.parquet.bloom import RowGroupFilters
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, fragment_at, gather
from feedline.warehouse.reading.read import ReadRequest, batches
from feedline.warehouse.reading.row_filter import SAMPLED, UNSAMPLED, WHERE_TRUE
from feedline.warehouse.reading.sample import BoundSample, Sample, bind_sample, sampled_rows
from feedline.warehouse.selection.column_bounds import statistics_of
from feedline.warehouse.selection.exclusion import Exclusion, join_bits
from feedline.warehouse.selection.pruning import ALL, NONE, Pruning, prune
from feedline.warehouse.selection.pruning_report import (
    BLOOM,
    COUNTED,
    PARTITION,
    SAMPLED_BY_POSITION,
    STATISTICS,
    WHOLE,
    SelectionReport,
    Verdicts,
    report_of,
)
from feedline.warehouse.selection.waves import (
    COLUMNS,
    FIRST_TASKS,
    checked_counts,
    counts_of,
    counts_table,
    next_tasks,
)
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.snapshot.snapshot import Snapshot, retimed_text
from feedline.warehouse.snapshot.splits import plan_splits
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.content_store import KeptWaves
from feedline.warehouse.storage.file_identity import known_files
from feedline.warehouse.storage.locations import absolute, locate
from feedline.warehouse.storage.parallel import Map, in_threads

# --------------------------------------------------------------------------------------------------------------------
# Carry the kept counts of an earlier snapshot over to a later one of the same table, for files that have not changed.
# Pure; runs where a plan is made. A table that is followed grows by a few files; only these are counted.

logger = logging.getLogger(__name__)


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


# --------------------------------------------------------------------------------------------------------------------
# Count the rows of a fragment's row groups that filter and sample keep, reading as little as possible. If no column
# is needed (`RowFilter.parts` is empty), rows are counted by arithmetic. Otherwise bloom filters are read first, if
# they are smaller than the columns; row groups that they exclude are not read. For all others the columns of the
# filter and of the sample are read.

# Of narrow rows, with their codes in the second cache: a chunk costs 0.2 ms however few rows it has.
_CHUNK_ROWS = 131_072


class Count(NamedTuple):
    """The count of one row group: kept rows, and rows that `where` keeps before sampling.

    `by_bloom`: bloom filters excluded every row, and none was read. `bloom_bytes`: bytes of bloom filters read.
    """

    rows: int
    matched: int
    by_bloom: bool = False
    bloom_bytes: int = 0


def count_fragment(
    fragment: Fragment, where: BoundExpression | None, schema: pa.Schema, *, sample: BoundSample | None = None
) -> tuple[Count, ...]:
    """Count each row group of a fragment whose row groups are all UNCOUNTED. Raises what reading raises."""
    request = ReadRequest((), schema, where, sample=sample, chunk_rows=_CHUNK_ROWS)
    row_filter = request.row_filter()
    unread: dict[int, Count] = {}
    bloom_bytes = [0] * len(fragment.row_groups)

    def skip(file: OpenFile) -> Collection[int]:
        partition = dict(fragment.partition)
        filters = RowGroupFilters(file.metadata, file.schema, file.stored, partition, file.read_at, fragment.bytes)
        for position, row_group in enumerate(fragment.row_groups):
            conditions = row_filter.for_row_group(proofs=fragment.proofs_of(position), whole=False)
            if conditions.where is not None:
                worth = _stored_bytes(file, row_group, conditions.where.columns)
                excluded, bloom_bytes[position] = filters.refute(conditions.where.predicate, row_group, worth=worth)
                if excluded:
                    unread[position] = Count(0, 0, True, bloom_bytes[position])
            elif not conditions.parts:
                unread[position] = _by_arithmetic(file, fragment, row_group, conditions.sample)
        return unread

    kept, matched = [0] * len(fragment.row_groups), [0] * len(fragment.row_groups)
    for batch in batches(fragment, request, kept, skip):
        result = batch.row_filter.apply(batch.data, fragment.path, batch.first_row)
        stays = result.stays
        kept[batch.position] += batch.data.num_rows if stays is None else int(np.count_nonzero(stays))
        matched[batch.position] += result.matched
    return tuple(
        unread.get(position) or Count(kept[position], matched[position], False, bloom_bytes[position])
        for position in range(len(fragment.row_groups))
    )


def _stored_bytes(file: OpenFile, row_group: int, columns: Iterable[str]) -> int:
    """Return the compressed bytes of these columns, which a bloom filter may save."""
    chunks = file.metadata.row_group(row_group)
    leaves = [leaf for name in columns for leaf in file.stored.get(name, range(0))]
    return sum(chunks.column(leaf).total_compressed_size for leaf in leaves)


def _by_arithmetic(file: OpenFile, fragment: Fragment, row_group: int, sample: BoundSample | None) -> Count:
    first, stop = file.row_starts()[row_group : row_group + 2]
    rows = stop - first
    return Count(rows if sample is None else sampled_rows(sample.sample, fragment.path, first, rows), rows)


# --------------------------------------------------------------------------------------------------------------------

_COUNTS_VERSION = 2
_PHASE = "counting"
_TASK_ROWS = 2_000_000  # rows that one counting task reads: tenths of a second
_TASK_FILES = 32  # files that one counting task opens

_now_s = time.monotonic

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """The rows to read of every row group, and what decided them.

    `rows`: int64, kept by filter and sample, without those that the exclusion leaves out; `matched`: int64, kept by the
    filter alone (both may be UNCOUNTED). `report`: of filter and sample.
    """

    rows: Int64s
    matched: Int64s
    verdicts: Verdicts
    report: SelectionReport
    exclusion: Exclusion | None = None

    @property
    def proofs(self) -> npt.NDArray[np.uint8]:
        """What statistics prove per row group, as bits of `row_filter`."""
        return self.verdicts.proofs

    @property
    def excludes(self) -> Exclusion | None:
        """The exclusion, if it leaves out any row."""
        return self.exclusion if self.exclusion is not None and self.exclusion.rows else None

    @property
    def kept_rows(self) -> Int64s:
        """int64 [row groups]: the rows that filter and sample keep, excluded ones included (or UNCOUNTED)."""
        if self.exclusion is None:
            return self.rows
        kept, counts = self.rows.copy(), self.exclusion.counts
        kept[np.fromiter(counts, np.int64, len(counts))] += np.fromiter(counts.values(), np.int64, len(counts))
        return kept

    def excluded_mask(self, row_group: int) -> npt.NDArray[np.bool_]:
        """bool [the row group's kept rows]: which of them are excluded."""
        if self.exclusion is None or row_group not in self.exclusion.excluded:
            return np.zeros(int(self.rows[row_group]), np.bool_)
        return self.exclusion.mask(row_group, self.exclusion.excluded[row_group][0])

    def excluded_bits(self, row_group: int) -> bytes | None:
        """The same as bits; None if none are."""
        return None if self.exclusion is None else self.exclusion.bits(row_group)

    def without(self, exclusion: Exclusion | None) -> Selection:
        """The selection without the rows of this exclusion, whichever it had (None: with all of them). Raises
        StateError where they were found among other rows."""
        rows = self.kept_rows.copy()
        if exclusion is None:
            return replace(self, rows=rows, exclusion=None)
        for row_group, (kept, _) in exclusion.excluded.items():
            if row_group >= len(rows) or int(rows[row_group]) not in (kept, UNCOUNTED):
                raise StateError(
                    f"the exclusion {exclusion.id} belongs to another filter or snapshot: got {kept} kept rows of row "
                    f"group {row_group}, expected {rows[row_group] if row_group < len(rows) else 'no such row group'}"
                )
            rows[row_group] = kept - exclusion.counts[row_group]
        return replace(self, rows=rows, exclusion=exclusion)

    def fragment(
        self, snapshot: Snapshot, row_groups: Int64s, *, more_excluded: Callable[[int], bytes | None] | None = None
    ) -> Fragment:
        """The fragment that reads the selected rows of some row groups (indices in the table) of one file, without
        those of which no row is selected. more_excluded: the bits of further rows of a row group to leave out."""
        file = int(snapshot.file_of_row_group[row_groups[0]])
        row_groups = row_groups[self.rows[row_groups] != 0]
        groups, expected = row_groups.tolist(), self.rows[row_groups]
        if self.exclusion is not None:
            expected = expected + np.array([self.exclusion.counts.get(group, 0) for group in groups], np.int64)
        fragment = fragment_at(snapshot, file, row_groups, expected, self.proofs)
        if self.exclusion is None and more_excluded is None:
            return fragment
        more = more_excluded or (lambda group: None)
        bits = [join_bits((self.excluded_bits(group), more(group))) for group in groups]
        return replace(fragment, excluded=tuple(bits)) if any(each is not None for each in bits) else fragment


@dataclass(frozen=True, slots=True, kw_only=True)
class CountTask:
    """Row groups to count: a small picklable value, with filter and sample unbound."""

    fragments: tuple[Fragment, ...]
    where: str | None
    sample: Sample | None
    schema: pa.Schema


def select_rows(
    snapshot: Snapshot,
    where: BoundExpression | None,
    *,
    sample: BoundSample | None = None,
    work_dir: str,
    map: Map | None = None,
    earlier: Callable[[], Snapshot | None] = lambda: None,
) -> Selection:
    """Count the rows that filter and sample keep of each row group, reading as little as possible.

    earlier: loads an older snapshot, whose kept counts hold for files
    that have not changed. Raises what reading raises: TableChangedError, CorruptFileError, TableError.
    """
    verdicts = _verdicts(snapshot, where, sample)
    rows, matched = _rows_by_verdict(snapshot, verdicts)
    open_groups = np.flatnonzero((verdicts.fate == COUNTED) | (verdicts.fate == SAMPLED_BY_POSITION))
    cached, bloom_bytes = False, 0
    if len(open_groups):
        name = _counts_name(snapshot, where, sample)
        table = _load_counts(work_dir, name, snapshot, open_groups)
        cached = table is not None
        if table is None:
            lock = f"runs/{name.replace('/', '-')}"
            with content_store.lock_file(locate(absolute(work_dir)), lock):  # one rank of a start counts for all
                table = _load_counts(work_dir, name, snapshot, open_groups)
                cached = table is not None
                if table is None:
                    request = _CountRequest(
                        snapshot=snapshot,
                        where=where,
                        sample=sample,
                        verdicts=verdicts,
                        map=map or in_threads,
                        kept=KeptWaves(work_dir),
                        name=name.replace(".arrow", ".begun.arrow"),
                    )
                    before = earlier()
                    known = None if before is None else _earlier_counts(request, before, open_groups)
                    table = _count(request, open_groups, known)
                    content_store.create(work_dir, name, [table])
                    request.kept.forget()
        rows[open_groups] = table["rows"].to_numpy()
        matched[open_groups] = table["matched"].to_numpy()
        verdicts.fate[open_groups[table["by_bloom"].to_numpy()]] = BLOOM
        bloom_bytes = int(table["bloom_bytes"].to_numpy().sum())
    report = report_of(
        snapshot, where, sample, verdicts, rows=rows, matched=matched, bloom_bytes=bloom_bytes, cached=cached
    )
    return Selection(rows=rows, matched=matched, verdicts=verdicts, report=report)


def screen_rows(snapshot: Snapshot, where: BoundExpression | None, *, sample: BoundSample | None = None) -> Selection:
    """As `select_rows`, but reading nothing: row groups that need a count are UNCOUNTED."""
    verdicts = _verdicts(snapshot, where, sample)
    rows, matched = _rows_by_verdict(snapshot, verdicts)
    if sample is not None:
        sampled = np.flatnonzero(verdicts.fate == SAMPLED_BY_POSITION)
        rows[sampled] = _sample_counts(snapshot, sample.sample, sampled)
        matched[sampled] = snapshot.rows_per_row_group[sampled]
    report = report_of(snapshot, where, sample, verdicts, rows=rows, matched=matched, bloom_bytes=0, cached=False)
    return Selection(rows=rows, matched=matched, verdicts=verdicts, report=report)


def count_task(task: CountTask) -> tuple[Count, ...]:
    """Run one task: count each row group of each fragment."""
    where, sample = bind_once(task.where, task.sample, task.schema)
    return tuple(
        count for fragment in task.fragments for count in count_fragment(fragment, where, task.schema, sample=sample)
    )


@lru_cache(maxsize=8)
def bind_once(
    where: str | None, sample: Sample | None, schema: pa.Schema
) -> tuple[BoundExpression | None, BoundSample | None]:
    """Bind the filter and the sample of a task, once per process."""
    return None if where is None else bind_where(where, schema), None if sample is None else bind_sample(sample, schema)


def _verdicts(snapshot: Snapshot, where: BoundExpression | None, sample: BoundSample | None) -> Verdicts:
    """Judge row groups by partition values and statistics, before anything is read."""
    kept = _pruning(snapshot, where)
    proofs = np.where(kept.outcome == ALL, WHERE_TRUE, 0).astype(np.uint8)
    fate = np.full(len(proofs), COUNTED)
    fate[kept.outcome == ALL] = WHOLE
    fate[kept.outcome == NONE] = STATISTICS
    fate[kept.by_partition] = PARTITION
    if sample is None:
        return Verdicts(fate=fate, proofs=proofs)
    if sample.sample.fraction == 1:
        proofs |= UNSAMPLED  # every row stays, with weight 1
        return Verdicts(fate=fate, proofs=proofs)
    sampled = _pruning(snapshot, sample.where).outcome
    proofs |= np.where(sampled == ALL, SAMPLED, np.where(sampled == NONE, UNSAMPLED, 0)).astype(np.uint8)
    by_position = SAMPLED_BY_POSITION if not sample.sample.key else COUNTED
    whole = fate == WHOLE
    fate[whole & (sampled == ALL)] = by_position
    fate[whole & (sampled != ALL) & (sampled != NONE)] = COUNTED
    return Verdicts(fate=fate, proofs=proofs)


def _pruning(snapshot: Snapshot, where: BoundExpression | None) -> Pruning:
    rows = snapshot.rows_per_row_group
    if where is None:
        return Pruning(outcome=np.where(rows > 0, ALL, NONE), by_partition=np.zeros(len(rows), np.bool_))
    return prune(where.predicate, statistics_of(snapshot, where.columns))


def _rows_by_verdict(snapshot: Snapshot, verdicts: Verdicts) -> tuple[Int64s, Int64s]:
    """Return rows and matched rows, UNCOUNTED where they have to be read or computed."""
    rows = np.full(len(verdicts.fate), UNCOUNTED, np.int64)
    rows[(verdicts.fate == PARTITION) | (verdicts.fate == STATISTICS)] = 0
    whole = verdicts.fate == WHOLE
    rows[whole] = snapshot.rows_per_row_group[whole]
    return rows, rows.copy()


def _sample_counts(snapshot: Snapshot, sample: Sample, row_groups: Int64s) -> Int64s:
    """Return the rows that the sample keeps of row groups whose rows are all sampled by position."""
    stored = snapshot.rows_per_row_group
    before = np.cumsum(stored) - stored
    file = snapshot.file_of_row_group
    first_row = before - before[np.searchsorted(file, file)]
    paths = snapshot.files["path"]

    def count(row_group: int) -> int:
        path = paths[int(file[row_group])].as_py()
        return sampled_rows(sample, path, int(first_row[row_group]), int(stored[row_group]))

    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="feedline-sample") as pool:
        return np.fromiter(pool.map(count, row_groups.tolist()), np.int64, len(row_groups))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _CountRequest:
    """What to count: a snapshot, by filter and sample, with the map that runs the tasks. name: of the kept counts."""

    snapshot: Snapshot
    where: BoundExpression | None
    sample: BoundSample | None
    verdicts: Verdicts
    map: Map
    kept: KeptWaves
    name: str


def _earlier_counts(request: _CountRequest, before: Snapshot, row_groups: Int64s) -> pa.Table | None:
    """The kept counts of an earlier snapshot, for the row groups of files that have not changed since; None if there
    are none."""
    where, sample = request.where, request.sample
    if not same_types(before, request.snapshot, _deciding_columns(where, sample)):
        return None
    name = _counts_name(before, where, sample)
    table = checked_counts(request.kept.load(name), before.rows_per_row_group)
    if table is None:
        return None
    return carried_counts(table, row_groups_before(before, request.snapshot), row_groups)


def _count(request: _CountRequest, row_groups: Int64s, known: pa.Table | None = None) -> pa.Table:
    if known is not None and len(known):
        row_groups = np.setdiff1d(row_groups, known["row_group"].to_numpy())
        rest = [_count(request, row_groups)] if len(row_groups) else []
        return pa.concat_tables([known, *rest]).sort_by("row_group").combine_chunks()
    by_position = request.verdicts.fate[row_groups] == SAMPLED_BY_POSITION
    found = []
    if request.sample is not None and by_position.any():
        rows = _sample_counts(request.snapshot, request.sample.sample, row_groups[by_position])
        stored, none = request.snapshot.rows_per_row_group[row_groups[by_position]], np.zeros(len(rows), np.int64)
        found.append(counts_table(row_groups[by_position], [rows, stored, none, none]))
    if not by_position.all():
        found.append(_read(request, row_groups[~by_position]))
    return pa.concat_tables(found).sort_by("row_group").combine_chunks()


def _read(request: _CountRequest, row_groups: Int64s) -> pa.Table:
    """Count row groups by reading them, wave by wave, except those that an interrupted run counted.

    Raises BadFilesFoundError, with all bad files, after everything else was counted.
    """
    stored = request.snapshot.rows_per_row_group
    found = counts_of(request.kept.load(request.name), row_groups, stored)
    uncounted = np.setdiff1d(row_groups, found["row_group"].to_numpy())
    all_rows, ends, first, size = int(stored[row_groups].sum()), np.cumsum(stored[uncounted]), 0, FIRST_TASKS
    rows_before = all_rows - int(stored[uncounted].sum())
    report_progress(_PHASE, rows_before, all_rows, "rows")
    bad: dict[str, str] = {}
    tasks = _tasks(request, uncounted) if len(uncounted) else iter(())
    while wave := list(itertools.islice(tasks, size)):
        groups = uncounted[
            first : first + sum(len(fragment.row_groups) for task in wave for fragment in task.fragments)
        ]
        began_s, counts = _now_s(), list[Count]()
        try:
            for of_task in request.map(count_task, wave):
                counts += of_task
                report_progress(
                    _PHASE, rows_before + int(ends[min(first + len(counts), len(ends)) - 1]), all_rows, "rows"
                )
        except BadFilesFoundError as error:
            bad |= error.reasons
            continue
        finally:
            first += len(groups)
        if len(counts) != len(groups):
            raise DataError(f"counting pass is incomplete: got {len(counts)} counts, expected {len(groups)}")
        counted = counts_table(groups, [np.array(values) for values in zip(*counts, strict=True)])
        size = next_tasks(len(wave), _now_s() - began_s)
        found = pa.concat_tables([found, counted]).sort_by("row_group").combine_chunks()
        if first < len(uncounted):
            request.kept.save(request.name, [found])
    if bad:
        request.kept.forget()
        raise BadFilesFoundError(bad)
    return found


def _tasks(request: _CountRequest, row_groups: Int64s) -> Iterator[CountTask]:
    """Yield tasks of about `_TASK_ROWS` rows: fragments in the table's order, file by file."""
    snapshot, where, sample, verdicts = request.snapshot, request.where, request.sample, request.verdicts
    schema = pa.schema([snapshot.schema.field(name) for name in sorted(_deciding_columns(where, sample))])
    where_text, unbound_sample = where.text if where else None, sample.sample if sample else None

    def fragment(part: Int64s) -> Fragment:
        file = int(snapshot.file_of_row_group[part[0]])
        return fragment_at(snapshot, file, part, np.full(len(part), UNCOUNTED), verdicts.proofs)

    stored = snapshot.rows_per_row_group
    fragments = ((fragment(part), int(stored[part].sum())) for part in _runs(snapshot, row_groups))
    for group in gather(fragments, _TASK_ROWS, _TASK_FILES):
        yield CountTask(fragments=group, where=where_text, sample=unbound_sample, schema=schema)


def _deciding_columns(where: BoundExpression | None, sample: BoundSample | None) -> frozenset[str]:
    """The columns of filter and sample."""
    return (where.columns if where else frozenset()) | (sample.columns if sample else frozenset())


def _runs(snapshot: Snapshot, row_groups: Int64s) -> Iterator[Int64s]:
    """Split row groups at file borders, and where they reach `_TASK_ROWS`."""
    file = snapshot.file_of_row_group[row_groups]
    total = np.cumsum(snapshot.rows_per_row_group[row_groups])
    part = total // _TASK_ROWS
    borders = np.flatnonzero((file[1:] != file[:-1]) | (part[1:] != part[:-1])) + 1
    yield from np.split(row_groups, borders)


def _counts_name(snapshot: Snapshot, where: BoundExpression | None, sample: BoundSample | None) -> str:
    """Return a name from all that the counts depend on, including the version of Polars that evaluates the filter."""
    request = None if sample is None else sample.sample.to_json()
    parts = [_COUNTS_VERSION, snapshot.id, where.text if where else None, request, pl.__version__]
    return f"counts/{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}.arrow"


def _load_counts(work_dir: str, name: str, snapshot: Snapshot, row_groups: Int64s) -> pa.Table | None:
    table = checked_counts(KeptWaves(work_dir).load(name), snapshot.rows_per_row_group)
    if table is None or not np.array_equal(table["row_group"].to_numpy(), row_groups):
        return None  # damaged, or written by a version with different pruning
    return table


# --------------------------------------------------------------------------------------------------------------------
# Divide a row selection into fragments, one per split of the rows that are, or may be, kept.

SPLIT_ROWS = 65_536


def plan_fragments(snapshot: Snapshot, selection: Selection, split_rows: int) -> list[Fragment]:
    """Return the fragments in the table's order. Uncounted row groups are split by their stored rows."""
    planned = np.where(selection.rows == UNCOUNTED, snapshot.rows_per_row_group, selection.rows)
    splits = plan_splits(planned, snapshot.file_of_row_group, split_rows)
    groups = (np.arange(*bounds) for bounds in zip(splits.first_row_group, splits.stop_row_group, strict=True))
    return [selection.fragment(snapshot, each) for each in groups]
