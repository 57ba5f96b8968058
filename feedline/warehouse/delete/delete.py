"""Delete the rows of a table for which a condition is true.

Runs in: the process of the command, in threads. Rows are found first (`find_rows`) and logged (`deletion_log`). Then
each file that holds such rows is written without them (`rewrite`) into the run's own hidden folder, and moved over the
old one: at any moment a file is the old one or the new one. A file without rows left is removed. A run that ends early
leaves finished files and untouched ones, and the same command finds the rest. Files with column files wait until those
are written, too (`column_files`).

One deletion at a time runs on a local table (a lock that ends with its process). The run also takes the claim of
`optimize` on the folder, so that neither changes a file of the other's.
"""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path

import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.errors import FeedlineError, TableArgumentError, TableError, TableNotFoundError
from feedline.progress import track
from feedline.warehouse.cache.maintenance import PruneReport, count_entries, prune_files
from feedline.warehouse.columns.commit import claimed
from feedline.warehouse.delete.column_files import (
    column_files_on_disk,
    commit_column_files,
    read_column_files,
    write_column_files,
)
from feedline.warehouse.delete.condition import Condition, bind_condition
from feedline.warehouse.delete.deletion_log import DeletionLog, logged_column_files, logged_files
from feedline.warehouse.delete.find_rows import FoundRows, find_rows
from feedline.warehouse.delete.rewrite import FileRows, WrittenBytes, write_file_without
from feedline.warehouse.discovery.column_log import ColumnFile, RewriteCommit
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.discovery.logs import log_of_folder
from feedline.warehouse.optimize.landing import DELETES, Target, room_for, target_at
from feedline.warehouse.parquet.writer import PART_SUFFIX
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.warehouse.storage.claim import Claim
from feedline.warehouse.storage.file_identity import refuse_changed, stamp_at
from feedline.warehouse.storage.locations import absolute, join, locate, redact
from feedline.warehouse.storage.parallel import Map, in_threads
from feedline.warehouse.storage.retry import with_retries

