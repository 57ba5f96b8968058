"""What lies below a folder, however many pages of a listing that takes and whatever fails in between.

Runs where a snapshot is taken. An object store lists a thousand names per request, and pyarrow begins a listing anew
where one of its requests fails: with hundreds of pages and a store that fails now and then it would never end. So a
listing that fails is taken apart: the folder alone, then each folder in it by itself, and so on down.
"""

from __future__ import annotations

import pyarrow.fs as pafs

from feedline.warehouse.storage.faults import Outlook, explained, outlook
from feedline.warehouse.storage.locations import Location, join, shown
from feedline.warehouse.storage.retry import is_local, retried


def listed(location: Location) -> list[pafs.FileInfo]:
    """All that lies below a folder, in no particular order.

    Raises StoreError where a part could not be listed for too long, and what `faults.explained` raises.
    """
    if is_local(location.filesystem):
        return _infos(location.filesystem, location.path, recursive=True)
    with explained(shown(location.uri), fetching=True, doing="listed"):
        return _below(location.filesystem, location.path, shown(location.uri))


def _below(filesystem: pafs.FileSystem, path: str, name: str) -> list[pafs.FileInfo]:
    try:
        return _infos(filesystem, path, recursive=True)
    except Exception as error:
        if outlook(error) is Outlook.FINAL:
            raise
    found = retried(lambda: _infos(filesystem, path, recursive=False), filesystem, name, doing="listed")
    folders = [info for info in found if info.type == pafs.FileType.Directory]
    for folder in folders:
        found += _below(filesystem, folder.path, join(name, folder.base_name))
    return found


def _infos(filesystem: pafs.FileSystem, path: str, *, recursive: bool) -> list[pafs.FileInfo]:
    infos: list[pafs.FileInfo] = filesystem.get_file_info(pafs.FileSelector(path, recursive=recursive))
    return infos
