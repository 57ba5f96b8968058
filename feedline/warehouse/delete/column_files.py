"""Take rows out of column files, row by row with their base files.

Runs in: the threads of `delete`. A column file names the digest of its base file's footer, so the new ones are written
when their base files are, and one commit names them beside the old ones, before any base file is replaced. From then on
a reader takes those of the base file that it finds (`discovery.column_log`): rows and columns are the old ones, or the
new ones. The old column files are removed when all base files are replaced; what a run that was killed has left of them
is named by its log, and the next run removes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from feedline.warehouse.columns.column_writer import note_of, staged
from feedline.warehouse.columns.commit import create_commit, refuse_taken, remove_orphans
from feedline.warehouse.delete.rewrite import FileRows, WrittenFile, write_file_without
from feedline.warehouse.discovery.column_log import (
    COLUMN_FILES,
    ColumnFile,
    RewriteCommit,
    base_path,
    column_path,
)
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.claim import Claim
from feedline.warehouse.storage.locations import join
from feedline.warehouse.storage.retry import is_local


def write_column_files(claim: Claim, rows: FileRows, base: WrittenFile) -> dict[ColumnFile, WrittenFile]:
    """Write the column files of a file without the rows, below the run's own folder. rows: of the base file; base: as
    it is written anew. Raises as `write_file_without`."""
    filesystem, root = claim.location.filesystem, claim.location.path
    written = {}
    for number, file in enumerate(rows.fragment.columns):
        path = column_path(f"{claim.run}-{number}", rows.fragment.path)
        target = staged(claim, path)
        if is_local(filesystem):
            filesystem.create_dir(target.rpartition("/")[0], recursive=True)
        note = note_of(rows.fragment.path, base.digest, file.fields)
        each = write_file_without(_rows_of(rows, file), filesystem, join(root, file.path), target, note)
        new = ColumnFile(
            path=path,
            bytes=each.bytes,
            footer_digest=each.digest,
            footer_bytes=each.footer_bytes,
            base_digest=base.digest,
            fields=file.fields,
        )
        written[new] = each
    return written


def _rows_of(rows: FileRows, file: ColumnFile) -> FileRows:
    """The rows of a base file in a column file, whose row groups are the same."""
    fragment = replace(
        rows.fragment,
        path=file.path,
        bytes=file.bytes,
        mtime_ns=file.mtime_ns,
        tag="",
        footer_digest=file.footer_digest,
        footer_bytes=file.footer_bytes,
        columns=(),
    )
    return replace(rows, fragment=fragment)


def commit_column_files(claim: Claim, listing: Listing, commit: RewriteCommit) -> None:
    """Move column files into place and commit them. Raises TableError where another run writes column files."""
    location = claim.location
    refuse_taken(location, listing.columns)
    remove_orphans(location, claim, listing.columns)
    paths = [file.path for own in commit.files.values() for file in own]
    claim.move((staged(claim, path), join(location.path, path)) for path in paths)
    create_commit(location, claim, listing.columns, commit.to_json())


def column_files_on_disk(listing: Listing, bases: Iterable[str]) -> dict[str, list[str]]:
    """The column files of base files, by their paths: also those that are read no more, and in no commit."""
    found: dict[str, list[str]] = {base: [] for base in bases}
    for path in listing.column_bytes:
        if (base := base_path(path)) in found:
            found[base].append(path)
    return found


def read_column_files(snapshot: Snapshot, without: Collection[str]) -> set[str]:
    """The column files that are read, by their paths. without: base files that do not count."""
    if COLUMN_FILES not in snapshot.files.schema.names:
        return set()
    files = zip(snapshot.files["path"].to_pylist(), snapshot.files[COLUMN_FILES].to_pylist(), strict=True)
    return {entry["path"] for base, own in files if base not in without for entry in own or ()}
