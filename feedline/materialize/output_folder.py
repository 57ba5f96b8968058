"""The folder to which features are written: checked, filled, and visible as a whole.

Runs in: the process that materializes; `OutputRef` in the tasks. On a local disk everything is written into a hidden
folder beside OUT, and what is complete takes OUT's place. In a store, and where OUT is a mount point or its parent may
not be written, it is written below `OUT/_unfinished`, and its files are moved (in a store: copied by the store) when
all are there, by the run that has the folder's claim. The marker is written last, and a folder without it is not whole:
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
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from feedline.blocks.compute import run_block
from feedline.blocks.jobs import compile_job
from feedline.blocks.request import BlockRequest, Job
from feedline.dataclass import dataclass
from feedline.errors import FeedlineError, TableArgumentError, TableError
from feedline.loader.encoding.encoded_rows import EncodedRows, expand, with_values
from feedline.loader.encoding.quality import Quality
from feedline.warehouse.storage.claim import Claim, delete
from feedline.warehouse.storage.content_store import get, put
from feedline.warehouse.storage.faults import explain_errors, safe_message
from feedline.warehouse.storage.locations import (
    Location,
    absolute,
    info_of,
    join,
    list_folder,
    list_tree,
    locate,
    redact,
)
from feedline.warehouse.storage.retry import is_local, with_retries
from feedline.warehouse.storage.whole_file import exchange

MARKER = "_materialized.json"
ROOT_GROUP = "zarr.json"
PROGRAM = "feedline materialize"
UNFINISHED = "_unfinished"
_CLAIM = "materialize"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRef:
    """Where tasks write. name: OUT, for messages. claim: of the folder that they see."""

    name: str
    claim: Claim

    @property
    def files(self) -> Location:
        """The folder of this run's finished files."""
        return self.claim.own("files")

    @property
    def run(self) -> str:
        return self.claim.run

    def check(self) -> None:
        """Raise TableError where this process does not see the folder that was begun, or another run has it by now."""
        holder = self.claim.holder()
        if not holder:
            raise TableError(
                f"{self.name} is another folder on the worker {os.uname().nodename}, or another run has written it "
                "meanwhile: expected one that all workers share, and one run at a time. Name a folder of a shared file "
                "system, or a URI"
            )
        if holder != self.run:
            self.claim.check()


class OutputFolder:
    """One OUT. Raises TableArgumentError, when created, if it may not be written; nothing is changed before `begin`."""

    def __init__(self, out: str, *, overwrite: bool) -> None:
        uri = absolute(out)
        location = locate(uri)
        self.name = redact(uri)
        self._local = is_local(location.filesystem)
        self._final = location if not self._local else _local(os.path.realpath(location.path))
        self._overwrite = overwrite
        _check_contents(self._final, self.name, overwrite=overwrite)
        self._in_place = not self._local or _must_stay(self._final.path)
        folder = self._final if self._in_place else _local(_hidden(self._final.path))
        self.ref = OutputRef(
            name=self.name, claim=Claim(uri=folder.uri, hidden=UNFINISHED, file=_CLAIM, name=self.name)
        )
        self._before = b""  # the marker that is replaced
        self._moved: list[str] = []

    def begin(self) -> OutputRef:
        """Create the folder that is written; in place, the former content is deleted."""
        _check_contents(self._final, self.name, overwrite=self._overwrite)  # fits may take hours
        self._before = _marker(self._final)
        with explain_writes(self.name):
            if self._local:
                Path(self.ref.claim.location.path).mkdir(parents=True, exist_ok=True)
            self.ref.claim.take()
            if self._in_place:
                self._empty()
        return self.ref

    def finish(self, facts: Mapping[str, Any], *, group: bool) -> None:
        """Put all files in their place, and write the facts as the marker. group: it is of zarr.

        Raises TableError where another run has written OUT, or has begun to.
        """
        facts = {"program": PROGRAM, **facts, "run": self.ref.run}
        content = {"zarr_format": 3, "node_type": "group", "attributes": facts} if group else facts
        name = ROOT_GROUP if group else MARKER
        marker = json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"
        files = self.ref.files
        with explain_writes(self.name):
            if self._in_place:
                self._publish(name, marker)
                return
            put(files, name, [marker])
            if (present := _marker(self._final)) != self._before:
                raise TableError(
                    f"{self.name} was written by another run meanwhile: got the run {_run_of(present)}, expected the "
                    "folder as it was when this run began. Let one run at a time write there"
                )
            _move(files.path, self._final.path, replaces=bool(present))
            shutil.rmtree(self.ref.claim.uri, ignore_errors=True)

    def discard(self) -> None:
        """Delete what this run wrote, as far as possible, and nothing of another's."""
        claim = self.ref.claim
        if not self._in_place:
            shutil.rmtree(claim.uri, ignore_errors=True)
            return
        with suppress(OSError, FeedlineError):
            claim.delete(self._moved)
        claim.release()

    def _empty(self) -> None:
        filesystem, path = self._final.filesystem, self._final.path
        infos = list_folder(filesystem, path)
        for info in sorted(infos, key=lambda each: each.base_name not in (MARKER, ROOT_GROUP)):
            if info.base_name != UNFINISHED and info.path.rstrip("/") != path.rstrip("/"):
                with suppress(FileNotFoundError):
                    delete(filesystem, info)

    def _publish(self, name: str, marker: bytes) -> None:
        """Move all files, and delete any that a run which lost the claim has still moved; then write the marker."""
        claim, final = self.ref.claim, self._final
        claim.check()
        files = _paths(self.ref.files)
        self._moved = [join(final.path, each) for each in files]
        claim.move((join(self.ref.files.path, each), join(final.path, each)) for each in files)
        foreign = (each for each in _paths(final) if not each.startswith(f"{UNFINISHED}/"))
        claim.delete(join(final.path, each) for each in set(foreign) - set(files))
        claim.check()
        self._moved.append(join(final.path, name))
        put(final, name, [marker])
        try:
            claim.check()  # who takes it deletes markers after that
        except TableError:
            if _run_of(_marker(final)) == self.ref.run:
                final.filesystem.delete_file(join(final.path, name))
            raise
        claim.release()


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


