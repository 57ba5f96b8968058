"""Keep a log of each deletion in the table: what was asked, what was found, and what was removed.

Runs in: the process of `delete`, and of `cache prune`. A log is a JSON file below the hidden folder `_deletes`, written
when rows are found, before any file changes, and again at the end; so one whose `state` is "running" is of a run that
was killed. It names the files with such rows, and all column files of these. It holds no value of a list, only how many
there are and the sha256 of its file; literals of the condition are left out, but for those that are compared with
partition keys.
"""

from __future__ import annotations

import datetime
import json
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, TableArgumentError
from feedline.warehouse.delete.condition import Condition, text_for_log
from feedline.warehouse.delete.find_rows import FoundRows
from feedline.warehouse.optimize.landing import DELETES
from feedline.warehouse.storage.content_store import get, put
from feedline.warehouse.storage.faults import explain_errors
from feedline.warehouse.storage.locations import Location, absolute, join, locate, redact

_VERSION = 1
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionLog:
    """The log of one run. name: of its file. asked, found: plain values."""

    location: Location
    name: str
    asked: dict[str, Any]
    found: dict[str, Any]

    @classmethod
    def of(
        cls,
        location: Location,
        condition: Condition,
        found: FoundRows,
        keys: Collection[str],
        columns: Mapping[str, Sequence[str]],
        now: datetime.datetime,
    ) -> DeletionLog:
        """The log of a run that begins. keys: the table's partition keys. columns: of each file, its column files."""
        lists = [
            {"file": redact(each.file), "column": each.column, "values": each.count, "sha256": each.digest}
            for each in condition.lists.values()
        ]
        asked = {"at": now.isoformat(), "where": text_for_log(condition, frozenset(keys)), "lists": lists}
        files = [
            {
                "path": file.fragment.path,
                "rows": sum(file.rows),
                "deleted": file.count,
                "is_removed": file.is_gone,
                "column_files": columns[file.fragment.path],
            }
            for file in found.files
        ]
        counts = {"rows": found.rows, "row_groups": found.row_groups, "bytes": found.held_bytes}
        name = f"{now:%Y%m%dT%H%M%S%fZ}-{secrets.token_hex(4)}{_SUFFIX}"
        return cls(location=location, name=name, asked=asked, found={**counts, "files": files})

    @property
    def path(self) -> str:
        return join(redact(self.location.uri), f"{DELETES}/{self.name}")

    def write(self, state: str, **removed: Any) -> None:
        """Write it, or replace it. state: "running", "done" or "failed"."""
        document = {"version": _VERSION, "state": state, "asked": self.asked, "found": self.found, **removed}
        content = json.dumps(document, indent=1).encode()
        put(self.location, f"{DELETES}/{self.name}", [content])


def logged_files(table: str) -> frozenset[str]:
    """The files and their column files, as paths or URIs, of which the logs of a table say that rows of them were to be
    deleted.

    Raises TableArgumentError for a table without logs, as a wrong name must not look done, and CorruptFileError for a
    log that cannot be read: it may name files.
    """
    location = locate(absolute(table))
    files: set[str] = set()
    logs = list(_logs(location))
    if not logs:
        raise TableArgumentError(
            f"{redact(location.uri)} has no log of a deletion: expected a table from which feedline delete took rows. "
            "Name its folder"
        )
    for base, columns in _files_in(logs):
        files.update(join(redact(location.uri), path) for path in (base, *columns))
    return frozenset(files)


def logged_column_files(location: Location) -> set[str]:
    """The column files, as paths below a table's root, of which its logs say that rows of them were to be deleted.
    Raises CorruptFileError as `logged_files`."""
    return {path for _, columns in _files_in(_logs(location)) for path in columns}


def _files_in(logs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """The files of logs, each with its column files."""
    for name, document in logs:
        try:
            files = [(file["path"], file["column_files"]) for file in document["found"]["files"]]
        except (KeyError, TypeError):
            raise _unreadable(name) from None
        yield from files


def _logs(location: Location) -> Iterator[tuple[str, Any]]:
    folder = join(location.path, DELETES)
    with explain_errors(redact(location.uri)):
        infos = location.filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    for info in infos:
        if info.type == pafs.FileType.File and info.base_name.endswith(_SUFFIX):
            name = f"{DELETES}/{info.base_name}"
            try:
                yield name, json.loads(bytes(memoryview(get(location, name))))
            except ValueError:
                raise _unreadable(name) from None


def _unreadable(name: str) -> CorruptFileError:
    return CorruptFileError(
        f"{name} is no log of a deletion: expected JSON as feedline delete writes it. Restore it, or move it away and "
        "prune caches by --table"
    )
