"""Decide whether a file is the one that was seen, from all that its store says of it.

Runs in every process that plans or reads. A store says a file's size and, depending on the store, an entity tag (an
ETag, a generation, the id of a blob), the time of its last change, or both. `_compare` is the one rule:

    sizes differ, or footers where both are known     another file
    both have a tag                                   the same if the tags are equal, whatever the times: a copy has
                                                      a new time
    both have a time                                  the same if the times are equal: a writer that replaces labels
                                                      may leave size and footer as they were
    neither                                           nobody can tell

Where nobody can tell, a snapshot marks the file with the moment at which it was seen, in place of a tag: it is read,
but never recognised. Times are compared by whole seconds if one of them has no fraction, as object stores list times
with fractions and return them without for a single file.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.errors import TableChangedError
from feedline.warehouse.storage.retry import is_local

# Names of the tag in stores: s3fs, adlfs, gcsfs, http and hf. The last ones are times, of which equal strings say as
# much as equal tags.
_TAGS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "Content-MD5", "blob_id")
_TAGS_OF_TIME = ("Last-Modified", "LastModified", "last_modified", "last_write_time")
_COMPARED = ("bytes", "mtime_ns", "etag", "footer_digest")
# pyarrow's filesystems whose times are whole seconds, and which say a tag of an open file alone. GCS has microseconds,
# and each of its files that is opened costs a request for the whole object.
_OPENED_FOR_TAG = {"s3", "abfs"}
_MARK = "seen "  # begins what stands in place of a tag where nobody can tell files apart
_SECOND_NS = 10**9
CLOCK_GRAIN_NS = 2 * _SECOND_NS  # the coarsest time resolution of file systems in use
_TICK_NS = 10**7  # the same of those that keep fractions of a second: the kernel's clock moves in ticks

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stamp:
    """A file as its store describes it. mtime_ns: -1 if there is no time; tag: empty if there is none."""

    size_bytes: int
    mtime_ns: int
    tag: str = ""

    @property
    def content_name(self) -> str | None:
        """What names the file's content, together with its path, size and footer; None where nobody can tell."""
        if self.tag:
            return None if self.tag.startswith(_MARK) else f"tag {self.tag}"
        return None if self.mtime_ns < 0 else f"time {self.mtime_ns}"

    def __str__(self) -> str:
        moment = "unknown time" if self.mtime_ns < 0 else str(np.datetime64(self.mtime_ns, "ns"))
        return f"{self.size_bytes} bytes of {moment}" + (f", tag {self.tag}" if self.tag else "")


# -- what a store says ------------------------------------------------------------------------------------------------


def stamp_in(info: pafs.FileInfo) -> Stamp:
    """The stamp of a file in a listing."""
    return Stamp(info.size, -1 if info.mtime_ns is None else info.mtime_ns)


def stamp_at(filesystem: pafs.FileSystem, path: str) -> Stamp:
    """The stamp of a file, by one request. Raises FileNotFoundError, and what the store raises."""
    if filesystem.type_name in _OPENED_FOR_TAG:
        with filesystem.open_input_file(path) as source:
            return stamp_of(filesystem, path, source)
    return _stamp(filesystem, path)


def stamp_of(filesystem: pafs.FileSystem, path: str, source: pa.NativeFile) -> Stamp:
    """The stamp of an open file: from the answer to its opening (S3, Azure, GCS), else by another request."""
    facts = {} if is_local(filesystem) or _handler(filesystem) is not None else source.metadata() or {}
    tag = _plain(next((facts[name].decode() for name in ("ETag", "Etag", "etag") if facts.get(name)), ""))
    written = facts.get("Last-Modified") or facts.get("timeCreated")  # GCS: as in its listings, with a zone
    if tag and written:
        with suppress(ValueError):
            time = np.datetime64(written.decode().removesuffix("Z").removesuffix("+00:00"), "ns")
            return Stamp(source.size(), int(time.astype(np.int64)), tag)
    stamp = _stamp(filesystem, path)
    return Stamp(stamp.size_bytes, stamp.mtime_ns, tag or stamp.tag)


def tag_in(details: Mapping[str, Any]) -> str:
    """The tag among what an fsspec store says of a file; empty without one."""
    value = next((details[name] for name in _TAGS if details.get(name)), None)
    if value is None and details.get("mtime") is None:
        value = next((details[name] for name in _TAGS_OF_TIME if details.get(name)), None)
    return "" if value is None else _plain(str(value))


def _stamp(filesystem: pafs.FileSystem, path: str) -> Stamp:
    handler = _handler(filesystem)
    if handler is None:
        info = filesystem.get_file_info(path)
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(path)
        return stamp_in(info)
    details = handler.details(path) if hasattr(handler, "details") else handler.fs.info(path)
    info = pafs.FileInfo(path, pafs.FileType.File, size=details["size"], mtime=details.get("mtime"))
    return Stamp(info.size, -1 if info.mtime_ns is None else info.mtime_ns, tag_in(details))


def _handler(filesystem: pafs.FileSystem) -> Any:
    """The handler of an fsspec store."""
    handler = getattr(filesystem, "handler", None)
    return handler if hasattr(handler, "fs") else None


def _plain(tag: str) -> str:
    """Without quotes and the mark of a weak tag, which some stores send in one answer and not in another."""
    return tag.removeprefix("W/").strip('"')


# -- the rule ---------------------------------------------------------------------------------------------------------


