"""Plan the rest of an epoch on a new snapshot, after its table was rewritten.

Runs in: the feeder or the process of `feedline rebase`. The old plan and the state give the kept rows of each row group
that were delivered. Then, file by file:

- unchanged (`file_identity`): the same rows count as delivered, by position;
- deleted, in a partition without new files: no row remains;
- rewritten: if no row of the old files was delivered, every row of the new ones remains. Otherwise the identities that
  blocks recorded are matched with those of the new files. A delivered row without a recorded identity is an error.

Rows of new partitions, and of files added beside unchanged ones, join the epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.request import PieceRequest
from feedline.blocks.row_order import order_values, ordered_rows
from feedline.errors import DataError, StateError, TableError
from feedline.hashing import Words
from feedline.planning.schedule import Block, Piece, Schedule
from feedline.planning.source_plan import SourcePlan, left_out
from feedline.warehouse.reading.fragment import Fragment, field_of, fragment_at, unpack_mask
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.reading.sample import Bools
from feedline.warehouse.rebase.file_changes import FileChanges, by_file, file_changes, same_filter, same_words
from feedline.warehouse.rebase.recorded_rows import IdentifyTask, Records, RowIdentities, identify_task, save_records
from feedline.warehouse.rebase.remaining_rows import Rebase, make_rebase
from feedline.warehouse.rebase.row_identity import NAMELESS, identity_kind
from feedline.warehouse.snapshot.snapshot import Snapshot, retimed_text
from feedline.warehouse.storage.locations import absolute, redact
from feedline.warehouse.storage.parallel import Map, in_threads

# --------------------------------------------------------------------------------------------------------------------
# Find the rows that an epoch has delivered before a step, from its schedule. Each strand of a lane has delivered its
# first rows: whole blocks, whose permutation does not matter, and the first rows of the block that the step divides,
# whose permutation does.


def find_delivered_rows(
    schedule: Schedule, step: int, order: Callable[[Block], NDArray[np.int64] | None]
) -> dict[int, Bools]:
    """The rows of the steps before `step`: of each split that has any, bool [rows of the split]. `order` returns the
    permutation of a block's rows, None without one."""
    delivered: dict[int, Bools] = {}

    def mark(pieces: Sequence[Piece], rows: Bools) -> None:
        for piece in pieces:
            here, rows = np.split(rows, [piece.stop - piece.start])
            of_split = delivered.setdefault(piece.split, np.zeros(int(schedule.split_rows[piece.split]), np.bool_))
            of_split[piece.start : piece.stop] |= here

    for lane in range(schedule.lanes):
        place = schedule.lane(lane)
        end = min(max(step - schedule.first_step, 0) * schedule.batch_size, place.rows)
        if not end:
            continue
        strands = place.strands
        counts = strands.positions(end).tolist()
        for blocks, starts, count in zip(strands.blocks, strands.starts, counts, strict=True):
            whole = int(np.searchsorted(starts, count, side="right")) - 1
            for block in blocks[:whole].tolist():
                first, stop = int(place.borders[block]), int(place.borders[block + 1])
                mark(schedule.pieces(first, stop), np.ones(stop - first, np.bool_))
            if starts[whole] < count:
                divided = schedule.block(lane, int(blocks[whole]))
                rows, first_rows = order(divided), slice(count - int(starts[whole]))
                marks = np.zeros(divided.rows, np.bool_)
                marks[first_rows if rows is None else rows[first_rows]] = True
                mark(divided.pieces, marks)
    return delivered


# --------------------------------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

_MAX_PATHS = 3  # file names in one message


def rebase(
    old: SourcePlan, new: SourcePlan, *, epoch: int, step: int, began: int | None = None, map: Map | None = None
) -> Rebase:
    """The rest of the old plan's epoch from `step` on, on the new plan's snapshot.

    Raises StateError where rows of rewritten files were delivered whose identities were not recorded, or where the
    snapshots cannot be compared (`require_comparable`); DataError where two rows have the same `source.row_key`. began:
    as of `Rebase`.
    """
    require_comparable(old, new.snapshot)
    return _RebasePlanner(old, new, epoch=epoch, step=step, map=map or in_threads).run(began)


