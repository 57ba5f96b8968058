"""What is left of an epoch, when the table was rewritten while it ran? The rest of it, planned on a new snapshot.

Runs in: the feeder or the process of `feedline rebase`, once per rebase. From the old plan and the state follows which
kept rows of which row group were delivered (`loader/delivered.py`). Then, file by file:

- unchanged (same path, size and footer digest): the same rows are delivered, by their place;
- gone, in a partition without new files: nothing is left of it;
- rewritten (same path, other bytes, or new files in a partition that lost some): where nothing of the old files was
  delivered, every row of the new ones is left. Else rows are told by their identities: those that blocks recorded, as
  they were delivered, against those of the new files, which are read once for it. Rows of which no identity was
  recorded are in doubt: an error, unless the caller says that they be left out or delivered again.

Files of new partitions, and files added to unchanged ones, hold rows that were never delivered, and join the epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.permutation import permuted_rows, run_starts
from feedline.blocks.request import PieceRequest
from feedline.errors import DataError, StateError, TableError
from feedline.hashing import Words
from feedline.planning.delivered import UNKNOWN, Delivered, Unknown, delivered
from feedline.planning.plan import Plan
from feedline.planning.schedule import Block
from feedline.warehouse.reading.fragment import Fragment, field_of, fragment_at, unpacked
from feedline.warehouse.reading.read import read_fragment
from feedline.warehouse.reading.sample import Bools
from feedline.warehouse.rebase.file_changes import FileChanges, by_file, file_changes, same_filter, same_words
from feedline.warehouse.rebase.recorded_rows import IdentifyTask, Known, Records, identify_task, save_records
from feedline.warehouse.rebase.remaining_rows import Rebase, make_rebase
from feedline.warehouse.rebase.row_identity import kind_of, matched
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map, in_threads

_NAMED = 3  # files that an error lists by name


@dataclass(slots=True)
class _Doubt:
    """Rows of which nobody knows whether they were delivered, and some of the files they are in."""

    rows: int = 0
    files: dict[str, None] = field(default_factory=dict)

    def add(self, rows: int, files: Iterable[str]) -> None:
        self.rows += rows
        self.files.update(dict.fromkeys(files))


def rebase(old: Plan, new: Plan, *, epoch: int, step: int, rewritten: str, map: Map | None = None) -> Rebase:
    """The rest of the old plan's epoch from `step` on, on the new plan's snapshot.

    `rewritten`: what becomes of rows in doubt: error, skip (leave them out) or repeat. Raises StateError for those, or
    where the snapshots are not `comparable`; DataError where two rows have the same `source.row_key`.
    """
    comparable(old, new.snapshot)
    return _Rebasing(old, new, epoch=epoch, step=step, rewritten=rewritten, map=map or in_threads).run()


def comparable(old: Plan, snapshot: Snapshot) -> None:
    """Refuse a snapshot on which the old plan's filter may keep other rows of the same files, or whose partition keys
    are others. Raises StateError."""
    if set(old.snapshot.partition_columns) != set(snapshot.partition_columns):
        raise StateError(
            f"the table's partition keys changed: got {', '.join(snapshot.partition_columns) or 'none'}, expected "
            f"{', '.join(old.snapshot.partition_columns) or 'none'}. Finish the epoch on the old table, or begin anew"
        )
    filters = {"source.where": old.where, "source.sample.where": None if old.sample is None else old.sample.where}
    used = [(name, key, same_filter) for key, filter in filters.items() if filter for name in sorted(filter.parts)]
    if old.sample is not None:
        used += [(name, "source.sample.key", same_words) for name in old.sample.sample.key]
    for name, key, same in used:
        was = field_of(old.snapshot.schema, name).type
        try:
            now = field_of(snapshot.schema, name).type
        except TableError:
            continue  # planning says so, and where
        if not same(was, now):
            place = "source.partitions" if name in snapshot.partition_columns else "source.schema.columns"
            raise StateError(
                f"column {name!r}, which {key} uses, has another type than it had, so other rows of the same files may "
                f"be kept: got {now}, expected {was}. Write the new files with the old type, or begin the epoch anew, "
                f"with the type declared in {place}: new files then do not change it"
            )


class _Rebasing:
    """One rebase while it is computed."""

    def __init__(self, old: Plan, new: Plan, *, epoch: int, step: int, rewritten: str, map: Map) -> None:
        self._old, self._new = old, new
        self._epoch, self._step, self._rewritten = epoch, step, rewritten
        self._map = map
        self._files = file_changes(old.snapshot, new.snapshot)
        self._recording = old.job.record
        self._schedule = old.schedule(epoch)
        self._records = Records(old.spec.work_dir, self._recording.identity) if self._recording else None
        self._doubt = _Doubt()
        self._alike = 0
        self._gone = 0
        self._excluded: dict[int, Bools] = {}

    def run(self) -> Rebase:
        """Everything in its order."""
        found = delivered(self._schedule, self._step, self._order)
        done = self._done(found)
        for before, after in self._files.unchanged.items():
            self._keep(before, after, done)
        for partition, lost in self._files.old.items():
            self._match(lost, self._files.new.get(partition, []), done)
        if self._doubt.rows and self._rewritten == "error":
            raise _doubtful(self._doubt, keyed=self._recording is not None and self._recording.identity.unique)
        return make_rebase(
            snapshot=self._new.snapshot.id,
            epoch=self._epoch,
            first_step=self._step,
            excluded=self._excluded,
            changes=self._changes(done),
        )

    def _changes(self, done: Mapping[int, Bools]) -> dict[str, Any]:
        """What was found, as plain numbers."""
        counts = _counts(self._files, self._old, self._new)
        rows = {
            "delivered": sum(int(mask.sum()) for mask in done.values()),
            "delivered_gone": self._gone,
            **counts["rows"],
            "doubtful": self._doubt.rows,
            "alike": self._alike,
        }
        place = {"from": self._old.snapshot.id, "to": self._new.snapshot.id, "epoch": self._epoch, "step": self._step}
        return {**place, "rewritten": self._rewritten, "files": counts["files"], "rows": rows}

    # -- what was delivered ---------------------------------------------------------------------------------------

    def _done(self, found: Delivered) -> dict[int, Bools]:
        """Per row group of the old table that delivered any row: bool [its kept rows], earlier rebases included."""
        old, rest = self._old, self._old.rest(self._epoch)
        kept = old.selection.rows
        done = {} if rest is None else {group: rest.mask(group, int(kept[group])) for group in rest.excluded}
        pieces = {split: [mask] for split, mask in found.splits.items()}
        doubtful: dict[int, Bools] = {}
        for piece in found.doubtful:
            mask = doubtful.setdefault(piece.split, np.zeros(int(self._schedule.split_rows[piece.split]), bool))
            mask[piece.start : piece.stop] = True
        for split, mask in doubtful.items():
            file = int(old.splits.file[split])
            self._doubt.add(int(mask.sum()), [old.snapshot.files["path"][file].as_py()])
            if self._rewritten != "repeat":
                pieces.setdefault(split, []).append(mask)
        for split, masks in pieces.items():
            first = 0
            for group in range(int(old.splits.first_row_group[split]), int(old.splits.stop_row_group[split])):
                whole = done.get(group, np.zeros(int(kept[group]), np.bool_))
                left = np.flatnonzero(~whole) if rest is not None else np.arange(len(whole))
                for mask in masks:
                    whole[left[mask[first : first + len(left)]]] = True
                if whole.any():
                    done[group] = whole
                first += len(left)
        return done

    def _order(self, block: Block) -> NDArray[np.int64] | Unknown | None:
        """How a block's rows were permuted."""
        request = self._old.request(block, self._epoch)
        if request.permutation is None:
            return None
        if self._old.job.by is None:
            return permuted_rows(block.rows, None, *request.permutation)
        starts, rows = [], 0
        for piece in request.pieces:
            values = self._by(piece)
            if values is None:
                return UNKNOWN
            starts.append(run_starts(values) + rows)
            rows += piece.rows
        return permuted_rows(block.rows, np.concatenate(starts), *request.permutation)

    def _by(self, piece: PieceRequest) -> pl.Series | None:
        """The values of `shuffle.by` in a piece, or hashes of them; None where neither is to be had."""
        fragment = piece.fragment
        parts = []
        recorded = self._recording is not None and self._recording.identity.by is not None
        for position, known in enumerate(self._known(fragment) if recorded else ()):
            bits = fragment.excluded[position] if fragment.excluded else None
            left = ~unpacked(bits, len(known.known))
            parts.append((known.runs[left], known.known[left]))
        place = slice(piece.skip, piece.skip + piece.rows)
        if recorded and np.concatenate([known for _, known in parts])[place].all():
            return pl.Series(np.concatenate([runs for runs, _ in parts])[place])
        now = self._unchanged_paths.get(fragment.path)
        if now is None:
            return None
        by, table = self._old.job.by, self._new.snapshot
        assert by is not None
        groups = table.row_groups_of(now)[list(fragment.row_groups)]
        there = replace(fragment_at(table, now, groups, np.array(fragment.expected)), excluded=fragment.excluded)
        where, sample = self._new.where, self._new.sample
        frames = [chunk.frame for chunk in read_fragment(there, [by], where, table.schema, sample=sample)]
        return pl.concat(frames).get_column(by).slice(piece.skip, piece.rows)

    @cached_property
    def _unchanged_paths(self) -> dict[str, int]:
        paths = self._old.snapshot.files["path"]
        return {paths[before].as_py(): after for before, after in self._files.unchanged.items()}

    def _known(self, fragment: Fragment) -> list[Known]:
        kept = dict(zip(fragment.row_groups, fragment.expected, strict=True))
        if self._records is None:
            return [Known.nothing(rows) for rows in fragment.expected]
        found = self._records.of(fragment.path, fragment.footer_digest, kept)
        return [found[row_group] for row_group in fragment.row_groups]

    # -- what is left ---------------------------------------------------------------------------------------------

    def _keep(self, before: int, after: int, done: Mapping[int, Bools]) -> None:
        """An unchanged file: what was delivered of it stays delivered."""
        were, are = self._old.snapshot.row_groups_of(before), self._new.snapshot.row_groups_of(after)
        for was, now in zip(were.tolist(), are.tolist(), strict=True):
            if self._old.selection.rows[was] != self._new.selection.rows[now]:
                path = self._old.snapshot.files["path"][before].as_py()
                raise DataError(
                    f"the filter keeps another number of rows of {path} than it did, though the file is the same: got "
                    f"{self._new.selection.rows[now]}, expected {self._old.selection.rows[was]}. Delete the counts in "
                    f"work_dir and run again"
                )
            if was in done:
                self._excluded[now] = done[was]

    def _match(self, before: list[int], after: list[int], done: Mapping[int, Bools]) -> None:
        """A partition's files that changed: find the delivered rows of the old ones among those of the new."""
        old, new = self._old, self._new
        groups = [group for file in before for group in old.snapshot.row_groups_of(file).tolist() if group in done]
        fragments = [fragment for file in after for fragment in _fragments(new, file)]
        if not groups or not fragments:
            self._gone += sum(int(done[group].sum()) for group in groups)
            return
        identities, missing = self._delivered_of(groups, done)
        if missing and self._rewritten != "repeat":
            self._leave_out(fragments, None)
            self._doubt.add(sum(sum(part.expected) for _, part in fragments), (part.path for _, part in fragments))
            return
        rows = self._identities(fragments) if len(identities) else np.zeros(0, np.uint64)
        nameless = self._nameless(rows)
        if len(identities):
            self._refuse_twins(identities, fragments[0][1])
            self._refuse_twins(rows[~nameless], fragments[0][1])
        again, alike = matched(identities, rows)
        gone = len(identities) - int(again.sum())
        if missing:
            left = sum(sum(part.expected) for _, part in fragments) - int(again.sum())
            self._doubt.add(left, (part.path for _, part in fragments))
        elif gone and nameless.any():  # what was delivered may have lost its name
            self._doubt.add(int(nameless.sum()), (part.path for _, part in fragments))
            again = again | nameless if self._rewritten != "repeat" else again
        self._alike += alike
        self._gone += gone
        if len(identities):
            self._leave_out(fragments, again)

    def _nameless(self, rows: Words) -> Bools:
        return np.zeros(len(rows), np.bool_) if self._recording is None else self._recording.identity.nameless(rows)

    def _leave_out(self, fragments: list[tuple[list[int], Fragment]], mask: Bools | None) -> None:
        """Rows of some fragments, laid end to end; all of them without a mask."""
        first = 0
        for groups, part in fragments:
            for group, kept in zip(groups, part.expected, strict=True):
                self._excluded[group] = np.ones(kept, np.bool_) if mask is None else mask[first : first + kept]
                first += kept

    def _delivered_of(self, groups: list[int], done: Mapping[int, Bools]) -> tuple[Words, int]:
        """The identities of the delivered rows of some row groups of the old table, and how many have none."""
        old = self._old
        parts, missing = [np.zeros(0, np.uint64)], 0
        for file, of_file in by_file(old.snapshot, groups):
            fragment = fragment_at(old.snapshot, file, of_file, old.selection.rows[of_file])
            for group, known in zip(of_file.tolist(), self._known(fragment), strict=True):
                found = known.known & ~self._nameless(known.rows)
                missing += int((done[group] & ~found).sum())
                parts.append(known.rows[done[group] & found])
        return np.concatenate(parts), missing

    def _identities(self, fragments: list[tuple[list[int], Fragment]]) -> Words:
        """Read the identities of the new files' rows, and record them for the next rebase."""
        assert self._recording is not None
        identity, new = self._recording.identity, self._new
        for name, kind in identity.kinds:
            try:
                found_kind = str(kind_of(field_of(new.snapshot.schema, name).type))
            except TableError:
                found_kind = "no column of that name"
            if found_kind != kind:
                raise StateError(
                    f"column {name!r}, by which rows are told apart, is not what it was: got {found_kind}, expected "
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
            for _, part in fragments
        ]
        found = []
        for task, (rows, runs) in zip(tasks, self._map(identify_task, tasks), strict=True):
            save_records(self._recording, task.fragment, rows, runs)
            found.append(rows)
        return np.concatenate(found)

    def _refuse_twins(self, identities: Words, fragment: Fragment) -> None:
        """A row key that two rows have is none."""
        assert self._recording is not None
        twice = len(identities) - len(np.unique(identities)) if self._recording.identity.unique else 0
        if twice:
            raise DataError(
                f"source.row_key does not name one row: got {twice:,} rows with the key of another in the partition of "
                f"{fragment.uri}, expected none. Name columns that do"
            )


