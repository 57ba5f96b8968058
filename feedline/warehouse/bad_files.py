"""Record which files are corrupt, leave them out of a table, and compare them with a budget.

Runs where a snapshot is taken or a plan is made, and in `feedline check`. Findings (path, size, time, tag and, if it
could be read, the footer's digest) are kept in `work_dir/bad/files.arrow`; a file that was replaced since matches none,
nor does one that nobody can tell (`file_identity`). Only damage is a finding (`CorruptFileError`, see
`storage.faults`): never a permission, a network or a missing file. With a `ForgivingMap` a counting pass reads all
files and then raises BadFilesFoundError with all bad ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.file_identity import Stamp, known_files
from feedline.warehouse.storage.locations import absolute, join, locate, redact
from feedline.warehouse.storage.parallel import Map, in_threads

_RECORD = "bad/files.arrow"
_LISTED_FILES = 20  # the most that a message lists
_Digest: TypeAlias = bytes  # `BadFile.bytes` hides the type of that name
_SCHEMA = pa.schema(
    {
        "file": pa.string(),
        "bytes": pa.int64(),
        "mtime_ns": pa.int64(),
        "footer_digest": pa.binary(),
        "rows": pa.int64(),
        "reason": pa.string(),
        "etag": pa.string(),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile:
    """A corrupt file, as it was when it was found.

    `file`: its full name. `rows`: those in its footer, None if the footer itself is corrupt (then `footer_digest` is
    None, too). `reason`: the error, with the row group if one was read.
    """

    file: str
    bytes: int
    mtime_ns: int
    footer_digest: _Digest | None
    rows: int | None
    reason: str
    etag: str | None = None

    @property
    def is_recognised(self) -> bool:
        """Whether a later listing shows that it is still this file."""
        return Stamp(self.bytes, self.mtime_ns, self.etag or "").content_name is not None

    def line(self) -> str:
        return f"{self.file}: {self.reason}" + ("" if self.rows is not None else " (rows unknown, counted as 0)")


def reason_of(error: Exception | str, file: str) -> str:
    """An error's message without the file's name at its beginning."""
    message = str(error)
    return message.removeprefix(file).lstrip(", ") if message.startswith(file) else message


def load_findings(work_dir: str) -> dict[str, BadFile]:
    """All recorded findings, by file. Raises CorruptFileError if the record itself is damaged."""
    return {bad.file: bad for bad in _load(work_dir, _RECORD)}


def record_findings(work_dir: str, findings: Iterable[BadFile], *, good_files: Iterable[str] = ()) -> None:
    """Add findings to the record, and remove those about `good_files`. In a store, which has no locks, another process
    that records at the same moment may undo that."""
    new, good = {bad.file: bad for bad in findings}, frozenset(good_files)

    def updated(before: dict[str, BadFile]) -> dict[str, BadFile]:
        return {file: bad for file, bad in {**before, **new}.items() if file not in good}

    if (recorded := load_findings(work_dir)) == updated(recorded):
        return
    with content_store.lock_file(locate(absolute(work_dir)), _RECORD):
        after = updated(load_findings(work_dir))
        content_store.create(work_dir, _RECORD, [_table(sorted(after.values(), key=lambda bad: bad.file))])


def save_skipped(work_dir: str, snapshot: str, skipped: Sequence[BadFile]) -> None:
    """Save the list of files left out of a snapshot, if there are any."""
    if skipped or load_skipped(work_dir, snapshot):
        content_store.create(work_dir, _skipped_name(snapshot), [_table(skipped)])


def load_skipped(work_dir: str, snapshot: str) -> tuple[BadFile, ...]:
    return tuple(_load(work_dir, _skipped_name(snapshot)))


def leave_out(listing: Listing, findings: Mapping[str, BadFile]) -> tuple[Listing, list[BadFile]]:
    """A listing without the files of recorded findings that have not changed since; and these findings."""
    if not findings:
        return listing, []
    matches = _matches(listing.uri, listing.files, findings)
    if not matches:
        return listing, []
    return listing.take(np.setdiff1d(np.arange(len(listing.files)), list(matches))), list(matches.values())


def findings_in(snapshot: Snapshot, findings: Mapping[str, BadFile]) -> dict[str, BadFile]:
    """The findings about files of a snapshot, by path below its root."""
    if not findings:
        return {}
    paths, matches = snapshot.files["path"], _matches(snapshot.uri, snapshot.files, findings)
    return {paths[index].as_py(): bad for index, bad in matches.items()}


def refuse_too_many(
    table: str, skipped: Sequence[BadFile], *, max_files: int | None = None, max_rows: int | None = None
) -> None:
    """Raise CorruptFileError, listing the files, if more is left out than allowed."""
    rows = sum(bad.rows or 0 for bad in skipped)
    for what, key, got, limit in (
        ("bad files", "max_bad_files", len(skipped), max_files),
        ("rows in bad files", "max_bad_rows", rows, max_rows),
    ):
        if limit is not None and got > limit:
            raise CorruptFileError(
                f"{table} has more {what} than source.{key} allows: got {got:,}, expected at most {limit:,}. "
                f"Restore them, or raise the limit.\n{list_findings(skipped)}"
            )


def all_bad_error(table: str, skipped: Sequence[BadFile]) -> CorruptFileError:
    """The error for a table whose files are all bad."""
    return CorruptFileError(
        f"{table} has no file that can be read: all {len(skipped):,} are bad. Restore them.\n{list_findings(skipped)}"
    )


def list_findings(skipped: Sequence[BadFile]) -> str:
    """Findings, one per line; the first 20 of many."""
    lines = [f"  {bad.line()}" for bad in skipped[:_LISTED_FILES]]
    if len(skipped) > _LISTED_FILES:
        lines.append(f"  and {len(skipped) - _LISTED_FILES:,} more")
    return "\n".join(lines)


class BadFilesFoundError(Exception):
    """Files turned out to be corrupt. Internal: the caller of the map leaves them out. `reasons`: by path."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(f"{len(reasons)} corrupt files: {', '.join(sorted(reasons)[:10])}")
        self.reasons = reasons


