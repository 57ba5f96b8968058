"""Delete the rows of a table for which a condition is true.

Runs in: the process of the command, in threads. Rows are found first (`find_rows`) and logged (`deletion_log`). Then
each file that holds such rows is written without them (`rewrite`) into the run's own hidden folder, and moved over the
old one: at any moment a file is the old one or the new one. A file without rows left is removed. A run that ends early
leaves finished files and untouched ones, and the same command finds the rest.

One deletion at a time runs on a local table (a lock that ends with its process). The run also takes the claim of
`optimize` on the folder, so that neither changes a file of the other's.
"""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.errors import FeedlineError, TableArgumentError, TableError, TableNotFoundError
from feedline.progress import track
from feedline.warehouse.cache.maintenance import PruneReport, count_entries, prune_files
from feedline.warehouse.delete.condition import Condition, bind_condition
from feedline.warehouse.delete.deletion_log import DeletionLog, logged_files
from feedline.warehouse.delete.find_rows import FoundRows, find_rows
from feedline.warehouse.delete.rewrite import FileRows, WrittenBytes, write_without
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.discovery.logs import log_of_folder
from feedline.warehouse.optimize.landing import DELETES, Target, room_for, target_at
from feedline.warehouse.parquet.footer import file_facts
from feedline.warehouse.parquet.writer import PART_SUFFIX, upload
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.warehouse.storage.file_identity import refuse_changed, stamp_at
from feedline.warehouse.storage.locations import absolute, join, locate, redact
from feedline.warehouse.storage.parallel import Map, in_threads
from feedline.warehouse.storage.ranges import read_range
from feedline.warehouse.storage.retry import with_retries

_STAGE = "delete"
_AGAIN = "Run the same command again: it goes on with what is left"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteReport:
    """What a deletion found and did.

    rows: deleted; with a dry run, that would be. files, row_groups: of the table. files_rewritten, files_removed.
    by_partition, by_statistics, by_bloom, read, whole: row groups, as in `FoundRows`. held_row_groups, held_bytes: row
    groups with such rows, and what these weigh. encoded_bytes: of these row groups, written without the rows;
    copied_bytes: of row groups that were copied into the same files as they were. linked: files that have a further
    name on the disk, under which the old rows stay. log: its path; empty for a dry run. caches: what was pruned, by
    folder. left: rows that `verify` found in the table and in copies, by their names, and entries of files with deleted
    rows in caches.
    """

    table: str
    dry_run: bool
    rows: int
    files: int
    row_groups: int
    files_rewritten: int
    files_removed: int
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
        found, _, _ = _find(uri, request.where, run)
        return _report(table, request, found, [], 0, "", {})
    with _alone(target):
        found, condition, keys = _find(uri, request.where, run)
        _refuse_links(target, found)
        linked = _linked(target, found)
        log = DeletionLog.of(locate(uri), condition, found, keys, datetime.datetime.now(datetime.UTC))
        with _writable(target):
            log.write("running")
        try:
            written = _rewrite(target, found, run)
        except BaseException as error:
            with suppress(FeedlineError, OSError):
                log.write("failed", error=type(error).__name__)
            raise
        with _writable(target):
            log.write("done", removed=_removed(found))
    changed = logged_files(uri) if request.caches else frozenset()  # of killed runs, too, which pruned nothing
    caches = {folder: prune_files(folder, changed) for folder in request.caches}
    report = _report(table, request, found, written, linked, log.path, caches)
    return report if not request.verify else _verified(report, uri, request, changed, run)


def _find(uri: str, where: str, run: Map) -> tuple[FoundRows, Condition, frozenset[str]]:
    """The rows to delete, the condition, and the table's partition keys."""
    listing = list_table(uri)
    if listing.column_bytes:
        raise TableArgumentError(
            f"{redact(uri)} has {len(listing.column_bytes):,} column files, which hold values of its rows: expected "
            "none. Write them into a table's files with feedline optimize, delete from that one, and remove this one"
        )
    snapshot = snapshot_of(listing)
    condition = bind_condition(where, snapshot.schema)
    return find_rows(snapshot, condition, map=run), condition, frozenset(snapshot.partition_columns)


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


def _refuse_links(target: Target, found: FoundRows) -> None:
    """Raise TableError for a file that lies elsewhere: its name would be replaced, and the rows would stay."""
    if not target.is_local:
        return
    root = os.path.realpath(target.root)
    for file in found.files:
        path = join(target.root, file.fragment.path)
        real = os.path.realpath(path)
        if real != join(root, file.fragment.path):
            raise TableError(
                f"{path} is reached by a link: got a file at {real}, expected one in the table's folder. Delete from "
                "the folder that the link leads to"
            )