def _doubtful(doubt: _Doubt, *, keyed: bool) -> StateError:
    named = ", ".join(itertools.islice(doubt.files, _NAMED))
    more = len(doubt.files) - _NAMED
    why = (
        "got no record of their identities, or nulls in source.row_key,"
        if keyed
        else "got no record of their identities"
    )
    hint = "" if keyed else "; with source.row_key in pipeline.yaml the next run records them, whatever its size"
    return StateError(
        f"rows of rewritten files cannot be told from those that were delivered: {why} for {doubt.rows:,} rows of "
        f"{named}{f' and {more} more files' if more > 0 else ''}. Leave them out (--rewritten skip) or deliver them "
        f"again (--rewritten repeat){hint}"
    )


def _counts(files: FileChanges, old: Plan, new: Plan) -> dict[str, Any]:
    """Files by what became of them, and kept rows that came and went, net per partition."""
    deleted = added = 0
    for partition in {**files.old, **files.new}:
        was = _kept(old, files.old.get(partition, ()))
        now = _kept(new, files.new.get(partition, ()))
        deleted, added = deleted + max(was - now, 0), added + max(now - was, 0)
    lost, gained = (sum(len(names) for names in each.values()) for each in (files.old, files.new))
    by_fate = {
        "unchanged": len(files.unchanged),
        "rewritten": files.rewritten,
        "gone": lost - files.rewritten,
        "new": gained - files.rewritten,
    }
    return {"files": by_fate, "rows": {"deleted": deleted, "added": added}}


def _kept(plan: Plan, files: Iterable[int]) -> int:
    """Kept rows of some files."""
    return sum(int(plan.selection.rows[plan.snapshot.row_groups_of(file)].sum()) for file in files)


def _fragments(plan: Plan, file: int) -> Iterator[tuple[list[int], Fragment]]:
    """A file's splits: their row groups (in the table) that keep rows, and the order to read them."""
    for split in plan.splits.of_file(file):
        groups = np.arange(plan.splits.first_row_group[split], plan.splits.stop_row_group[split])
        groups = groups[plan.selection.rows[groups] > 0]
        if len(groups):
            kept, proven = plan.selection.rows[groups], plan.selection.proven
            yield groups.tolist(), fragment_at(plan.snapshot, file, groups, kept, proven)