def _check_contents(location: Location, name: str, *, overwrite: bool) -> None:
    """Raise TableArgumentError where the folder holds anything but features of an earlier run, which `overwrite`
    replaces."""
    filesystem, path = location.filesystem, location.path
    with explain_errors(name, fetching=True):
        kind = with_retries(lambda: info_of(filesystem, path), filesystem, name).type
        if kind == pafs.FileType.File:
            raise TableArgumentError(f"{name} is a file: expected a folder, or nothing there. Name another folder")
        infos = with_retries(lambda: list_folder(filesystem, path, allow_not_found=True), filesystem, name)
    names = sorted(info.base_name for info in infos if info.path.rstrip("/") != path.rstrip("/"))
    if not names:
        return
    if not _is_ours(location, names):
        raise TableArgumentError(
            f"{name} is not empty: it holds {names[0]!r}, which feedline materialize did not write. "
            "Name an empty or missing folder"
        )
    if not overwrite:
        raise TableArgumentError(
            f"{name} holds features already: expected an empty or missing folder. Add --overwrite to replace them"
        )


def _is_ours(location: Location, names: list[str]) -> bool:
    if (MARKER in names or ROOT_GROUP in names) and _marker(location):
        return True
    claim = location.filesystem.get_file_info(join(location.path, f"{UNFINISHED}/{_CLAIM}"))
    return bool(claim.type == pafs.FileType.File)


def _marker(location: Location) -> bytes:
    """The content of the marker that `feedline materialize` wrote; empty where there is none."""
    for name in (MARKER, ROOT_GROUP):
        with suppress(ValueError, AttributeError, OSError, TableError):
            content = bytes(memoryview(get(location, name)))
            if _facts(content).get("program") == PROGRAM:
                return content
    return b""


def _facts(marker: bytes) -> dict[str, Any]:
    content = json.loads(marker)
    attributes: dict[str, Any] = content.get("attributes", content)
    return attributes


def _run_of(marker: bytes) -> str:
    return str(_facts(marker).get("run", "")) if marker else ""


def _paths(location: Location) -> list[str]:
    start = len(location.path.rstrip("/")) + 1
    return [info.path[start:] for info in list_tree(location) if info.type == pafs.FileType.File]


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


# --------------------------------------------------------------------------------------------------------------------
# The rows of a block for files: in plan order, and without deduplicated groups.


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesJob:
    """What all tasks share. job: of blocks. output: where they write."""

    job: Job
    output: OutputRef


@dataclass(frozen=True, slots=True)
class NumberedBlock:
    """The rows of one task: the number of their part, and what is read."""

    number: int
    request: BlockRequest


def finished_rows(job: Job, block: NumberedBlock) -> tuple[list[EncodedRows], Quality]:
    """The block's rows, in parts, as those of batches without deduplication, and their quality."""
    result = run_block(job, block.request, f"feedline-materialize-{block.number}", False)
    schema = compile_job(job).layout.schema
    parts = []
    for rows in result.parts or ():
        assert isinstance(rows, EncodedRows)  # those of a block without a permutation are in order
        parts.append(with_values(expand(rows, schema)))
    return parts, result.quality
