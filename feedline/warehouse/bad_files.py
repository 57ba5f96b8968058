"""Remember which files are corrupt, leave them out of a table, and hold them against a budget.

Runs where a snapshot is taken or a plan is made, and in `feedline check`. A finding describes a file at one moment:
path, size, modification time and, where it could be read, the digest of its footer. Findings are kept in
`work_dir/bad/files.arrow`, so that later plans leave those files out without reading them; a file that was replaced
since matches no finding and is read again. Where a store has no modification times, the footer's digest decides.

A counting pass ends at the first corrupt file; over a `ForgivingMap` it reads all the others as well, and only then
raises BadFilesMetError with all of them. A second pass over the other files finds every count known already, so a bad
file costs no second reading.

Only damage makes a finding (`CorruptFileError`, see `storage.faults`): never a permission, a network or a missing file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from feedline.errors import CorruptFileError
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import join, redact
from feedline.warehouse.storage.parallel import Map, in_threads

_RECORD = "bad/files.arrow"
_SHOWN = 20  # files that a message lists
_Digest: TypeAlias = bytes  # `BadFile.bytes` hides the type of that name
_SCHEMA = pa.schema(
    {
        "file": pa.string(),
        "bytes": pa.int64(),
        "mtime_ns": pa.int64(),
        "footer_digest": pa.binary(),
        "rows": pa.int64(),
        "reason": pa.string(),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile:
    """A corrupt file, as it was when it was found.

    `file`: its full name. `rows`: those that its footer states, None where the footer itself is corrupt (then
    `footer_digest` is None, too). `reason`: what is wrong, row group included where one was read.
    """

    file: str
    bytes: int
    mtime_ns: int
    footer_digest: _Digest | None
    rows: int | None
    reason: str

    def line(self) -> str:
        """The finding as a line of a message."""
        return f"{self.file}: {self.reason}" + ("" if self.rows is not None else " (rows unknown, counted as 0)")


class SnapshotFiles(Protocol):
    """The parts of a snapshot that are needed here."""

    @property
    def uri(self) -> str: ...
    @property
    def files(self) -> pa.Table: ...


def reason_of(error: Exception | str, file: str) -> str:
    """An error's message without the file's name at its beginning."""
    text = str(error)
    return text.removeprefix(file).lstrip(", ") if text.startswith(file) else text


def load_findings(work_dir: str) -> dict[str, BadFile]:
    """All findings so far, by file. Raises CorruptFileError where the record itself is damaged."""
    return {bad.file: bad for bad in _load(work_dir, _RECORD)}


def remember(work_dir: str, found: Iterable[BadFile], *, sound: Iterable[str] = ()) -> None:
    """Add findings to the record, and forget those about files that are `sound`."""
    before = load_findings(work_dir)
    after = {**before, **{bad.file: bad for bad in found}}
    for file in sound:
        after.pop(file, None)
    if after != before:
        content_store.create(work_dir, _RECORD, [_table(sorted(after.values(), key=lambda bad: bad.file))])


def save_skipped(work_dir: str, snapshot: str, skipped: Sequence[BadFile]) -> None:
    """Keep the list of files left out of a snapshot, for whoever loads it (mostly empty)."""
    if skipped or load_skipped(work_dir, snapshot):
        content_store.create(work_dir, _skipped_name(snapshot), [_table(skipped)])


def load_skipped(work_dir: str, snapshot: str) -> tuple[BadFile, ...]:
    """The files left out of a snapshot."""
    return tuple(_load(work_dir, _skipped_name(snapshot)))


def leave_out(listing: Listing, known: Mapping[str, BadFile]) -> tuple[Listing, list[BadFile]]:
    """A listing without the files that are known to be bad and have not changed since; and these."""
    if not known:
        return listing, []
    found = _matches(listing.uri, listing.files, known)
    found = {index: bad for index, bad in found.items() if bad.mtime_ns >= 0}
    if not found:
        return listing, []
    return listing.take(np.setdiff1d(np.arange(len(listing.files)), list(found))), list(found.values())


def findings_in(snapshot: SnapshotFiles, known: Mapping[str, BadFile]) -> dict[str, BadFile]:
    """The files of a snapshot that are known to be bad, by their path below its root."""
    if not known:
        return {}
    paths, digests = snapshot.files["path"], snapshot.files["footer_digest"]
    found = _matches(snapshot.uri, snapshot.files, known)
    return {
        paths[index].as_py(): bad
        for index, bad in found.items()
        if bad.footer_digest in (None, digests[index].as_py()) and (bad.mtime_ns >= 0 or bad.footer_digest is not None)
    }


def refuse_too_many(
    table: str, skipped: Sequence[BadFile], *, max_files: int | None = None, max_rows: int | None = None
) -> None:
    """Raise CorruptFileError, listing the files, where more is left out than allowed."""
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


def refuse_all(table: str, skipped: Sequence[BadFile]) -> CorruptFileError:
    """The error for a table of which no file is left."""
    return CorruptFileError(
        f"{table} has no file that can be read: all {len(skipped):,} are bad. Restore them.\n{list_findings(skipped)}"
    )


def list_findings(skipped: Sequence[BadFile]) -> str:
    """Findings, one per line; the first 20 of many."""
    lines = [f"  {bad.line()}" for bad in skipped[:_SHOWN]]
    if len(skipped) > _SHOWN:
        lines.append(f"  and {len(skipped) - _SHOWN:,} more")
    return "\n".join(lines)


class BadFilesMetError(Exception):
    """Files turned out to be corrupt; internal: whoever made the map leaves them out. `reasons`: by path."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(f"{len(reasons)} corrupt files: {', '.join(sorted(reasons)[:10])}")
        self.reasons = reasons


