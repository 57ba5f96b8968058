"""Make written partitions visible in the target, and recognise complete ones by the notes in their footers.

Runs where `optimize` is planned; tasks only ask where to write. A partition's files are written below the hidden folder
`_feedline/`, in a folder of the run's own, and land once all are written, by the run that has the target's claim: on a
local disk by one rename or exchange (`exchange`) of their folder if the partition has one, else file by file. An object
store copies them, one by one.

Each file's note (`writer.NOTE_KEY`) has the fingerprints of the settings and of its source files, its unit, its number,
and whether it is its unit's last. A partition is finished if its files agree and none is missing.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import pyarrow.fs as pafs

from feedline.errors import TableArgumentError, TableError
from feedline.warehouse.discovery.partitions import is_partition
from feedline.warehouse.parquet.footer import key_value_metadata
from feedline.warehouse.parquet.writer import NOTE_KEY, SUFFIX
from feedline.warehouse.storage.claim import Claim
from feedline.warehouse.storage.faults import explain_errors
from feedline.warehouse.storage.locations import (
    absolute,
    delete_folder,
    info_of,
    join,
    list_tree,
    locate,
    redact,
    split_options,
)
from feedline.warehouse.storage.parallel import in_threads
from feedline.warehouse.storage.retry import is_local, with_retries
from feedline.warehouse.storage.whole_file import exchange

HIDDEN = "_feedline"
DELETES = "_deletes"  # the logs of `delete`, which may have been at work in a target
_CLAIM = "optimize"
_THREADS = 16
_WILDCARD = re.compile(r"/[^/]*[*?\[].*", re.DOTALL)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


Note: TypeAlias = Mapping[str, Any]  # of a file that `optimize` has written


def target_at(uri: str) -> Target:
    uri = absolute(uri)
    return Target(Claim(uri=uri, hidden=HIDDEN, file=_CLAIM, name=redact(uri)))


class Target:
    """The folder to which a run writes a table. Cheap to construct: every task has its own."""

    def __init__(self, claim: Claim) -> None:
        self.claim, self.uri = claim, claim.uri
        location = claim.location
        self.filesystem, self.root = location.filesystem, location.path
        self.is_local = is_local(self.filesystem)

    def make_folder(self, path: str) -> None:
        """Create a folder on a local disk; an object store would show an empty object instead."""
        if self.is_local:
            self.filesystem.create_dir(path, recursive=True)

    def stage(self, slug: str) -> str:
        """Create and return the folder in which tasks write a partition's files."""
        stage = self.claim.own("stage", slug).path
        self.make_folder(stage)
        return stage

    def spill(self, slug: str) -> str:
        return self.claim.own("spill", slug).path

    def land(self, folder: str, slug: str, names: Sequence[str], *, alone: bool, beside: Sequence[str] = ()) -> None:
        """Make a partition's files visible, replacing older ones; `names`: in the order of their units.

        `alone`: no other partition lands in its folder, so the folder as a whole can be replaced. `beside`: other files
        of the stage, which land with them; where files land one by one, before them, and the last one after them.
        Raises TableError where another run has the target by now.
        """
        self.claim.check()
        stage, final = self.claim.own("stage", slug).path, self.folder(folder)
        moves = [(f"{stage}/{name}", _visible_name(name)) for name in names]
        moves += [(f"{stage}/{name}", name) for name in beside]
        if self.is_local:
            ready = self.claim.own("ready", slug).path  # without files of attempts that were repeated
            self.make_folder(ready)
            for path, name in moves:
                self.filesystem.move(path, f"{ready}/{name}")
            if self._replace(folder, ready, alone=alone):
                return
            moves = [(f"{ready}/{name}", name) for _, name in moves]
        visible = [name for _, name in moves]
        self.claim.delete(f"{final}/{name}" for name in beside[-1:])
        self._delete_files(folder, but=visible if len(visible) == 1 else ())  # a single file is replaced atomically
        files, others = moves[: len(names)], moves[len(names) :]
        for part in (others[:-1], files, others[-1:]):
            self.claim.move((path, f"{final}/{name}") for path, name in part)
        self.remove(stage)

    def _replace(self, folder: str, ready: str, *, alone: bool) -> bool:
        """Put a local folder in the place of a partition's; False: it holds more than the partition."""
        final, old = self.folder(folder), f"{ready}.old"
        kind = self.filesystem.get_file_info(final).type
        if kind != pafs.FileType.NotFound and folder and alone and not self._has_folders(final):
            if exchange(ready, final):
                self.remove(ready)  # the old files; if the run is killed before this, the next one removes them
                return True
            self.filesystem.move(final, old)
            kind = pafs.FileType.NotFound
        if kind == pafs.FileType.NotFound:
            self.make_folder(final.rpartition("/")[0])
            try:
                self.filesystem.move(ready, final)
            except OSError:  # a partition within this one's folder landed meanwhile
                return False
            self.remove(old)
            return True
        return False

    def remove(self, path: str) -> None:
        if self.filesystem.get_file_info(path).type == pafs.FileType.Directory:
            delete_folder(self.filesystem, path)

    def remove_partition(self, folder: str) -> None:
        """Delete a partition that the source no longer has, and folders thereby emptied."""
        self._delete_files(folder)
        while folder:
            path = self.folder(folder)
            if not self.is_local or self.filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True)):
                return
            self.remove(path)
            folder = folder.rpartition("/")[0]

    def notes_by_folder(self) -> dict[str, list[Note]]:
        """The notes of earlier runs' files by partition folder. Raises TableError if the target holds other files."""
        with explain_errors(redact(self.uri)):
            kind = with_retries(lambda: info_of(self.filesystem, self.root), self.filesystem, redact(self.uri)).type
            if kind == pafs.FileType.File:
                raise self._foreign_file_error("a file")
            infos = [] if kind == pafs.FileType.NotFound else list_tree(locate(self.uri))
        sizes: dict[str, int] = {}
        for info in infos:
            path = info.path[len(self.root) :].lstrip("/")
            if info.type != pafs.FileType.File or path.split("/")[0] in (HIDDEN, DELETES):
                continue
            if not path.endswith(SUFFIX):
                raise self._foreign_file_error(path)
            sizes[path] = info.size
        notes: dict[str, list[Note]] = {}
        read = in_threads(lambda path: self._note(path, sizes[path]), sizes, threads=_THREADS)
        for path, note in zip(sizes, read, strict=True):
            if note is None:
                raise self._foreign_file_error(path)
            notes.setdefault(path.rpartition("/")[0], []).append(note)
        return notes

    def folder(self, folder: str) -> str:
        return join(self.root, folder) if folder else self.root

    def _note(self, path: str, size: int) -> Note | None:
        note = key_value_metadata(self.filesystem, join(self.root, path), size, join(redact(self.uri), path)).get(
            NOTE_KEY
        )
        return None if note is None else dict(json.loads(note))

    def _foreign_file_error(self, what: str) -> TableError:
        return TableArgumentError(
            f"{redact(self.uri)} is not empty: it holds {what}, which feedline optimize did not write. "
            "Name an empty or missing folder, or the target of an earlier run"
        )

    def _delete_files(self, folder: str, but: Sequence[str] = ()) -> None:
        selector = pafs.FileSelector(self.folder(folder), allow_not_found=True)
        self.claim.delete(
            info.path
            for info in self.filesystem.get_file_info(selector)
            if info.type == pafs.FileType.File and info.base_name.endswith(SUFFIX) and info.base_name not in but
        )

    def _has_folders(self, path: str) -> bool:
        infos = self.filesystem.get_file_info(pafs.FileSelector(path))
        return any(info.type == pafs.FileType.Directory for info in infos)


