"""Select the rows to read of each row group, reading as little as possible to count them.

Runs where a plan is made. Partition values and statistics judge every row group first (`pruning`). Rows sampled by
position are counted by arithmetic. For the rest the counting pass checks bloom filters, then reads the columns of the
filter and of the sample, in tasks that any `map` may run, in waves (`waves`). Counts are stored under
`work_dir/counts`, named by snapshot, filter and sample.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from feedline.dataclass import dataclass
from feedline.expressions import BoundExpression, bind_where
from feedline.warehouse.parquet.bloom import RowGroupFilters
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.reading.fragment import UNCOUNTED, Chunk, Fragment, fragment_at
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
from feedline.warehouse.selection.waves import Pass, measure_in_waves
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.snapshot.snapshot import Snapshot, retimed_text
from feedline.warehouse.snapshot.splits import plan_splits
from feedline.warehouse.storage.content_store import KeptWaves
from feedline.warehouse.storage.file_identity import known_files
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
    if not len(after.file_of_row_group) or not len(starts):
        return np.full(len(after.file_of_row_group), -1, np.int64)
    file = known.before[after.file_of_row_group]
    # file 0 is new and file 1 was 0, of two row groups each -> file [-1, -1, 0, 0] -> [-1, -1, 0, 1]
    return np.where(file >= 0, starts[file] + after.row_group_in_file, -1).astype(np.int64)


def carried_counts(request: Pass, before: Snapshot, counts: pa.Table | None, row_groups: Int64s) -> pa.Table:
    """The counts of an earlier snapshot, as those of some row groups of the later one."""
    if counts is None:
        return request.table()
    # row groups [0, 1, 2] that were [-1, 0, 1], of which 1 was counted -> the counts of row group 2
    index = pa.array(row_groups_before(before, request.snapshot)[row_groups])
    position = pc.index_in(index, value_set=contiguous(counts["row_group"]))
    carried = row_groups[position.is_valid().to_numpy(zero_copy_only=False)]
    return request.table(carried, request.values(counts.take(position.drop_null())))


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
                unread[position] = _by_arithmetic(file, fragment, position, conditions.sample)
        return unread

    counts, matched = [0] * len(fragment.row_groups), [0] * len(fragment.row_groups)
    for batch in batches(fragment, request, counts, skip):
        result = batch.row_filter.apply(batch.data, fragment.path, batch.first_row)
        stays = result.stays
        counts[batch.position] += batch.data.num_rows if stays is None else int(np.count_nonzero(stays))
        matched[batch.position] += result.matched
    return tuple(
        unread.get(position) or Count(counts[position], matched[position], False, bloom_bytes[position])
        for position in range(len(fragment.row_groups))
    )


def _stored_bytes(file: OpenFile, row_group: int, columns: Iterable[str]) -> int:
    chunks = file.metadata.row_group(row_group)
    leaves = [leaf for name in columns for leaf in file.stored.get(name, range(0))]
    return sum(chunks.column(leaf).total_compressed_size for leaf in leaves)


def _by_arithmetic(file: OpenFile, fragment: Fragment, position: int, sample: BoundSample | None) -> Count:
    first, stop = fragment.span_of(position, file)
    rows = stop - first
    return Count(rows if sample is None else sampled_rows(sample.sample, fragment.path, first, rows), rows)


# --------------------------------------------------------------------------------------------------------------------

_COUNTS_VERSION = 3

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """The rows to read of every row group, and what decided them.

    `rows`: int64 (or UNCOUNTED), kept by filter and sample, without those that the exclusion leaves out. `report`: of
    filter and sample.
    """

    rows: Int64s
    where: BoundExpression | None
    sample: BoundSample | None
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
        if exclusion is not None:
            exclusion.refuse_other_rows(rows, f"the exclusion {exclusion.id}")
            for row_group, (kept, _) in exclusion.excluded.items():
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
        return replace(fragment, excluded=tuple(bits)) if any(bits) else fragment


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

    earlier: loads an older snapshot, whose kept counts hold for files that have not changed. Raises what reading
    raises: TableChangedError, CorruptFileError, TableError.
    """
    verdicts = _verdicts(snapshot, where, sample)
    open_groups = np.flatnonzero((verdicts.fate == COUNTED) | (verdicts.fate == SAMPLED_BY_POSITION))
    cached, bloom_bytes = False, 0
    if len(open_groups):
        request = _counting(snapshot, where, sample, verdicts, work_dir, map or in_threads)

        def known(kept: KeptWaves) -> pa.Table:
            """The counts of files that an earlier snapshot has, and of row groups that are sampled by position."""
            before, counts = earlier(), request.table()
            if before is not None and same_types(before, snapshot, _deciding_columns(where, sample)):
                name = _counts_name(before, where, sample)
                counts = carried_counts(request, before, request.load(kept, name, before), open_groups)
            by_position = open_groups[verdicts.fate[open_groups] == SAMPLED_BY_POSITION]
            by_position = np.setdiff1d(by_position, counts["row_group"].to_numpy())
            if sample is None or not len(by_position):
                return counts
            sampled = _sample_counts(snapshot, sample.sample, by_position)
            stored, none = snapshot.rows_per_row_group[by_position], np.zeros_like(sampled)
            by_arithmetic = request.table(by_position, np.stack([sampled, stored, none, none], axis=1))
            return pa.concat_tables([counts, by_arithmetic])

        counts, cached = measure_in_waves(request, open_groups, known)
        verdicts.rows[open_groups], verdicts.matched[open_groups], by_bloom, bloom = counts.T
        verdicts.fate[open_groups[by_bloom > 0]] = BLOOM
        bloom_bytes = int(bloom.sum())
    report = report_of(snapshot, where, sample, verdicts, bloom_bytes=bloom_bytes, cached=cached)
    return Selection(rows=verdicts.rows, where=where, sample=sample, verdicts=verdicts, report=report)