class ForgivingMap:
    """`map(function, tasks)` over tasks with `fragments`, whose results are one value per row group.

    Raises BadFilesMetError after everything else was read, where files were corrupt; all other errors at once.
    """

    def __init__(self, map: Map | None = None) -> None:
        self._map = map or in_threads
        self._known: dict[Fragment, tuple[Any, ...]] = {}

    def __call__(self, function: Callable[[Any], Any], tasks: list[Any]) -> list[tuple[Any, ...]]:
        """The results in the order of the tasks."""
        unread = [[fragment for fragment in task.fragments if fragment not in self._known] for task in tasks]
        left = [replace(task, fragments=tuple(rest)) for task, rest in zip(tasks, unread, strict=True) if rest]
        bad: dict[str, str] = {}
        for task, results in zip(left, self._map(partial(each_fragment, function), left), strict=True):
            for fragment, (values, reason) in zip(task.fragments, results, strict=True):
                if reason is None:
                    self._known[fragment] = values
                else:
                    bad.setdefault(fragment.path, reason)
        if bad:
            raise BadFilesMetError(bad)
        return [tuple(value for fragment in task.fragments for value in self._known[fragment]) for task in tasks]


def each_fragment(function: Callable[[Any], Any], task: Any) -> list[tuple[tuple[Any, ...], str | None]]:
    """Run a task one fragment at a time: for each (values, None), or ((), reason) where it is corrupt."""
    results: list[tuple[tuple[Any, ...], str | None]] = []
    for fragment in task.fragments:
        try:
            results.append((tuple(function(replace(task, fragments=(fragment,)))), None))
        except CorruptFileError as error:
            results.append(((), reason_of(error, fragment.uri)))
    return results


def _matches(uri: str, files: pa.Table, known: Mapping[str, BadFile]) -> dict[int, BadFile]:
    """Which files are those of a finding, by name, size and time: index and finding."""
    root = redact(uri)
    found = {}
    for index, path in enumerate(files["path"].to_pylist()):
        bad = known.get(join(root, path))
        if bad is None:
            continue
        facts = files.slice(index, 1)
        if (bad.bytes, bad.mtime_ns) == (facts["bytes"][0].as_py(), facts["mtime_ns"][0].as_py()):
            found[index] = bad
    return found


def _skipped_name(snapshot: str) -> str:
    return f"skipped/{snapshot}.arrow"


def _load(work_dir: str, name: str) -> list[BadFile]:
    try:
        (table,) = content_store.load(work_dir, name, tables=1)
    except FileNotFoundError:
        return []
    return [BadFile(**row) for row in table.to_pylist()]


def _table(found: Iterable[BadFile]) -> pa.Table:
    rows = [{name: getattr(bad, name) for name in _SCHEMA.names} for bad in found]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)