def is_complete(notes: Sequence[Note], settings: str, sources: str) -> bool:
    """Whether these are of all the files of a partition, written with these settings from these sources."""
    numbers: dict[int, list[tuple[int, bool]]] = {}  # per unit, (number, whether it is the last) of its files
    units = set()
    for note in notes:
        if (note.get("settings"), note.get("sources")) != (settings, sources):
            return False
        units.add(note["units"])
        numbers.setdefault(note["unit"], []).append((note["file"], note["last"]))
    if len(units) != 1 or sorted(numbers) != list(range(units.pop())):
        return False
    return all(
        [number for number, _ in sorted(unit)] == list(range(len(unit))) and sorted(unit)[-1][1]
        for unit in numbers.values()
    )


def refuse_overlap(sources: Sequence[str], target: str) -> None:
    """Raise TableArgumentError if a source (of a glob, its folder) contains the target or lies within it."""
    store, target_path = _resolve(target)
    for source in sources:
        source_store, source_path = _resolve(source)
        pair = source_path, target_path
        if source_store == store and any(
            inner == outer or inner.startswith(outer.rstrip("/") + "/") for inner, outer in (pair, pair[::-1])
        ):
            raise TableArgumentError(
                f"source and target overlap: got {redact(source)} and {redact(target)}, expected two folders, neither "
                "inside the other. Name another target"
            )


def partition_folder(path: str) -> str:
    """Return the Hive partition of a file, from its path below the root: `ds=1/x/h=2/f.parquet` -> `ds=1/h=2`."""
    return "/".join(segment for segment in path.split("/")[:-1] if is_partition(segment))


@contextmanager
def room_for(uri: str) -> Iterator[None]:
    """Turn an OSError of the body (disk full, access denied) into a TableError with a remedy."""
    try:
        yield
    except TableError:
        raise
    except OSError as error:
        reason = str(error)
        if error.errno in _FULL or "No space left" in reason:
            raise TableError(
                f"{redact(uri)} has no space left: {reason}. Finished partitions stay; make room and run the "
                "same command again to continue"
            ) from error
        raise TableError(f"{redact(uri)} could not be written: {reason}") from error


def _visible_name(name: str) -> str:
    return name.partition(".")[0] + SUFFIX  # without the attempt: part-0000-00000.8d1f03aa.parquet.part


def _resolve(name: str) -> tuple[str, str]:
    """The kind of store, and the path on it: without links, and without everything from the first wildcard on."""
    address, options = split_options(absolute(name))
    location = locate((_WILDCARD.sub("", address) or "/") + options)
    local = is_local(location.filesystem)
    return location.filesystem.type_name, os.path.realpath(location.path) if local else location.path.rstrip("/")
