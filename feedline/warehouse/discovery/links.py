"""List a local folder whose symbolic links may lead anywhere, and refuse a file that two paths of a table lead to.

Runs where a snapshot is taken. Links are followed, as every reader of such folders does, but no folder is entered
twice: a link to a folder above itself would list the table's files again on each of forty levels. Real folders come
first, so that a file is listed by its own path where it has one below the root. Links with hidden names, and links in
hidden folders, are left alone, as nothing behind them belongs to a table.

Without links this costs what the listing costs; what a file really is called is looked up only behind links. Hard
links are no links: like a copy, each is a file of its own.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.fs as pafs

from feedline.errors import TableError
from feedline.warehouse.discovery.partitions import is_hidden

_KINDS = {True: pafs.FileType.File, False: pafs.FileType.Unknown}


@dataclass(frozen=True, slots=True)
class Walk:
    """The files and folders below a folder.

    `links`: paths of files that are links. `again`: folders that were not entered, each with the path by which the
    walk had been there before.
    """

    infos: list[pafs.FileInfo] = field(default_factory=list)
    links: set[str] = field(default_factory=set)
    again: dict[str, str] = field(default_factory=dict)


def walk(root: str) -> Walk:
    """List a folder and all below it, in no particular order.

    What a link names and is not there has the type NotFound, a pipe or a device the type Unknown. Raises OSError.
    """
    found = Walk()
    entered: dict[str, str] = {}
    folders = [(root, os.path.realpath(root), False)]
    links: deque[str] = deque()
    while folders or links:
        if folders:
            path, real, hidden = folders.pop()
        else:
            path, hidden = links.popleft(), False
            real = os.path.realpath(path)
        if not hidden:  # nothing in there counts, so a link from outside may still lead there
            if real in entered:
                found.again[path] = entered[real]
                continue
            entered[real] = path
        with os.scandir(path) as entries:
            for entry in entries:
                covered = hidden or is_hidden(entry.name)
                if not _is_folder(entry):
                    _add_file(entry, found)
                elif not entry.is_symlink():
                    folders.append((entry.path, os.path.join(real, entry.name), covered))
                elif not covered:
                    links.append(entry.path)
    return found


def refuse_same_files(files: Collection[str], links: Collection[str], again: dict[str, str]) -> None:
    """Raise TableError where two local files of a table are one, by their real paths.

    `links`: those of the files that may be links. `again`: as in `Walk`.
    """
    for folder, first in again.items():
        known = next((path for path in files if path.startswith(f"{first}/")), None)
        if known is not None:
            raise _twice(folder + known[len(first) :], known)
    folders = {path.rpartition("/")[0] for path in files}
    real = {folder: os.path.realpath(folder) for folder in folders}
    if not links and len(set(real.values())) == len(real):
        return
    seen: dict[str, str] = {}
    for path in sorted(files, key=lambda path: (path in links, path)):
        folder, _, name = path.rpartition("/")
        place = os.path.realpath(path) if path in links else f"{real[folder]}/{name}"
        if place in seen:
            raise _twice(path, seen[place])
        seen[place] = path


def links_among(files: Iterable[str]) -> set[str]:
    """Those of some local files that are links: one look at each, so only for files that are named one by one."""
    return {path for path in files if Path(path).is_symlink()}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; what may not be looked at is said where its size is asked for
        return False


def _add_file(entry: os.DirEntry[str], found: Walk) -> None:
    if entry.is_symlink():
        found.links.add(entry.path)
    try:
        facts, kind = entry.stat(), _KINDS[entry.is_file()]
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        if entry.is_symlink():  # else it was deleted this moment
            found.infos.append(pafs.FileInfo(entry.path, pafs.FileType.NotFound))
        return
    found.infos.append(pafs.FileInfo(entry.path, kind, size=facts.st_size, mtime_ns=facts.st_mtime_ns))


def _twice(path: str, first: str) -> TableError:
    return TableError(
        f"{path} is the same file as {first}, by a symbolic link: its rows would be read twice. Remove the link, begin "
        "its name with an underscore, or name the table's folders one by one"
    )