def screen_rows(snapshot: Snapshot, where: BoundExpression | None, *, sample: BoundSample | None = None) -> Selection:
    """As `select_rows`, but reading nothing: row groups that need a count are UNCOUNTED."""
    verdicts = _verdicts(snapshot, where, sample)
    if sample is not None:
        sampled = np.flatnonzero(verdicts.fate == SAMPLED_BY_POSITION)
        verdicts.rows[sampled] = _sample_counts(snapshot, sample.sample, sampled)
        verdicts.matched[sampled] = snapshot.rows_per_row_group[sampled]
    report = report_of(snapshot, where, sample, verdicts)
    return Selection(rows=verdicts.rows, where=where, sample=sample, verdicts=verdicts, report=report)


def count_task(task: CountTask) -> tuple[Count, ...]:
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
    pruned = _pruning(snapshot, where)
    proofs = np.where(pruned.outcome == ALL, WHERE_TRUE, 0).astype(np.uint8)
    fate = np.full(len(proofs), COUNTED)
    fate[pruned.outcome == ALL] = WHOLE
    fate[pruned.outcome == NONE] = STATISTICS
    fate[pruned.by_partition] = PARTITION
    if sample is not None and sample.sample.fraction == 1:
        proofs |= UNSAMPLED  # every row stays, with weight 1
    elif sample is not None:
        sampled = _pruning(snapshot, sample.where).outcome
        proofs |= np.where(sampled == ALL, SAMPLED, np.where(sampled == NONE, UNSAMPLED, 0)).astype(np.uint8)
        whole = fate == WHOLE
        fate[whole & (sampled == ALL)] = COUNTED if sample.sample.key else SAMPLED_BY_POSITION
        fate[whole & (sampled != ALL) & (sampled != NONE)] = COUNTED
    rows = np.where(fate <= STATISTICS, 0, np.where(fate == WHOLE, snapshot.rows_per_row_group, UNCOUNTED))
    return Verdicts(fate=fate, proofs=proofs, rows=rows, matched=rows.copy())


