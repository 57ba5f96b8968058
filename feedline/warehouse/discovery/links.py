"""List a local folder with symbolic links, and refuse a file that two paths of a table lead to.

Runs where a snapshot is taken. Links are followed, but no folder is entered twice; real folders come first. Links with
hidden names, and links in hidden folders, are ignored. A hard link is a file of its own.
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
from feedline.progress import report_progress
from feedline.warehouse.discovery.partitions import is_hidden

LISTING = "listing"  # the phase of progress
_KINDS = {True: pafs.FileType.File, False: pafs.FileType.Unknown}


@dataclass(frozen=True, slots=True)
class Walk:
    """The files and folders below a folder.

    `links`: paths of files that are links. `duplicates`: folders that were not entered, each with the path by which the
    walk entered them before. `entered`: by the real path of each folder that is not hidden, the path of the walk.
    """

    infos: list[pafs.FileInfo] = field(default_factory=list)
    links: set[str] = field(default_factory=set)
    duplicates: dict[str, str] = field(default_factory=dict)
    entered: dict[str, str] = field(default_factory=dict)


def walk(root: str) -> Walk:
    """List a folder recursively, in no particular order.

    A dangling link has the type NotFound, a pipe or a device the type Unknown. Raises OSError.
    """
    tree = Walk()
    folders = [(root, os.path.realpath(root), False)]
    links: deque[str] = deque()
    while folders or links:
        if folders:
            path, real, hidden = folders.pop()
        else:
            path, hidden = links.popleft(), False
            real = os.path.realpath(path)
        if not hidden:  # a hidden folder has no table files, so a link from outside may still lead there
            if real in tree.entered:
                tree.duplicates[path] = tree.entered[real]
                continue
            tree.entered[real] = path
        report_progress(LISTING, len(tree.infos), None, "files")
        with os.scandir(path) as entries:
            for entry in entries:
                covered = hidden or is_hidden(entry.name)
                if not _is_folder(entry):
                    _add_file(entry, tree)
                elif not entry.is_symlink():
                    folders.append((entry.path, os.path.join(real, entry.name), covered))
                elif not covered:
                    links.append(entry.path)
    return tree


def refuse_same_files(files: Collection[str], links: Collection[str], duplicates: dict[str, str]) -> None:
    """Raise TableError if two local files of a table have the same real path.

    `links`: the files that may be links. `duplicates`: as in `Walk`.
    """
    for folder, first in duplicates.items():
        file = next((path for path in files if path.startswith(f"{first}/")), None)
        if file is not None:
            raise _same_file_error(folder + file[len(first) :], file)
    folders = {path.rpartition("/")[0] for path in files}
    real = {folder: os.path.realpath(folder) for folder in folders}
    if not links and len(set(real.values())) == len(real):
        return
    by_real_path: dict[str, str] = {}
    for path in sorted(files, key=lambda path: (path in links, path)):
        folder, _, name = path.rpartition("/")
        real_path = os.path.realpath(path) if path in links else f"{real[folder]}/{name}"
        if real_path in by_real_path:
            raise _same_file_error(path, by_real_path[real_path])
        by_real_path[real_path] = path


def links_among(files: Iterable[str]) -> set[str]:
    """The local files that are links. Costs a system call per file: only for files named one by one."""
    return {path for path in files if Path(path).is_symlink()}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; a denied path is reported when its size is read
        return False


def _add_file(entry: os.DirEntry[str], tree: Walk) -> None:
    if entry.is_symlink():
        tree.links.add(entry.path)
    try:
        facts, kind = entry.stat(), _KINDS[entry.is_file()]
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        if entry.is_symlink():  # else it has just been deleted
            tree.infos.append(pafs.FileInfo(entry.path, pafs.FileType.NotFound))
        return
    tree.infos.append(pafs.FileInfo(entry.path, kind, size=facts.st_size, mtime_ns=facts.st_mtime_ns))


def _same_file_error(path: str, first: str) -> TableError:
    return TableError(
        f"{path} is the same file as {first}, by a symbolic link: its rows would be read twice. Remove the link, begin "
        "its name with a dot, or name the table's folders one by one"
    )