def _compare(before: tuple[Any, Any, Any], now: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    """Whether what is known of two files agrees, and whether it suffices to tell. Each is size, time and tag, as
    scalars or as arrays."""
    (size, time, tag), (size_now, time_now, tag_now) = before, now
    tagged, timed = (tag != "") & (tag_now != ""), (time >= 0) & (time_now >= 0)
    is_coarse = (time % _SECOND_NS == 0) | (time_now % _SECOND_NS == 0)
    same_time = (time == time_now) | is_coarse & (time // _SECOND_NS == time_now // _SECOND_NS)
    agrees = (size == size_now) & np.where(tagged, tag == tag_now, same_time | np.logical_not(timed))
    return agrees, tagged | timed


def refuse_changed(uri: str, before: Stamp, now: Stamp, when: str, remedy: str) -> None:
    """Raise TableChangedError for another file than the one that was seen, as far as its store tells."""
    seen = "" if before.tag.startswith(_MARK) else before.tag
    if (before.size_bytes, before.mtime_ns, seen) == (now.size_bytes, now.mtime_ns, now.tag):
        return  # as almost always, and 15 us sooner
    agrees, _ = _compare((before.size_bytes, before.mtime_ns, seen), (now.size_bytes, now.mtime_ns, now.tag))
    if not agrees:
        raise TableChangedError(f"{uri} changed {when}: got {now}, expected {before}. {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownFiles:
    """Files of a listing or snapshot beside those that were seen before, by path.

    index: int64, of the file with that path before (-1: none). same: it is that file. agrees: nothing says that it is
    not. retimed: another one, by its time or tag, with the same size and, as far as known, footer. tagged: both have
    tags.
    """

    index: Int64s
    same: Bools
    agrees: Bools
    retimed: Bools
    tagged: Bools

    @property
    def before(self) -> Int64s:
        """int64: the index of the same file before; -1 without one."""
        return np.where(self.same, self.index, -1)


def known_files(now: pa.Table, before: pa.Table) -> KnownFiles:
    """Compare files with those that were seen before. Both have path, bytes, mtime_ns and perhaps etag and
    footer_digest."""
    positions = pc.index_in(_column(now, "path"), value_set=_column(before, "path"))
    index = positions.fill_null(-1).to_numpy().astype(np.int64)
    mine, theirs = (
        files.select([name for name in _COMPARED if name in files.schema.names]).take(pa.array(places))
        for files, places in ((now, np.flatnonzero(index >= 0)), (before, index[index >= 0]))
    )
    agrees, suffices = _compare(_facts(theirs), _facts(mine))
    content = _numbers(mine, "bytes") == _numbers(theirs, "bytes")
    if "footer_digest" in mine.schema.names and "footer_digest" in theirs.schema.names:
        footers = pc.equal(*(_column(each, "footer_digest").cast(pa.binary()) for each in (mine, theirs)))
        content &= pc.fill_null(footers, True).to_numpy(zero_copy_only=False)
    agrees &= content
    tagged = (tags_of(mine) != "") & (tags_of(theirs) != "")

    def spread(values: Bools) -> Bools:
        whole = np.zeros(len(index), np.bool_)
        whole[index >= 0] = values
        return whole

    return KnownFiles(
        index=index,
        same=spread(agrees & suffices),
        agrees=spread(agrees),
        retimed=spread(content & ~agrees),
        tagged=spread(tagged),
    )


def tags_of(files: pa.Table) -> npt.NDArray[Any]:
    """object [files]: the tag of each, empty without one."""
    if "etag" not in files.schema.names:
        return np.full(len(files), "", object)
    return np.asarray(pc.fill_null(_column(files, "etag"), "").to_numpy(zero_copy_only=False), object)


def stamp_at_index(files: pa.Table, index: int) -> Stamp:
    """The stamp of one file of a listing or snapshot."""
    tag = files["etag"][index].as_py() if "etag" in files.schema.names else None
    return Stamp(files["bytes"][index].as_py(), files["mtime_ns"][index].as_py(), tag or "")


def mark_unknown(files: pa.Table, tags: pa.Array, now_ns: int) -> pa.Array | None:
    """The tags of files that were seen at `now_ns`, with a mark where there is neither a tag nor a time; None if all
    are told by their times."""
    untold = pc.and_(tags.is_null(), pc.less(_column(files, "mtime_ns"), 0))
    marked = pc.if_else(untold, f"{_MARK}{now_ns}", tags)
    return None if marked.null_count == len(marked) else marked


def _facts(files: pa.Table) -> tuple[Any, Any, Any]:
    return _numbers(files, "bytes"), _numbers(files, "mtime_ns"), tags_of(files)


def _numbers(files: pa.Table, name: str) -> Int64s:
    return np.asarray(_column(files, name).to_numpy(zero_copy_only=False), np.int64)


def _column(files: pa.Table, name: str) -> pa.Array:
    column = files[name]
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


# -- times ------------------------------------------------------------------------------------------------------------


def is_settled(mtime_ns: Int64s, seen_ns: int) -> Bools:
    """Which times tell a file that was seen at a moment from one that is written after it, on any file system."""
    return (mtime_ns >= 0) & (mtime_ns + CLOCK_GRAIN_NS < seen_ns)


def unsettled_ns(mtime_ns: Int64s, now_ns: int) -> int:
    """How long to wait until a file that is written then has another time than any of these; 0 if it has already. A
    time with a fraction of a second is of a file system that keeps them."""
    # changed at 99 s, now 100 s -> 1 s; at 99.5 s, of a file system with fractions -> 0
    grain = np.where(mtime_ns % _SECOND_NS == 0, CLOCK_GRAIN_NS, _TICK_NS)
    left = np.minimum(mtime_ns + grain - now_ns, grain)  # times of a clock that is ahead are not waited for
    return max(0, int(left.max(initial=0)))
