"""Tell which files of a growing table have landed, and which of them no epoch has read yet.

Pure; runs where a snapshot is taken. A partition is a folder of files; a file beside the table's folders is a partition
of its own. In a table with a log, everything that the log names has landed, and a partition is one value of its keys.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from feedline.dataclass import dataclass
from feedline.errors import TableError
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.storage.file_identity import known_files
from feedline.warehouse.storage.locations import join, redact

Int64s = npt.NDArray[np.int64]
_SKEW_S = 60  # by which clocks of hosts and stores may differ without a word
_NS = 10**9
_SHOWN = 3  # partitions in a message
_RECORDED = ("path", "bytes", "mtime_ns", "etag", "footer_digest")  # of a file that an epoch reads


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingRule:
    """When a partition has landed: at once (a table's log), after a quiet time, or with the file `_SUCCESS`.

    now_ns: the moment of the decision, which `until` may have passed. until_ns: later files and markers do not exist.
    """

    logged: bool = False
    quiet_s: int | None = None
    now_ns: int = 0
    until_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """The files that have landed, their number of partitions, and why other partitions have not, by their names."""

    listing: Listing
    partitions: int
    left_out: Mapping[str, str]

    def describe(self) -> str:
        """One line: `3 partitions have landed, 1 not: ds=2026-01-04 holds no _SUCCESS`."""
        head = f"{self.partitions:,} {plural('partition', self.partitions)} landed"
        if not self.left_out:
            return head
        some = [f"{name} {reason}" for name, reason in list(self.left_out.items())[:_SHOWN]]
        more = f" and {len(self.left_out) - _SHOWN:,} more" if len(self.left_out) > _SHOWN else ""
        return f"{head}, {len(self.left_out):,} not: {', '.join(some)}{more}"


def plural(word: str, count: int) -> str:
    """The word and the verb for a count: partition has, partitions have."""
    return f"{word} has" if count == 1 else f"{word}s have"


def landed(listing: Listing, rule: LandingRule) -> Landing:
    """The files of a listing that have landed by a rule. Raises TableError where the table does not fit the rule."""
    if rule.logged != (listing.schema is not None):
        name = redact(listing.uri)
        raise TableError(
            f"{name} has no log: got `landed: log`. Write `landed: _SUCCESS`, or `landed: quiet 10m`"
            if rule.logged
            else f"{name} has a log, which says what has landed: got another `landed`. Write `landed: log`"
        )
    if rule.logged:
        return Landing(listing=listing, partitions=len(pc.unique(partition_names(listing))), left_out={})
    mtime_ns = contiguous(listing.files["mtime_ns"]).to_numpy()
    if (mtime_ns < 0).any() and (rule.quiet_s is not None or rule.until_ns is not None):
        raise TableError(
            f"{redact(listing.uri)} has files without modification times, which `landed: quiet` and `until` compare. "
            "Write `landed: _SUCCESS` without `until`"
        )
    exists = np.ones(len(mtime_ns), np.bool_) if rule.until_ns is None else mtime_ns <= rule.until_ns
    names = partition_names(listing).dictionary_encode()
    folders, code = names.dictionary.to_pylist(), names.indices.to_numpy()
    reasons = _unmarked(listing, folders, rule) if rule.quiet_s is None else _restless(folders, code, mtime_ns, rule)
    for folder in np.setdiff1d(np.arange(len(folders)), code[exists]).tolist():
        reasons[folder] = "has files after `until` only"
    open_folders = np.zeros(len(folders), np.bool_)
    open_folders[list(reasons)] = True
    arrived = np.flatnonzero(exists & ~open_folders[code])
    return Landing(
        listing=listing.take(arrived),
        partitions=len(folders) - len(reasons),
        left_out={folders[index]: reason for index, reason in sorted(reasons.items())},
    )


def partition_names(listing: Listing) -> pa.Array:
    """string [files]: each file's partition: its folder, or its path if that is the table's; with a log, the values of
    the keys."""
    if listing.schema is not None:
        return value_names(listing.partition, len(listing.files))
    return folder_names(listing.files["path"])


def folder_names(paths: pa.ChunkedArray) -> pa.Array:
    """The folders of paths; the path itself of a file without one: `ds=1/h=2/a.parquet` -> `ds=1/h=2`."""
    path = contiguous(paths)
    folder = pc.replace_substring_regex(path, r"/?[^/]*$", "")
    return pc.if_else(pc.equal(folder, ""), path, folder)


def value_names(partition: Mapping[str, pa.Array], files: int) -> pa.Array:
    """The values of partition keys as one string per file, `ds=null/h=y`; of a table without keys, an empty one."""
    if not partition:
        return pa.array([""] * files, pa.string())
    parts = [
        pc.binary_join_element_wise(name, pc.fill_null(column.cast(pa.string()), "null"), "=")
        for name, column in partition.items()
    ]
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, "/")


def _unmarked(listing: Listing, folders: list[str], rule: LandingRule) -> dict[int, str]:
    """The partitions without the file `_SUCCESS` in their folder or one above it, below the table's own."""
    marked = {
        folder
        for folder, mtime_ns in listing.markers.items()
        if folder and (rule.until_ns is None or mtime_ns <= rule.until_ns)
    }
    flat = set(contiguous(listing.files["path"]).to_pylist())
    reasons = {}
    for index, folder in enumerate(folders):
        if folder in flat:
            raise TableError(
                f"{join(redact(listing.uri), folder)} is in no partition folder, so that `landed: _SUCCESS` says "
                "nothing of it. Write files into folders such as ds=2026-01-31, or write `landed: quiet 10m`"
            )
        parts = folder.split("/")
        if marked.isdisjoint("/".join(parts[:stop]) for stop in range(1, len(parts) + 1)):
            reasons[index] = "holds no _SUCCESS"
    return reasons


def _restless(folders: list[str], code: npt.NDArray[np.int32], mtime_ns: Int64s, rule: LandingRule) -> dict[int, str]:
    """The partitions of which a file was written less than the quiet time ago; of files that exist."""
    assert rule.quiet_s is not None
    now_ns = rule.now_ns if rule.until_ns is None else min(rule.now_ns, rule.until_ns)
    newest = np.full(len(folders), np.iinfo(np.int64).min, np.int64)
    known = np.ones(len(mtime_ns), np.bool_) if rule.until_ns is None else mtime_ns <= rule.until_ns
    np.maximum.at(newest, code[known], mtime_ns[known])
    restless = np.flatnonzero(newest > now_ns - rule.quiet_s * _NS)
    return {
        index: _age((now_ns - int(newest[index])) // _NS)
        for index in restless.tolist()
        if newest[index] > np.iinfo(np.int64).min
    }


def _age(seconds: int) -> str:
    if seconds >= -_SKEW_S:
        return f"was written {max(0, seconds):,} s ago"
    return f"has a file whose time lies {-seconds:,} s ahead of this host's clock: correct it (touch), or the clock"


# -- files that epochs have read --------------------------------------------------------------------------------------


def seen_files(files: pa.Table, names: pa.Array, epoch: int) -> pa.Table:
    """The record of a snapshot's files, which an epoch reads: path, bytes, mtime_ns, etag, footer_digest, folder (their
    partition, from `names`) and epoch."""
    if "etag" not in files.schema.names:
        files = files.append_column("etag", pa.nulls(len(files), pa.string()))
    epochs = pa.array(np.full(len(files), epoch, np.int64))
    return files.select(_RECORDED).append_column("folder", names).append_column("epoch", epochs).combine_chunks()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Landed files against those that epochs have read: indices of the listing.

    `new`: no epoch has read them. `altered`: an epoch has read another file of this path (`file_identity`), whose index
    in the record is in `of`; where a store has neither tags nor times, one of another size. `rewritten`: partitions
    from which files that epochs have read have gone, while others came: (partition, a file that went, a file that
    came).
    """

    new: Int64s
    altered: Int64s
    of: Int64s
    rewritten: tuple[tuple[str, str, str], ...]


def arrivals(listing: Listing, seen: pa.Table) -> Arrivals:
    """Compare landed files with the record of files that epochs have read (`seen_files`)."""
    path, names = contiguous(listing.files["path"]), partition_names(listing)
    known = known_files(listing.files, seen)
    new = np.flatnonzero(known.index < 0)
    gone = pc.invert(pc.is_in(contiguous(seen["path"]), value_set=path))
    lost = seen.filter(gone)
    came = names.take(pa.array(new))
    changed = lost.filter(pc.is_in(contiguous(lost["folder"]), value_set=came))
    rewritten = []
    for folder in pc.unique(contiguous(changed["folder"])).to_pylist():
        went = changed.filter(pc.equal(changed["folder"], folder))["path"][0].as_py()
        arrived = path[int(new[pc.index(came, folder).as_py()])].as_py()
        rewritten.append((folder, went, arrived))
    altered = np.flatnonzero((known.index >= 0) & ~known.agrees)
    return Arrivals(new=new, altered=altered, of=known.index[altered], rewritten=tuple(rewritten))
