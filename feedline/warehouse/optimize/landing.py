"""Make written partitions visible in the target, and recognise those that are complete by the notes in their footers.

Runs where `optimize` is planned and in its tasks. On a local disk a partition's files are written below the target's
hidden folder `_feedline/`, under names that no reader takes for data, and land when all of them are there: by one
rename of their folder where the partition has a folder of its own, else file by file, the last one last. A folder that
is there already changes places with the new one in one step (`exchange`); where the system lacks that, it is renamed
first, and missing for a moment. An object store shows an object when it is complete, and has no renames: there files
are written in place, one after the other.

Nothing but the files themselves says what is finished: each carries a note in its footer (`writing.NOTE_KEY`) with the
fingerprints of the settings and of the source files it was made from, its unit and its number, and whether it is its
unit's last. A partition is finished when its files agree and none is missing, whenever and however a run was killed.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs

from feedline.errors import TableArgumentError, TableError
from feedline.warehouse.discovery.partitions import is_partition
from feedline.warehouse.parquet.footer import key_value_metadata
from feedline.warehouse.parquet.writer import NOTE_KEY, PART_SUFFIX, SUFFIX
from feedline.warehouse.storage.exchange import exchange
from feedline.warehouse.storage.faults import explain_errors
from feedline.warehouse.storage.locations import absolute, is_uri, join, list_tree, locate, redact
from feedline.warehouse.storage.retry import is_local, with_retries

HIDDEN = "_feedline"
_THREADS = 16
_WILDCARD = re.compile(r"/[^/]*[*?\[].*", re.DOTALL)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFile:
    """A file that `optimize` wrote: its path below the target's root, and its note."""

    path: str
    note: Mapping[str, Any]


class Target:
    """The table that is written: a folder, and how partitions get there. Cheap: every task makes its own."""

    def __init__(self, uri: str) -> None:
        self.uri = absolute(uri)
        location = locate(self.uri)
        self.filesystem, self.root = location.filesystem, location.path
        self.is_local = is_local(self.filesystem)

    @property
    def suffix(self) -> str:
        """The suffix of files that are being written."""
        return PART_SUFFIX if self.is_local else SUFFIX

    def hidden(self, *names: str) -> str:
        """A path in the hidden folder."""
        return "/".join([join(self.root, HIDDEN), *names])

    def begin(self, folder: str, slug: str) -> str:
        """The empty folder that a partition's files are to be written to."""
        stage = self.hidden("stage", slug) if self.is_local else self.folder(folder)
        if self.is_local:
            self.remove(stage)
        else:
            self._delete_files(folder)
        self.make(stage)
        return stage

    def make(self, path: str) -> None:
        """Make a folder where there are folders: an object store would show an empty object in its place."""
        if self.is_local:
            self.filesystem.create_dir(path, recursive=True)

    def stage(self, folder: str, slug: str) -> str:
        """The folder that `begin` made."""
        return self.hidden("stage", slug) if self.is_local else self.folder(folder)

    def land(self, folder: str, slug: str, names: Sequence[str], *, alone: bool) -> None:
        """Make a partition's files visible, in place of those that were there; `names` in the order of their units.

        `alone`: no other partition lands in its folder, which would be replaced with it.
        """
        if not self.is_local:
            return
        stage, final = self.hidden("stage", slug), self.folder(folder)
        for name in names:
            self.filesystem.move(f"{stage}/{name}", f"{stage}/{_visible_name(name)}")
        kind = self.filesystem.get_file_info(final).type
        old = self.hidden("old", slug)
        if kind != pafs.FileType.NotFound and folder and alone and not self._has_folders(final):
            if exchange(stage, final):
                self.remove(stage)  # the old files; a run killed before this leaves them to `clean`
                return
            self.remove(old)
            self.make(old.rpartition("/")[0])
            self.filesystem.move(final, old)
            kind = pafs.FileType.NotFound
        if kind == pafs.FileType.NotFound:
            self.make(final.rpartition("/")[0])
            try:
                self.filesystem.move(stage, final)
            except OSError:  # another partition that lies in this one's folder came in between
                kind = pafs.FileType.Directory
        if kind != pafs.FileType.NotFound:
            visible = [_visible_name(name) for name in names]
            self._delete_files(folder, but=visible if len(visible) == 1 else ())  # a rename replaces one by one
            for name in visible:
                self.filesystem.move(f"{stage}/{name}", f"{final}/{name}")
            self.remove(stage)
        self.remove(old)

    def remove(self, path: str) -> None:
        """Delete a folder and what is in it, if it is there."""
        if self.filesystem.get_file_info(path).type == pafs.FileType.Directory:
            self.filesystem.delete_dir(path)

    def clean(self) -> None:
        """Delete the hidden folder."""
        self.remove(self.hidden())

    def remove_partition(self, folder: str) -> None:
        """Delete a partition that the source no longer has, and folders that are empty then."""
        self._delete_files(folder)
        while folder:
            path = self.folder(folder)
            if not self.is_local or self.filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True)):
                return
            self.remove(path)
            folder = folder.rpartition("/")[0]

    def files_by_folder(self) -> dict[str, list[TargetFile]]:
        """The files of earlier runs by partition folder. Raises TableError where the target holds any other."""
        with explain_errors(redact(self.uri)):
            kind = with_retries(
                lambda: self.filesystem.get_file_info(self.root), self.filesystem, redact(self.uri)
            ).type
            if kind == pafs.FileType.File:
                raise self._foreign("a file")
            infos = [] if kind == pafs.FileType.NotFound else list_tree(locate(self.uri))
        sizes: dict[str, int] = {}
        for info in infos:
            path = info.path[len(self.root) :].lstrip("/")
            if info.type != pafs.FileType.File or path.split("/")[0] == HIDDEN:
                continue
            if not path.endswith(SUFFIX):
                raise self._foreign(path)
            sizes[path] = info.size
        found: dict[str, list[TargetFile]] = {}
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="feedline-landed") as pool:
            for path, note in zip(sizes, pool.map(self._note, sizes, sizes.values()), strict=True):
                if note is None:
                    raise self._foreign(path)
                found.setdefault(path.rpartition("/")[0], []).append(TargetFile(path=path, note=note))
        return found

    def folder(self, folder: str) -> str:
        """A partition's folder."""
        return join(self.root, folder) if folder else self.root

    def _note(self, path: str, size: int) -> Mapping[str, Any] | None:
        note = key_value_metadata(self.filesystem, join(self.root, path), size, join(redact(self.uri), path)).get(
            NOTE_KEY
        )
        return None if note is None else dict(json.loads(note))

    def _foreign(self, what: str) -> TableError:
        return TableArgumentError(
            f"{redact(self.uri)} is not empty: it holds {what}, which feedline optimize did not write. "
            "Name an empty or missing folder, or the target of an earlier run"
        )

    def _delete_files(self, folder: str, but: Sequence[str] = ()) -> None:
        selector = pafs.FileSelector(self.folder(folder), allow_not_found=True)
        for info in self.filesystem.get_file_info(selector):
            if info.type == pafs.FileType.File and info.base_name.endswith(SUFFIX) and info.base_name not in but:
                self.filesystem.delete_file(info.path)

    def _has_folders(self, path: str) -> bool:
        infos = self.filesystem.get_file_info(pafs.FileSelector(path))
        return any(info.type == pafs.FileType.Directory for info in infos)