def require_comparable(old: SourcePlan, snapshot: Snapshot) -> None:
    """Raise StateError for a snapshot with other partition keys, or on which the old plan's filter may keep other rows
    of the same files."""
    if old.lengths is not None:
        raise StateError(
            "a run with batch.buckets cannot be rebased: got a state in mid-epoch of one, expected one without. Finish "
            "the epoch on the old table, or restart it"
        )
    if set(old.snapshot.partition_columns) != set(snapshot.partition_columns):
        raise StateError(
            f"the table's partition keys changed: got {', '.join(snapshot.partition_columns) or 'none'}, expected "
            f"{', '.join(old.snapshot.partition_columns) or 'none'}. Finish the epoch on the old table, or restart it"
        )
    filters = {"source.where": old.where, "source.sample.where": None if old.sample is None else old.sample.where}
    checks = [(name, key, same_filter) for key, filter in filters.items() if filter for name in sorted(filter.parts)]
    if old.sample is not None:
        checks += [(name, "source.sample.key", same_words) for name in old.sample.sample.key]
    for name, key, same in checks:
        old_type = field_of(old.snapshot.schema, name).type
        try:
            new_type = field_of(snapshot.schema, name).type
        except TableError:
            continue  # planning reports it, with the position
        if not same(old_type, new_type):
            section = "source.partitions" if name in snapshot.partition_columns else "source.schema.columns"
            raise StateError(
                f"column {name!r}, which {key} uses, changed its type, so other rows of the same files may be kept: "
                f"got {new_type}, expected {old_type}. Write the new files with the old type, or restart the epoch, "
                f"with the type declared in {section}, which new files cannot change"
            )


def _deciding_columns(plan: SourcePlan) -> frozenset[str]:
    """The columns that decide which rows are kept, and their order."""
    columns = set() if plan.where is None else set(plan.where.columns)
    columns |= set() if plan.sample is None else set(plan.sample.columns)
    return frozenset(columns if plan.job.order is None else {*columns, plan.job.order.column})