def _pruning(snapshot: Snapshot, where: BoundExpression | None) -> Pruning:
    rows = snapshot.rows_per_row_group
    if where is None:
        return Pruning(outcome=np.where(rows > 0, ALL, NONE), by_partition=np.zeros(len(rows), np.bool_))
    return prune(where.predicate, statistics_of(snapshot, where.columns))


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

    return np.fromiter(in_threads(count, row_groups.tolist()), np.int64, len(row_groups))


def _counting(
    snapshot: Snapshot,
    where: BoundExpression | None,
    sample: BoundSample | None,
    verdicts: Verdicts,
    work_dir: str,
    map: Map,
) -> Pass:
    schema = pa.schema([snapshot.schema.field(name) for name in sorted(_deciding_columns(where, sample))])

    def fragment(groups: Int64s) -> Fragment:
        file = int(snapshot.file_of_row_group[groups[0]])
        return fragment_at(snapshot, file, groups, np.full(len(groups), UNCOUNTED), verdicts.proofs)

    return Pass(
        snapshot=snapshot,
        name=_counts_name(snapshot, where, sample),
        columns=Count._fields,
        phase="counting",
        fragment=fragment,
        task=CountTask(
            fragments=(),
            where=where.text if where else None,
            sample=sample.sample if sample else None,
            schema=schema,
        ),
        run=count_task,
        work_dir=work_dir,
        map=map,
    )


def _deciding_columns(where: BoundExpression | None, sample: BoundSample | None) -> frozenset[str]:
    return (where.columns if where else frozenset()) | (sample.columns if sample else frozenset())


def _counts_name(snapshot: Snapshot, where: BoundExpression | None, sample: BoundSample | None) -> str:
    """Return a name from all that the counts depend on, including the version of Polars that evaluates the filter."""
    request = None if sample is None else sample.sample.to_json()
    parts = [_COUNTS_VERSION, snapshot.id, where.text if where else None, request, pl.__version__]
    return f"counts/{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}.arrow"


# --------------------------------------------------------------------------------------------------------------------
# Divide a row selection into fragments, one per split of the rows that are, or may be, kept.

SPLIT_ROWS = 65_536


def plan_fragments(snapshot: Snapshot, selection: Selection, split_rows: int) -> list[Fragment]:
    """Return the fragments in the table's order. Uncounted row groups are split by their stored rows."""
    return [selection.fragment(snapshot, groups) for groups in _groups_of_splits(snapshot, selection, split_rows)]


def screened_splits(
    snapshot: Snapshot,
    where: BoundExpression | None,
    sample: BoundSample | None,
    choose: Callable[[int], Iterable[int]] = range,
    exclusion: Exclusion | None = None,
) -> Iterator[Fragment]:
    """Yield splits that may keep rows, uncounted, in the table's order; `choose` picks the indices, given how many.
    `exclusion`: bad rows to leave out."""
    selection = screen_rows(snapshot, where, sample=sample).without(exclusion)
    splits = _groups_of_splits(snapshot, selection, SPLIT_ROWS)
    for index in choose(len(splits)):
        fragment = selection.fragment(snapshot, splits[index])
        # not all are read to the end, so nothing is checked
        yield replace(fragment, expected=(UNCOUNTED,) * len(fragment.row_groups))


def first_rows(chunks: Iterable[Chunk], count: int) -> list[Chunk]:
    """The first `count` rows of chunks, or all if there are fewer; no further chunk is read."""
    first: list[Chunk] = []
    for chunk in chunks:
        rows = min(count, chunk.frame.height)
        if rows:
            first.append(chunk.part(0, rows))
        count -= rows
        if not count:
            break
    return first


def _groups_of_splits(snapshot: Snapshot, selection: Selection, split_rows: int) -> list[Int64s]:
    planned = np.where(selection.rows == UNCOUNTED, snapshot.rows_per_row_group, selection.rows)
    splits = plan_splits(planned, snapshot.file_of_row_group, split_rows)
    return [np.arange(*bounds) for bounds in zip(splits.first_row_group, splits.stop_row_group, strict=True)]
