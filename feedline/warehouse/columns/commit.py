"""Commit changes of a table's column files: one run at a time, each commit whole and created last.

Runs in the caller's process, for whatever writes column files: `columns add`, `columns drop`, and deletions of rows. A
run takes the claim on the table's column files, writes files below its own hidden folder, moves them below
`_columns/files`, and creates the next commit, unless another run has.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.fs as pafs

from feedline.errors import FeedlineError, TableError
from feedline.warehouse.discovery.column_log import FILES, ColumnLog, commit_name
from feedline.warehouse.optimize.landing import room_for
from feedline.warehouse.storage.claim import Claim
from feedline.warehouse.storage.content_store import put
from feedline.warehouse.storage.locations import Location, delete_folder, join, list_folder, redact
from feedline.warehouse.storage.retry import is_local

HIDDEN = "_columns_writing"
_CLAIM = "columns"


@contextmanager
def claimed(location: Location) -> Iterator[Claim]:
    claim = Claim(uri=location.uri, hidden=HIDDEN, file=_CLAIM, name=redact(location.uri))
    with room_for(location.uri):
        claim.take()
    try:
        yield claim
    finally:
        claim.release()


def create_commit(location: Location, claim: Claim, before: ColumnLog | None, content: bytes) -> int:
    """Create the next commit, unless another run has. Returns its number."""
    claim.check()
    number = (before.commits if before else 0) + 1
    name = commit_name(number)
    with room_for(location.uri):
        if is_local(location.filesystem):
            _create(Path(join(location.path, name)), content)
        else:
            refuse_taken(location, before)
            put(location, name, [content])
    return number


def refuse_taken(location: Location, before: ColumnLog | None) -> None:
    """Raise TableError if the commit after these exists."""
    name = commit_name((before.commits if before else 0) + 1)
    if location.filesystem.get_file_info(join(location.path, name)).type != pafs.FileType.NotFound:
        raise _taken_error(name)


def _create(path: Path, content: bytes) -> None:
    """Create a file whole. Raises TableError if it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with aside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(aside, path)
    except FileExistsError:
        raise _taken_error(path.name) from None
    finally:
        aside.unlink(missing_ok=True)


def _taken_error(name: str) -> TableError:
    return TableError(
        f"commit {name} was created by another run meanwhile: expected none. Run the command again, one at a time"
    )


def remove_orphans(location: Location, claim: Claim, log: ColumnLog | None) -> None:
    """Remove column files of runs that were killed before their commit, as far as possible."""
    files = location.filesystem
    runs = {path[len(FILES) + 1 :].partition("/")[0] for path in (log.paths if log else ())}
    with suppress(OSError, FeedlineError):
        for info in list_folder(files, join(location.path, FILES), allow_not_found=True):
            if info.type == pafs.FileType.Directory and info.base_name not in {*runs, claim.run}:
                claim.check()
                delete_folder(files, info.path)
