"""Keep the column chunks of remote files that a store has delivered, for later epochs, jobs and fits.

Runs in every process that reads from a store, if its job keeps sources (`cache.mode: source`). A group of the cache is
one row group of one version of a file: it is named by the file's URI, size, entity tag (or time) and footer digest, and
by the row group, so that a replaced file has other groups. An entry is one column chunk, named by its byte range, so
that other columns of the same row group are fetched alone.

The caller has asked the store, when it opened the file, whether it still is that version. Kept chunks are verified by
the cache's checksums; a damaged one counts as missing and is fetched again, and so are those that were damaged before
they were kept, as decoding tells. One thread of all processes of a host fetches what a row group lacks, the others wait
for it and read what it has kept.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from feedline.dataclass import dataclass
from feedline.warehouse.cache.cache_folder import CacheFolder, CacheRef, open_folder
from feedline.warehouse.cache.entry_file import CachedColumn, EntryGroup
from feedline.warehouse.storage.ranges import Range, SparseFile

_FORMAT = "column chunks 2"  # another number wherever the bytes of an entry change their meaning
_ARRAY = "bytes"
# A thread may compute features of a row group, and hold their flight, when it fetches: locks of their own keep it from
# waiting for itself, since flights share locks by the first letters of a digest.
_OTHER_LETTERS = str.maketrans("0123456789abcdef", "ghijklmnopqrstuv")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChunks:
    """The kept column chunks of one file. table, path, partition: by which `feedline cache` finds them."""

    cache: CacheRef
    table: str
    path: str
    partition: Mapping[str, object]

    def fill(
        self,
        file: SparseFile,
        version: Sequence[str],
        row_group: int,
        ranges: Sequence[Range],
        fetch: Callable[[Sequence[Range]], object],
    ) -> None:
        """Put column chunks of a row group into `file`: those that are kept, and the others by `fetch`.

        version: what names the file's content. fetch: brings ranges from the store into `file`, or raises; what it has
        brought is kept, where the disk allows it.
        """
        folder = open_folder(self.cache)
        group = self._group(version, row_group)
        missing = _take(folder, group, {_name(*span): span for span in ranges}, file)
        if not missing:
            return
        with folder.flight(replace(group, digest=group.digest.translate(_OTHER_LETTERS))) as waited:
            if waited:
                missing = _take(folder, group, missing, file)
            if missing:
                began_s = time.perf_counter()
                fetch(list(missing.values()))
                fetched_s = time.perf_counter()  # what a hit saves, if not of CPU
                if writes := folder.budget.allows():
                    spans = {name: np.frombuffer(file.read_range(*span), np.uint8) for name, span in missing.items()}
                    columns = {name: CachedColumn({_ARRAY: content}, {}) for name, content in spans.items()}
                    folder.put(group, columns, cpu_s=fetched_s - began_s)
                written_s = time.perf_counter() - fetched_s if writes else 0.0
                folder.budget.spend(made_s=fetched_s - began_s, written_s=written_s)

    def drop(self, version: Sequence[str], row_group: int) -> None:
        """Remove what is kept of a row group."""
        open_folder(self.cache).drop(self._group(version, row_group))

    def _group(self, version: Sequence[str], row_group: int) -> EntryGroup:
        parts = "\0".join([_FORMAT, *version, str(row_group)])
        return EntryGroup(
            digest=hashlib.blake2b(parts.encode(), digest_size=16).hexdigest(),
            table=self.table,
            path=self.path,
            row_group=row_group,
            partition=self.partition,
        )


def _name(start: int, stop: int) -> str:
    return hashlib.blake2b(f"{start} {stop}".encode(), digest_size=16).hexdigest()


def _take(folder: CacheFolder, group: EntryGroup, wanted: Mapping[str, Range], file: SparseFile) -> dict[str, Range]:
    """Copy the chunks that are kept into `file`; returns the others."""
    found = folder.find(group, list(wanted))
    missing = {}
    for name, (start, stop) in wanted.items():
        content = found[name].arrays.get(_ARRAY) if name in found else None
        if content is None or len(content) != stop - start:
            missing[name] = (start, stop)
        else:
            file.write(start, content.data)
    return missing
