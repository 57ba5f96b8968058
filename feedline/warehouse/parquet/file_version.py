"""Identify a file's content: as the snapshot describes it, and as its store does now.

Runs in every process that reads.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from feedline.errors import TableChangedError
from feedline.warehouse.parquet.stored_names import StoredNames


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVersion:
    """A file as the snapshot describes it; `uri` as messages name it. `stored_names`: of the table's columns in it, if
    they are not the table's. `decoder`: `auto`, or `arrow` for pyarrow alone."""

    uri: str
    size_bytes: int
    mtime_ns: int
    footer_digest: bytes
    footer_bytes: int
    stored_names: StoredNames | None = None
    decoder: str = "auto"


@dataclass(frozen=True, slots=True)
class Stamp:
    """A file as the store describes it. `tag`: empty if there is no entity tag; `mtime_ns`: -1 if there is no time."""

    size_bytes: int
    mtime_ns: int
    tag: bytes = b""


def stamp_of(filesystem: pafs.FileSystem, path: str, source: pa.NativeFile) -> Stamp:
    """The stamp of an open file: from the answer to its opening (S3), else by another request."""
    facts = source.metadata() if filesystem.type_name == "s3" else {}
    if "ETag" in facts and "Last-Modified" in facts:
        with suppress(ValueError):
            time = np.datetime64(facts["Last-Modified"].decode().rstrip("Z"), "ns")
            return Stamp(source.size(), int(time.astype(np.int64)), facts["ETag"])
    info = filesystem.get_file_info(path)
    if info.type == pafs.FileType.NotFound:
        raise FileNotFoundError(path)
    return stamp_in(info)


def stamp_in(info: pafs.FileInfo) -> Stamp:
    """The stamp of a file in a listing."""
    return Stamp(info.size, -1 if info.mtime_ns is None else info.mtime_ns)


def refuse_other_version(version: FileVersion, stamp: Stamp) -> None:
    """Raise TableChangedError if a file's size or time is not the snapshot's."""
    refuse_changed(
        version.uri,
        Stamp(version.size_bytes, version.mtime_ns),
        stamp,
        "after the snapshot was taken",
        "Take a new snapshot, or go on with feedline rebase",
    )


def refuse_changed(uri: str, before: Stamp, now: Stamp, when: str, remedy: str) -> None:
    """Raise TableChangedError if a file's size or time has changed."""
    if now.size_bytes != before.size_bytes or not _same_time(now.mtime_ns, before.mtime_ns):
        raise TableChangedError(
            f"{uri} changed {when}: got {now.size_bytes} bytes of {_time(now.mtime_ns)}, expected "
            f"{before.size_bytes} bytes of {_time(before.mtime_ns)}. {remedy}"
        )


def _same_time(one_ns: int, other_ns: int) -> bool:
    """Compare times; if one has no fraction of a second, by whole seconds.

    Object stores list times with fractions and return them without for a single file.
    """
    (one_s, one_rest), (other_s, other_rest) = divmod(one_ns, 10**9), divmod(other_ns, 10**9)
    return one_s == other_s and (one_rest == other_rest or not one_rest or not other_rest)


def _time(mtime_ns: int) -> str:
    if mtime_ns < 0:
        return "unknown time"
    return str(np.datetime64(mtime_ns, "ns"))