class _RebasePlanner:
    def __init__(self, old: SourcePlan, new: SourcePlan, *, epoch: int, step: int, map: Map) -> None:
        self._old, self._new = old, new
        self._old_kept, self._new_kept = old.selection.kept_rows, new.selection.kept_rows
        self._epoch, self._step = epoch, step
        self._map = map
        self._files = file_changes(old.snapshot, new.snapshot, _deciding_columns(old))
        self._recording = old.job.record
        self._schedule = old.schedule(epoch)
        self._records = Records(old.spec.work_dir, self._recording.identity) if self._recording else None
        self._gone = 0
        self._excluded: dict[int, Bools] = {}

    def run(self, began: int | None) -> Rebase:
        done = self._delivered_by_group(find_delivered_rows(self._schedule, self._step, self._order))
        for before, after in self._files.unchanged.items():
            self._keep(before, after, done)
        for partition, lost in self._files.old.items():
            self._match(lost, self._files.new.get(partition, []), done)
        return make_rebase(
            snapshot=self._new.snapshot.id,
            epoch=self._epoch,
            first_step=self._step,
            excluded=self._excluded,
            changes=self._changes(done),
            began=began,
        )

    def _changes(self, done: Mapping[int, Bools]) -> dict[str, Any]:
        counts = _counts(self._files, self._old, self._new)
        rows = {
            "delivered": sum(int(mask.sum()) for mask in done.values()),
            "delivered_gone": self._gone,
            **counts["rows"],
        }
        origin = {"from": self._old.snapshot.id, "to": self._new.snapshot.id, "epoch": self._epoch, "step": self._step}
        return {**origin, "rewritten": "error", "files": counts["files"], "rows": rows}

    # -- delivered rows -------------------------------------------------------------------------------------------

    def _delivered_by_group(self, delivered: Mapping[int, Bools]) -> dict[int, Bools]:
        """Per row group of the old table with delivered rows: bool [its kept rows], including earlier rebases."""
        old, rest, kept = self._old, self._old.rest(self._epoch), self._old_kept
        done = {} if rest is None else {group: rest.mask(group, int(kept[group])) for group in rest.excluded}
        for split, mask in delivered.items():
            first = 0
            for group in range(int(old.splits.first_row_group[split]), int(old.splits.stop_row_group[split])):
                whole = done.get(group, np.zeros(int(kept[group]), np.bool_))
                remaining = np.flatnonzero(~left_out(old, group, self._epoch))
                whole[remaining[mask[first : first + len(remaining)]]] = True
                if whole.any():
                    done[group] = whole
                first += len(remaining)
        return done

    def _order(self, block: Block) -> NDArray[np.int64] | None:
        request = self._old.request(block, self._epoch)
        return ordered_rows(self._old.job.order, request, lambda index: self._order_values(request.pieces[index]))

    def _order_values(self, piece: PieceRequest) -> pl.Series:
        """What orders the rows of a piece: the values of `shuffle.by`, or hashes of them. Raises StateError where there
        are neither."""
        fragment = piece.fragment
        parts = []
        recorded = self._recording is not None and self._recording.identity.by is not None
        for position, identities in enumerate(self._recorded_identities(fragment) if recorded else ()):
            bits = fragment.excluded[position] if fragment.excluded else None
            remaining = ~unpack_mask(bits, len(identities.present))
            parts.append((identities.runs[remaining], identities.present[remaining]))
        rows = slice(piece.skip, piece.skip + piece.rows)
        if recorded and np.concatenate([known for _, known in parts])[rows].all():
            return pl.Series(np.concatenate([runs for runs, _ in parts])[rows])
        file = self._unchanged_paths.get(fragment.path)
        if file is None:
            raise self._unrecorded_error(piece.rows, [fragment])
        order, table = self._old.job.order, self._new.snapshot
        assert order is not None
        groups = table.row_groups_of(file)[list(fragment.row_groups)]
        copy = replace(fragment_at(table, file, groups, np.array(fragment.expected)), excluded=fragment.excluded)
        request = ReadRequest([order.column], table.schema, self._new.where, sample=self._new.sample)
        frames = [chunk.frame for chunk in read_fragment(copy, request)]
        return order_values(order, pl.concat(frames).get_column(order.column)).slice(piece.skip, piece.rows)

    @cached_property
    def _unchanged_paths(self) -> dict[str, int]:
        paths = self._old.snapshot.files["path"]
        return {paths[before].as_py(): after for before, after in self._files.unchanged.items()}

    def _recorded_identities(self, fragment: Fragment) -> list[RowIdentities]:
        if self._records is None:
            return [RowIdentities.nothing(rows) for rows in fragment.expected]
        recorded = self._records.of(fragment)
        return [recorded[row_group] for row_group in fragment.row_groups]

    # -- remaining rows -------------------------------------------------------------------------------------------

    def _keep(self, before: int, after: int, done: Mapping[int, Bools]) -> None:
        old, new = self._old, self._new
        groups = zip(
            old.snapshot.row_groups_of(before).tolist(), new.snapshot.row_groups_of(after).tolist(), strict=True
        )
        for old_group, new_group in groups:
            old_rows, new_rows = self._old_kept[old_group], self._new_kept[new_group]
            if old_rows != new_rows:
                path = old.snapshot.files["path"][before].as_py()
                raise DataError(
                    f"the filter keeps another number of rows of {path} than before, though the file is unchanged: got "
                    f"{new_rows}, expected {old_rows}. Delete the counts in "
                    f"work_dir and run again"
                )
            if old_group in done:
                self._excluded[new_group] = done[old_group]

    def _match(self, before: list[int], after: list[int], done: Mapping[int, Bools]) -> None:
        """Find the delivered rows of a partition's old files among those of its new files."""
        old, new = self._old, self._new
        groups = [group for file in before for group in old.snapshot.row_groups_of(file).tolist() if group in done]
        fragments = [fragment for file in after for fragment in self._fragments(file)]
        if not groups or not fragments:
            self._gone += sum(int(done[group].sum()) for group in groups)
            return
        identities, missing = self._delivered_identities(groups, done)
        parts = [part for _, part in fragments]
        if missing:
            raise self._unrecorded_error(sum(sum(part.expected) for part in parts), parts)
        rows = self._identities(parts)
        nameless = rows == NAMELESS
        for names in (identities, rows[~nameless]):
            self._refuse_duplicates(names, parts[0])
        excluded = np.isin(rows, identities)
        gone = len(identities) - int(excluded.sum())
        left_out = [new.selection.excluded_mask(group) for file_groups, _ in fragments for group in file_groups]
        nameless &= ~np.concatenate(left_out)
        if gone and nameless.any():  # a delivered row may have lost its key
            raise self._unrecorded_error(int(nameless.sum()), parts)
        self._gone += gone
        first = 0
        for file_groups, part in fragments:
            for group, kept_rows in zip(file_groups, part.expected, strict=True):
                self._excluded[group] = excluded[first : first + kept_rows]
                first += kept_rows

    def _fragments(self, file: int) -> Iterator[tuple[list[int], Fragment]]:
        """Per split of a new file: its row groups (in the table) that keep rows, and the fragment that reads these, bad
        ones included."""
        plan, kept = self._new, self._new_kept
        for split in plan.splits.of_file(file):
            groups = np.arange(plan.splits.first_row_group[split], plan.splits.stop_row_group[split])
            groups = groups[kept[groups] > 0]
            if len(groups):
                yield groups.tolist(), fragment_at(plan.snapshot, file, groups, kept[groups], plan.selection.proofs)

    def _delivered_identities(self, groups: list[int], done: Mapping[int, Bools]) -> tuple[Words, int]:
        """The identities of the delivered rows of some row groups of the old table, and how many have none."""
        old = self._old
        parts, missing = [np.zeros(0, np.uint64)], 0
        for file, of_file in by_file(old.snapshot, groups):
            fragment = fragment_at(old.snapshot, file, of_file, self._old_kept[of_file])
            for group, identities in zip(of_file.tolist(), self._recorded_identities(fragment), strict=True):
                usable = identities.present & (identities.rows != NAMELESS)
                missing += int((done[group] & ~usable).sum())
                parts.append(identities.rows[done[group] & usable])
        return np.concatenate(parts), missing

    def _identities(self, fragments: Sequence[Fragment]) -> Words:
        """Read the identities of the new files' rows, and record them for the next rebase."""
        assert self._recording is not None
        identity, new = self._recording.identity, self._new
        for name, kind in identity.kinds:
            try:
                new_kind = str(identity_kind(field_of(new.snapshot.schema, name).type))
            except TableError:
                new_kind = "no column of that name"
            if new_kind != kind:
                raise StateError(
                    f"column {name!r}, which identifies rows, changed its type: got {new_kind}, expected "
                    f"{kind}. Finish the epoch on the old table, or begin the next one"
                )
        tasks = [
            IdentifyTask(
                fragment=part,
                identity=identity,
                where=new.job.where,
                sample=new.job.sample,
                schema=new.snapshot.schema,
            )
            for part in fragments
        ]
        identities = []
        for task, (rows, runs) in zip(tasks, self._map(identify_task, tasks), strict=True):
            save_records(self._recording, task.fragment, rows, runs)
            identities.append(rows)
        return np.concatenate(identities)

    def _refuse_duplicates(self, identities: Words, fragment: Fragment) -> None:
        duplicates = len(identities) - len(np.unique(identities))
        if duplicates:
            raise DataError(
                f"source.row_key is not unique: got {duplicates:,} rows with the key of another in the partition of "
                f"{fragment.uri}, expected none. Name columns that are unique"
            )

    def _unrecorded_error(self, rows: int, fragments: Sequence[Fragment]) -> StateError:
        paths = list(dict.fromkeys(fragment.path for fragment in fragments))
        more = f" and {len(paths) - _MAX_PATHS} more files" if len(paths) > _MAX_PATHS else ""
        keyed = self._old.spec.source.row_key is not None
        cause = "no record of their identities" + (", or nulls in source.row_key," if keyed else "")
        if self._files.retimed.any():
            logger.warning("%s", retimed_text(self._new.snapshot, self._files.retimed, "taken as rewritten"))
            more += ". Files that were touched or copied alone are unchanged once their times are set back"
        remedy = "only runs that begin with source.row_key in pipeline.yaml record what a rebase needs"
        if keyed:
            folder = redact(absolute(self._old.spec.work_dir))
            remedy = f"records are read from {folder}, which all hosts of a job and their workers must share"
        return StateError(
            f"rows of rewritten files cannot be matched with those delivered: got {cause} for {rows:,} rows of "
            f"{', '.join(paths[:_MAX_PATHS])}{more}. Finish the epoch on the old table, or restart it; {remedy}"
        )


def _counts(files: FileChanges, old: SourcePlan, new: SourcePlan) -> dict[str, Any]:
    """Counts of files by change, and of kept rows added and deleted, net per partition."""
    deleted = added = 0
    for partition in {**files.old, **files.new}:
        before = _kept_rows(old, files.old.get(partition, ()))
        after = _kept_rows(new, files.new.get(partition, ()))
        deleted, added = deleted + max(before - after, 0), added + max(after - before, 0)
    lost, gained = (sum(len(names) for names in each.values()) for each in (files.old, files.new))
    by_change = {
        "unchanged": len(files.unchanged),
        "rewritten": files.rewritten,
        "gone": lost - files.rewritten,
        "new": gained - files.rewritten,
    }
    return {"files": by_change, "rows": {"deleted": deleted, "added": added}}


def _kept_rows(plan: SourcePlan, files: Iterable[int]) -> int:
    return sum(int(plan.selection.rows[plan.snapshot.row_groups_of(file)].sum()) for file in files)