def is_complete(files: Sequence[TargetFile], settings: str, sources: str) -> bool:
    """Whether these are all the files of a partition, made with those settings from those sources."""
    numbers: dict[int, list[tuple[int, bool]]] = {}
    units = set()
    for file in files:
        note = file.note
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
    """Raise TableError where a source lies inside the target or around it; for a glob, its folder."""
    place = _resolve(absolute(target))
    for source in sources:
        pair = _resolve(absolute(source)), place
        if any(inner == outer or inner.startswith(outer.rstrip("/") + "/") for inner, outer in (pair, pair[::-1])):
            raise TableArgumentError(
                f"source and target overlap: got {redact(source)} and {redact(target)}, expected two folders, none "
                "inside the other. Name another target"
            )


def partition_folder(path: str) -> str:
    """The Hive partition that a file of that path (below a table's root) belongs to, as folders: `ds=2026-01-01`."""
    return "/".join(segment for segment in path.split("/")[:-1] if is_partition(segment))


@contextmanager
def room_for(uri: str) -> Iterator[None]:
    """Turn what a full or forbidden disk raises in the body into an error that says what to do."""
    try:
        yield
    except TableError:
        raise
    except OSError as error:
        text = str(error)
        if error.errno in _FULL or "No space left" in text:
            raise TableError(
                f"{redact(uri)} has no space left: {text}. Partitions that are finished stay; make room and run the "
                "same command again to continue"
            ) from error
        raise TableError(f"{redact(uri)} could not be written: {text}") from error


def _visible_name(name: str) -> str:
    return name.removesuffix(PART_SUFFIX) + SUFFIX


def _resolve(uri: str) -> str:
    """The location without links and connection options, and of a glob the folder before its first wildcard."""
    return _WILDCARD.sub("", redact(uri)) if is_uri(uri) else os.path.realpath(_WILDCARD.sub("", uri))
