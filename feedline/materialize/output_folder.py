"""The folder to which features are written: checked, filled, and visible as a whole.

Runs in: the process that materializes; `OutputRef` in the tasks. On a local disk everything is written into a hidden
folder beside OUT, which takes OUT's place when it is complete. In a store, and where OUT is a mount point or its parent
may not be written, files are written in place. The marker is written last, and a folder without it is not whole:
`_materialized.json`, or `zarr.json` where the folder is a zarr group, in which other files would be warned of.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from feedline.errors import FeedlineError, StoreError, TableArgumentError, TableError
from feedline.warehouse.storage.content_store import get, put
from feedline.warehouse.storage.exchange import exchange
from feedline.warehouse.storage.faults import explain_errors, safe_message
from feedline.warehouse.storage.locations import Location, absolute, join, locate, redact
from feedline.warehouse.storage.retry import is_local, with_retries

MARKER = "_materialized.json"
ROOT_GROUP = "zarr.json"
PROGRAM = "feedline materialize"
UNFINISHED = "_unfinished"
_TOKEN = f"{UNFINISHED}/materialize"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRef:
    """Where tasks write. uri: the folder. name: OUT, for messages. token: proves that a worker sees the same folder."""

    uri: str
    name: str
    token: str

    @property
    def location(self) -> Location:
        return locate(self.uri)

    def check(self) -> None:
        """Raise TableError where this process does not see the folder that was begun."""
        try:
            token = bytes(memoryview(get(self.location, _TOKEN)))
        except (FileNotFoundError, TableError) as error:
            if isinstance(error, StoreError) and not isinstance(error, FileNotFoundError):
                raise
            token = b""
        if token != self.token.encode():
            raise TableError(
                f"{self.name} is another folder on the worker {os.uname().nodename}: expected one that all workers "
                "share. Name a folder of a shared file system, or a URI"
            )


class OutputFolder:
    """One OUT. Raises TableArgumentError, when created, if it may not be written; nothing is changed before `begin`."""

    def __init__(self, out: str, *, overwrite: bool) -> None:
        uri = absolute(out)
        location = locate(uri)
        self.name = redact(uri)
        self._local = is_local(location.filesystem)
        self._final = location if not self._local else _local(os.path.realpath(location.path))
        self._overwrite = overwrite
        self._replaces = _check_contents(self._final, self.name, overwrite=overwrite)
        self._in_place = not self._local or _must_stay(self._final.path)
        folder = self._final if self._in_place else _local(_hidden(self._final.path))
        self._token = secrets.token_hex(8)
        self.ref = OutputRef(uri=folder.uri, name=self.name, token=self._token)

    def begin(self) -> OutputRef:
        """Create the folder that is written; in place, the former content is deleted."""
        self._replaces = _check_contents(self._final, self.name, overwrite=self._overwrite)  # fits may take hours
        with explain_writes(self.name):
            if self._in_place and self._replaces:
                for marker in (MARKER, ROOT_GROUP):
                    self._delete(f"{self._final.path}/{marker}")
                self._final.filesystem.delete_dir_contents(self._final.path)
            if self._local:
                Path(self.ref.location.path).mkdir(parents=True, exist_ok=True)
            put(self.ref.location, _TOKEN, [self._token.encode()])
        return self.ref

    def finish(self, facts: Mapping[str, Any], *, group: bool) -> None:
        """Delete the parts, write the facts as the marker, and put the folder in its place. group: it is of zarr."""
        facts = {"program": PROGRAM, **facts}
        content = {"zarr_format": 3, "node_type": "group", "attributes": facts} if group else facts
        location = self.ref.location
        with explain_writes(self.name):
            location.filesystem.delete_dir(join(location.path, UNFINISHED))
            marker = json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"
            put(location, ROOT_GROUP if group else MARKER, [marker])
            if not self._in_place:
                _move(location.path, self._final.path, replaces=self._replaces)

    def discard(self) -> None:
        """Delete what was written, as far as possible."""
        location = self.ref.location
        with suppress(OSError, FeedlineError):
            if self._in_place:
                location.filesystem.delete_dir_contents(location.path, missing_dir_ok=True)
            else:
                shutil.rmtree(location.path, ignore_errors=True)

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._final.filesystem.delete_file(path)


@contextmanager
def explain_writes(name: str) -> Iterator[None]:
    """Turn an OSError of the body (disk full, access denied) into a TableError with a remedy."""
    try:
        yield
    except FeedlineError:
        raise
    except OSError as error:
        text = safe_message(error)
        if error.errno in _FULL or "No space left" in text:
            raise TableError(
                f"{name} has no space left: {text}. Nothing was kept; make room, or name another folder"
            ) from error
        raise TableArgumentError(
            f"{name} could not be written: {text}. Name a folder that may be written, or make room for it"
        ) from error


def _local(path: str) -> Location:
    return Location(path, pafs.LocalFileSystem(), path)


def _hidden(path: str) -> str:
    parent, name = os.path.split(path)
    return os.path.join(parent, f".{name}.{secrets.token_hex(4)}.materialize")


def _must_stay(path: str) -> bool:
    """Whether another folder cannot take the place of this one."""
    return Path(path).is_dir() and (os.path.ismount(path) or not os.access(os.path.dirname(path), os.W_OK))


def _check_contents(location: Location, name: str, *, overwrite: bool) -> bool:
    """Whether the folder holds features of an earlier run, which `overwrite` replaces."""
    filesystem, path = location.filesystem, location.path
    with explain_errors(name, fetching=True):
        kind = with_retries(lambda: filesystem.get_file_info(path), filesystem, name).type
        if kind == pafs.FileType.File:
            raise TableArgumentError(f"{name} is a file: expected a folder, or nothing there. Name another folder")
        selector = pafs.FileSelector(path, allow_not_found=True)
        found = with_retries(lambda: filesystem.get_file_info(selector), filesystem, name)
    names = sorted(info.base_name for info in found if info.path.rstrip("/") != path.rstrip("/"))
    if not names:
        return False
    if not _is_ours(location, names):
        raise TableArgumentError(
            f"{name} is not empty: it holds {names[0]!r}, which feedline materialize did not write. "
            "Name an empty or missing folder"
        )
    if not overwrite:
        raise TableArgumentError(
            f"{name} holds features already: expected an empty or missing folder. Add --overwrite to replace them"
        )
    return True


def _is_ours(location: Location, names: list[str]) -> bool:
    for marker in (MARKER, ROOT_GROUP):
        with suppress(ValueError, OSError, TableError):
            content = json.loads(bytes(memoryview(get(location, marker)))) if marker in names else {}
            if PROGRAM in (content.get("program"), content.get("attributes", {}).get("program")):
                return True
    return bool(location.filesystem.get_file_info(join(location.path, _TOKEN)).type == pafs.FileType.File)


def _move(folder: str, final: str, *, replaces: bool) -> None:
    """Put a folder in the place of an empty, a missing or a replaced one."""
    if not replaces:
        Path(folder).rename(final)  # also over an empty folder
        return
    if exchange(folder, final):
        shutil.rmtree(folder, ignore_errors=True)
        return
    old = f"{folder}.old"
    Path(final).rename(old)
    try:
        Path(folder).rename(final)
    except OSError:
        Path(old).rename(final)
        raise
    shutil.rmtree(old, ignore_errors=True)