class ForgivingMap:
    """`map(function, tasks)` over tasks with `fragments`, whose results are one value per row group.

    If files are corrupt, raises BadFilesFoundError after all others were read; other errors are raised at once.
    """

    def __init__(self, map: Map | None = None) -> None:
        self._map = map or in_threads
        self._results: dict[Fragment, tuple[Any, ...]] = {}

    def __call__(self, function: Callable[[Any], Any], tasks: list[Any]) -> list[tuple[Any, ...]]:
        unread = [[fragment for fragment in task.fragments if fragment not in self._results] for task in tasks]
        remaining = [replace(task, fragments=tuple(rest)) for task, rest in zip(tasks, unread, strict=True) if rest]
        bad: dict[str, str] = {}
        for task, results in zip(remaining, self._map(partial(each_fragment, function), remaining), strict=True):
            for fragment, (values, reason) in zip(task.fragments, results, strict=True):
                if reason is None:
                    self._results[fragment] = values
                else:
                    bad.setdefault(fragment.path, reason)
        if bad:
            raise BadFilesFoundError(bad)
        return [tuple(value for fragment in task.fragments for value in self._results[fragment]) for task in tasks]


def each_fragment(function: Callable[[Any], Any], task: Any) -> list[tuple[tuple[Any, ...], str | None]]:
    """Run a task fragment by fragment; for each (values, None), or ((), reason) if its file is corrupt."""
    results: list[tuple[tuple[Any, ...], str | None]] = []
    for fragment in task.fragments:
        try:
            results.append((tuple(function(replace(task, fragments=(fragment,)))), None))
        except CorruptFileError as error:
            results.append(((), reason_of(error, fragment.uri)))
    return results


def _matches(uri: str, files: pa.Table, findings: Mapping[str, BadFile]) -> dict[int, BadFile]:
    root = join(redact(uri), "")
    below = [bad for name, bad in findings.items() if name.startswith(root)]
    known = known_files(files, _table(below).append_column("path", [[bad.file[len(root) :] for bad in below]]))
    return {index: below[known.index[index]] for index in np.flatnonzero(known.same).tolist()}


def _skipped_name(snapshot: str) -> str:
    return f"skipped/{snapshot}.arrow"


def _load(work_dir: str, name: str) -> list[BadFile]:
    try:
        (table,) = content_store.load(work_dir, name, tables=1)
    except FileNotFoundError:
        return []
    return [BadFile(**row) for row in table.to_pylist()]


def _table(findings: Iterable[BadFile]) -> pa.Table:
    return pa.Table.from_pylist([asdict(bad) for bad in findings], schema=_SCHEMA)