_STAGE = "delete"
_AGAIN = "Run the same command again: it goes on with what is left"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteReport:
    """What a deletion found and did.

    rows: deleted; with a dry run, that would be. files, row_groups: of the table. files_rewritten, files_removed.
    column_files_rewritten; column_files_removed: old ones, also those that were read no more. by_partition,
    by_statistics, by_bloom, read, whole: row groups, as in `FoundRows`. held_row_groups, held_bytes: row groups with
    such rows, and what these weigh with their column files. encoded_bytes: of these row groups, written without the
    rows; copied_bytes: of row groups that were copied into the same files as they were. linked: files that have a
    further name on the disk, under which the old rows stay. log: its path; empty for a dry run. caches: what was
    pruned, by folder. left: rows that `verify` found in the table and in copies, by their names, and entries of files
    with deleted rows in caches.
    """

    table: str
    dry_run: bool
    rows: int
    files: int
    row_groups: int
    files_rewritten: int
    files_removed: int
    column_files_rewritten: int
    column_files_removed: int
    by_partition: int
    by_statistics: int
    by_bloom: int
    read: int
    whole: int
    held_row_groups: int
    held_bytes: int
    encoded_bytes: int
    copied_bytes: int
    linked: int
    log: str
    caches: dict[str, PruneReport]
    left: dict[str, int] | None

    @property
    def is_met(self) -> bool:
        """Whether nothing is left of what was deleted, as far as is known."""
        return all(each.is_met for each in self.caches.values()) and not any((self.left or {}).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRequest:
    """What to delete, and where to look for it.

    where: a condition on rows, in the language of `source.where`, with `column in file("…")`. dry_run: only find the
    rows. caches: folders of caches whose entries of files with deleted rows are removed. verify: look for the rows
    again, in the table, in `copies`, which are tables with the same columns, and in caches.
    """

    where: str
    dry_run: bool = False
    caches: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    verify: bool = False


def delete_rows(table: str, request: DeleteRequest, *, threads: int | None = None) -> DeleteReport:
    """Delete rows. table: a folder of Parquet files, or its URI.

    Raises ExpressionError and TableArgumentError for a condition or a list that does not fit, TableArgumentError for a
    table with a log (Iceberg, Delta Lake) or that is no folder, TableError where another deletion runs,
    TableChangedError for a file that changes meanwhile, and what reading and writing raise; finished files stay.
    """
    if request.copies and not request.verify:
        raise TableArgumentError("copies are only verified: got copies without verify. Add --verify, or leave them out")
    uri, run = absolute(table), partial(in_threads, threads=threads)
    _refuse_other_formats(uri)
    for copy in request.copies:  # before a file changes
        bind_condition(request.where, snapshot_of(list_table(absolute(copy))).schema)
    target = target_at(uri)
    if request.dry_run:
        return _report(table, request, _find(uri, request.where, run), _Changes())
    with _alone(target):
        found = _found_or_none_left(target, request.where, run)
        with _columns_claim(target, found.listing) as claim:
            changes = _change(target, claim, found, run)
    changed = logged_files(uri) if request.caches else frozenset()  # of killed runs, too, which pruned nothing
    caches = {folder: prune_files(folder, changed) for folder in request.caches}
    report = _report(table, request, found, replace(changes, caches=caches))
    return report if not request.verify else _verified(report, uri, request, changed, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The rows to delete, the condition that means them, and the table as it was."""

    rows: FoundRows
    condition: Condition
    listing: Listing
    snapshot: Snapshot

    @property
    def files(self) -> tuple[FileRows, ...]:
        return self.rows.files

    @property
    def column_files(self) -> dict[str, list[str]]:
        """The column files of files with such rows, by their paths."""
        return column_files_on_disk(self.listing, [file.fragment.path for file in self.files])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """What a run has changed. pages: of files and column files that were written. The others as in `DeleteReport`."""

    pages: Sequence[WrittenBytes] = ()
    column_files_removed: int = 0
    linked: int = 0
    log: str = ""
    caches: Mapping[str, PruneReport] = field(default_factory=dict)


def _find(uri: str, where: str, run: Map) -> _Found:
    listing = list_table(uri)
    snapshot = snapshot_of(listing)
    condition = bind_condition(where, snapshot.schema)
    rows = find_rows(snapshot, condition, map=run)
    return _Found(rows=rows, condition=condition, listing=listing, snapshot=snapshot)


def _found_or_none_left(target: Target, where: str, run: Map) -> _Found:
    """As `_find`. Of a table without files it removes the column files that a run which was killed has left."""
    try:
        return _find(target.uri, where, run)
    except TableNotFoundError:
        _remove_column_files(target, target.claim, logged_column_files(locate(target.uri)))
        raise


def _change(target: Target, claim: Claim | None, found: _Found, run: Map) -> _Changes:
    """Log what is deleted, and delete it. claim: on the table's column files, if it has any."""
    location, columns = locate(target.uri), found.column_files
    _refuse_links(target, found)
    linked = _linked(target, found)
    keys = found.snapshot.partition_columns
    now = datetime.datetime.now(datetime.UTC)
    log = DeletionLog.of(location, found.condition, found.rows, keys, columns, now)
    with _writable(target):
        log.write("running")
    try:
        pages = _rewrite(target, claim, found, run)
    except BaseException as error:
        with suppress(FeedlineError, OSError):
            log.write("failed", error=type(error).__name__)
        raise
    removed: set[str] = set()
    if claim is not None:
        logged = logged_column_files(location)  # also of runs that were killed before they removed them
        removed = logged.intersection(found.listing.column_bytes) - read_column_files(found.snapshot, without=columns)
        with _writable(target):
            _remove_column_files(target, claim, removed)
    with _writable(target):
        log.write("done", removed=_removed(found))
    return _Changes(pages=pages, column_files_removed=len(removed), linked=linked, log=log.path)


def _refuse_other_formats(uri: str) -> None:
    location, name = locate(uri), redact(uri)
    info = with_retries(lambda: location.filesystem.get_file_info(location.path), location.filesystem, name)
    if info.type == pafs.FileType.File:
        raise TableArgumentError(f"{name} is a file: expected the folder of a table. Name its folder")
    if info.type == pafs.FileType.NotFound:
        raise TableNotFoundError(f"{name} does not exist: expected the folder of a table. Name one folder")
    mark = log_of_folder(uri)
    if mark is not None:
        raise TableArgumentError(
            f"{name} has a log, {mark}, that defines its rows: expected a table of Hive folders. Delete the rows with "
            "the engine that writes the log, remove the old files with it (VACUUM, expire_snapshots), and prune caches "
            "with feedline cache prune"
        )


# -- one run at a time ------------------------------------------------------------------------------------------------


@contextmanager
def _alone(target: Target) -> Iterator[None]:
    """Keep other deletions out, on a local disk, and take the claim on the table from `optimize`."""
    with _lock(target):
        with _writable(target):
            target.claim.take()
        try:
            yield
        finally:
            target.claim.release()


@contextmanager
def _columns_claim(target: Target, listing: Listing) -> Iterator[Claim | None]:
    """Keep `columns add` and `columns drop` out, where the table has column files."""
    if listing.columns is None:
        yield None
        return
    with claimed(locate(target.uri)) as claim:
        yield claim


@contextmanager
def _lock(target: Target) -> Iterator[None]:
    if not target.is_local:
        yield
        return
    path = Path(target.root, DELETES, ".lock")
    with _writable(target):
        path.parent.mkdir(exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TableError(
                f"{redact(target.uri)} has a deletion that runs: got the lock {path} of another process, expected "
                "none. Run the command again when that has ended"
            ) from None
        yield
    finally:
        os.close(lock)


@contextmanager
def _writable(target: Target) -> Iterator[None]:
    """Say of an error of the disk what to do."""
    try:
        with room_for(target.uri):
            yield
    except TableError as error:
        if isinstance(error.__cause__, OSError) and type(error) is TableError:
            raise TableError(f"{str(error).partition('. Finished')[0]}. {_AGAIN}") from error.__cause__
        raise


# -- files ------------------------------------------------------------------------------------------------------------


def _paths(found: _Found) -> list[str]:
    """The files with such rows, and their column files."""
    return [path for base, columns in found.column_files.items() for path in (base, *columns)]


def _refuse_links(target: Target, found: _Found) -> None:
    """Raise TableError for a file that lies elsewhere: its name would be replaced, and the rows would stay."""
    if not target.is_local:
        return
    root = os.path.realpath(target.root)
    for each in _paths(found):
        path = join(target.root, each)
        real = os.path.realpath(path)
        if real != join(root, each):
            raise TableError(
                f"{path} is reached by a link: got a file at {real}, expected one in the table's folder. Delete from "
                "the folder that the link leads to"
            )


def _linked(target: Target, found: _Found) -> int:
    if not target.is_local:
        return 0
    return sum(Path(target.root, path).stat().st_nlink > 1 for path in _paths(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """What was written of a file: its pages and those of its column files, and these."""

    pages: tuple[WrittenBytes, ...] = ()
    columns: tuple[ColumnFile, ...] = ()


def _rewrite(target: Target, claim: Claim | None, found: _Found, run: Map) -> list[WrittenBytes]:
    """Replace all files with such rows. Those with column files are replaced when all of these are committed."""
    files = sorted(found.files, key=lambda file: -file.fragment.bytes)  # tasks end together
    rows = [sum(file.rows) for file in files]
    written = list(track(run(partial(_write, target, claim), files), "deleting", rows, "rows"))
    waiting = [file for file in files if file.fragment.columns]
    if claim is not None and waiting:
        columns = {file.fragment.path: new.columns for file, new in zip(files, written, strict=True) if new.columns}
        removed = tuple(file.fragment.path for file in waiting if file.is_gone)
        with _writable(target):
            commit_column_files(claim, found.listing, RewriteCommit(files=columns, removed=removed))
        list(run(partial(_land, target, claim), waiting))
    return [pages for new in written for pages in new.pages]


def _write(target: Target, claim: Claim | None, rows: FileRows) -> _Written:
    """Write a file without its rows, and its column files. One without column files is replaced at once."""
    written = _Written()
    if not rows.is_gone:
        path = join(target.root, rows.fragment.path)
        with _writable(target):
            base = write_file_without(rows, target.filesystem, path, _staged(target, rows))
            columns = {} if claim is None else write_column_files(claim, rows, base)
        written = _Written(pages=(base.pages, *(each.pages for each in columns.values())), columns=tuple(columns))
    if not rows.fragment.columns:
        _land(target, claim, rows)
    return written


def _staged(target: Target, rows: FileRows) -> str:
    name = hashlib.sha256(rows.fragment.path.encode()).hexdigest()[:16]
    return f"{target.stage(_STAGE)}/{name}{PART_SUFFIX}"


def _land(target: Target, claim: Claim | None, rows: FileRows) -> None:
    """Put the file that was written in the place of the old one, or remove that."""
    path = join(target.root, rows.fragment.path)
    with _writable(target):
        if claim is not None:
            claim.check()
        _refuse_changed(target, rows)
        if not rows.is_gone:
            target.claim.move([(_staged(target, rows), path)])
        else:
            target.claim.delete([path])
            _remove_empty_folders(target, path)


def _refuse_changed(target: Target, rows: FileRows) -> None:
    path = join(target.root, rows.fragment.path)
    try:
        stamp = stamp_at(target.filesystem, path)
    except FileNotFoundError:
        raise TableError(f"{rows.fragment.uri} vanished while rows were deleted. {_AGAIN}") from None
    refuse_changed(rows.fragment.uri, rows.fragment.stamp, stamp, "while rows were deleted", _AGAIN)


def _remove_column_files(target: Target, claim: Claim, paths: Collection[str]) -> None:
    full = [join(target.root, path) for path in paths]
    claim.delete(full)
    for path in full:
        _remove_empty_folders(target, path)


def _remove_empty_folders(target: Target, path: str) -> None:
    if not target.is_local:
        return
    folder = path.rpartition("/")[0]
    while len(folder) > len(target.root):
        try:
            Path(folder).rmdir()
        except OSError:  # it holds more
            return
        folder = folder.rpartition("/")[0]


# -- the report -------------------------------------------------------------------------------------------------------


def _removed(found: _Found) -> dict[str, int]:
    gone = sum(file.is_gone for file in found.files)
    return {"rows": found.rows.rows, "files_rewritten": len(found.files) - gone, "files_removed": gone}


def _report(table: str, request: DeleteRequest, found: _Found, changes: _Changes) -> DeleteReport:
    removed, rows = _removed(found), found.rows
    return DeleteReport(
        table=redact(table),
        dry_run=request.dry_run,
        rows=rows.rows,
        files=rows.all_files,
        row_groups=rows.all_row_groups,
        files_rewritten=removed["files_rewritten"],
        files_removed=removed["files_removed"],
        column_files_rewritten=sum(len(file.fragment.columns) for file in found.files if not file.is_gone),
        column_files_removed=changes.column_files_removed,
        by_partition=rows.by_partition,
        by_statistics=rows.by_statistics,
        by_bloom=rows.by_bloom,
        read=rows.read,
        whole=rows.whole,
        held_row_groups=rows.row_groups,
        held_bytes=rows.held_bytes,
        encoded_bytes=sum(each.encoded for each in changes.pages),
        copied_bytes=sum(each.copied for each in changes.pages),
        linked=changes.linked,
        log=changes.log,
        caches=dict(changes.caches),
        left=None,
    )


def _verified(
    report: DeleteReport, uri: str, request: DeleteRequest, changed: frozenset[str], run: Map
) -> DeleteReport:
    """Look for the rows again."""
    left: dict[str, int] = {}
    for name in (uri, *map(absolute, request.copies)):
        try:
            left[redact(name)] = _find(name, request.where, run).rows.rows
        except TableNotFoundError:
            if name != uri:
                raise
            left[redact(name)] = 0  # all rows were deleted
    left |= {folder: count_entries(folder, changed) for folder in request.caches}
    return replace(report, left=left)