def _linked(target: Target, found: FoundRows) -> int:
    if not target.is_local:
        return 0
    return sum(Path(target.root, file.fragment.path).stat().st_nlink > 1 for file in found.files)


def _rewrite(target: Target, found: FoundRows, run: Map) -> list[WrittenBytes]:
    files = sorted(found.files, key=lambda file: -file.fragment.bytes)  # tasks end together
    rows = [sum(file.rows) for file in files]
    return list(track(run(partial(_replace, target), files), "deleting", rows, "rows"))


def _replace(target: Target, rows: FileRows) -> WrittenBytes:
    """Replace a file by one without its rows, or remove it."""
    fragment, filesystem = rows.fragment, target.filesystem
    path = join(target.root, fragment.path)
    with _writable(target):
        if rows.is_gone:
            _refuse_changed(target, rows)
            target.claim.delete([path])
            _remove_empty_folders(target, path)
            return WrittenBytes(copied=0, encoded=0)
        name = hashlib.sha256(fragment.path.encode()).hexdigest()[:16]
        staged = f"{target.stage(_STAGE)}/{name}{PART_SUFFIX}"
        if target.is_local:
            with filesystem.open_input_file(path) as source, filesystem.open_output_stream(staged) as sink:
                written = write_without(rows, source, sink.write)
            shutil.copymode(path, staged)
        else:
            written = _upload_without(target, rows, path, staged)
        size = filesystem.get_file_info(staged).size
        left = sum(file_facts(filesystem, staged, size, fragment.uri).rows)
        assert left == sum(rows.rows) - rows.count, f"{fragment.uri}: {left} rows"
        _refuse_changed(target, rows)
        target.claim.move([(staged, path)])
    return written


def _upload_without(target: Target, rows: FileRows, path: str, staged: str) -> WrittenBytes:
    """Write a file of a store, by way of memory."""
    filesystem, name = target.filesystem, rows.fragment.uri

    def read() -> bytes:
        with filesystem.open_input_file(path) as source:
            return read_range(source, 0, source.size())

    content = with_retries(read, filesystem, name)
    sink = pa.BufferOutputStream()
    written = write_without(rows, pa.BufferReader(content), sink.write)
    upload(filesystem, staged, sink.getvalue())
    return written


def _refuse_changed(target: Target, rows: FileRows) -> None:
    path = join(target.root, rows.fragment.path)
    try:
        stamp = stamp_at(target.filesystem, path)
    except FileNotFoundError:
        raise TableError(f"{rows.fragment.uri} vanished while rows were deleted. {_AGAIN}") from None
    refuse_changed(rows.fragment.uri, rows.fragment.stamp, stamp, "while rows were deleted", _AGAIN)


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


def _removed(found: FoundRows) -> dict[str, int]:
    gone = sum(file.is_gone for file in found.files)
    return {"rows": found.rows, "files_rewritten": len(found.files) - gone, "files_removed": gone}


def _report(
    table: str,
    request: DeleteRequest,
    found: FoundRows,
    written: Sequence[WrittenBytes],
    linked: int,
    log: str,
    caches: dict[str, PruneReport],
) -> DeleteReport:
    removed = _removed(found)
    return DeleteReport(
        table=redact(table),
        dry_run=request.dry_run,
        rows=found.rows,
        files=found.all_files,
        row_groups=found.all_row_groups,
        files_rewritten=removed["files_rewritten"],
        files_removed=removed["files_removed"],
        by_partition=found.by_partition,
        by_statistics=found.by_statistics,
        by_bloom=found.by_bloom,
        read=found.read,
        whole=found.whole,
        held_row_groups=found.row_groups,
        held_bytes=found.held_bytes,
        encoded_bytes=sum(each.encoded for each in written),
        copied_bytes=sum(each.copied for each in written),
        linked=linked,
        log=log,
        caches=caches,
        left=None,
    )


def _verified(
    report: DeleteReport, uri: str, request: DeleteRequest, changed: frozenset[str], run: Map
) -> DeleteReport:
    """Look for the rows again."""
    left: dict[str, int] = {}
    for name in (uri, *map(absolute, request.copies)):
        try:
            left[redact(name)] = _find(name, request.where, run)[0].rows
        except TableNotFoundError:
            if name != uri:
                raise
            left[redact(name)] = 0  # all rows were deleted
    left |= {folder: count_entries(folder, changed) for folder in request.caches}
    return replace(report, left=left)
