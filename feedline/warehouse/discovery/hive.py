"""List the files of a table: a folder, a file, a list of either, or a glob.

Runs where a snapshot is taken, once per job; nothing else in Feedline lists a table. The listing is recursive, through
`pyarrow.fs`, and in a fixed order: by the typed partition values (so `month=2` comes before `month=10`, nulls last),
then by path. Below the root,

- hidden files and folders (`_x`, `.x`; not `_key=value`) are left out, as every writer's bookkeeping is hidden so;
- files that end in .parquet, .parq or .pq, and files with no suffix at all (Hive's `000000_0`), are the table's;
- files with another suffix are left out and counted.

A file that the user names, alone or in a list, is taken whatever it is called. A folder named alone is the root. For
files, lists and globs the root is their deepest common folder, less the `key=value` folders at its end, so that a
list of one day's files still has the day as a column.

A folder with a log that says which files are current (`logs`) is refused, and so is a file that symbolic links put into
the table twice (`links`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from feedline.errors import TableError, TableNotFoundError
from feedline.warehouse.discovery.links import Walk, links_among, refuse_same_files, walk
from feedline.warehouse.discovery.logs import logs_above, logs_below, refuse_logged
from feedline.warehouse.discovery.partitions import is_hidden, is_partition, typed_columns
from feedline.warehouse.storage.faults import explain_errors
from feedline.warehouse.storage.locations import (
    Location,
    absolute,
    ancestor,
    is_uri,
    join,
    list_tree,
    locate,
    redact,
)
from feedline.warehouse.storage.retry import is_local, with_retries

_SUFFIXES = (".parquet", ".parq", ".pq")
_TAGS = ("ETag", "etag", "generation", "md5Hash", "content_md5")  # as s3fs, adlfs and gcsfs name it
_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPast:
    """The past of a column with a field id in the log, for files that lack the id, or the column.

    `names`: those that such files may have for it, its own included. `ambiguous`: its name may be another column's
    there. `default`: the value in rows of files without it, as a string; None for a null. `in_partitions`: a file
    that lacks it has its value in the log.
    """

    names: frozenset[str] = frozenset()
    ambiguous: bool = False
    default: str | None = None
    in_partitions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a table, in the table's order.

    `files` has columns path (string, relative to `uri`), bytes (int64), mtime_ns (int64; -1 where the store has
    none) and, where the store gives one, etag (string); `partition` one typed array per key, aligned with it.
    `ignored` counts the files left out because of their suffix. `inferred`: keys whose type was inferred from
    the paths. `asked`: the names that the user gave, as one string. `schema`: the table's columns, where a log declares
    them (see `table_log`). `pasts`: of its columns, by field id.
    """

    uri: str
    files: pa.Table
    partition: dict[str, pa.Array]
    ignored: int
    inferred: frozenset[str] = frozenset()
    asked: str = ""
    schema: pa.Schema | None = None
    pasts: Mapping[int, ColumnPast] = field(default_factory=dict)

    def take(self, places: npt.NDArray[np.int64]) -> Listing:
        """Some of the files."""
        kept = pa.array(places)
        partition = {name: column.take(kept) for name, column in self.partition.items()}
        return replace(self, files=self.files.take(kept).combine_chunks(), partition=partition)


@dataclass(frozen=True, slots=True)
class _Found:
    """The files behind one of the user's names: its location, the folder that it fixes, and the files.

    `logs`: as in `logs.logs_above`, of a folder that was listed. `links`, `again`: as in `links.Walk`.
    """

    location: Location
    anchor: str
    files: tuple[pafs.FileInfo, ...]
    ignored: tuple[str, ...] = ()
    whole_folder: bool = False
    logs: Mapping[str, str] = field(default_factory=dict)
    links: frozenset[str] = frozenset()
    again: Mapping[str, str] = field(default_factory=dict)


def discover(table: str | Sequence[str], *, partitions: Mapping[str, str] | None = None) -> Listing:
    """List a table. `partitions`: types of its keys, see `partitions.KEY_TYPES`.

    Raises TableNotFoundError where a name does not exist or no Parquet file is found, TableError where a folder may
    not be read, the names lie on several filesystems, or a partition's value does not fit its type.
    """
    names = [table] if isinstance(table, str) else list(table)
    if not names:
        raise TableError("list of files is empty: expected at least one file, folder or glob")
    uris = [absolute(name) for name in names]
    _refuse_several_stores(uris)
    found = [_find(uri) for uri in uris]
    first = found[0].location
    infos = {info.path: info for entry in found for info in entry.files}
    ignored = sorted({path for entry in found for path in entry.ignored})
    if not infos:
        raise _nothing(redact(first.uri), ignored)
    _refuse_logged(found, infos)
    if is_local(first.filesystem) and (len(found) > 1 or found[0].links or found[0].again):
        again = {folder: known for entry in found for folder, known in entry.again.items()}
        refuse_same_files(infos, {link for entry in found for link in entry.links}, again)
    root = first.path if len(found) == 1 and found[0].whole_folder else common_root([entry.anchor for entry in found])
    uri = ancestor(first.uri, depth(first.path) - depth(root))
    listing = listing_of(uri, root, infos, partitions)
    if len(found) == 1 and found[0].whole_folder:  # which an fsspec store has just listed; others would be listed anew
        listing = _tag(listing, first)
    return replace(listing, ignored=len(ignored), asked="\n".join(sorted(set(uris))))


def named_by(uri: str, names: Iterable[str]) -> bool:
    """Whether a file is one of some files, or of those that folders or globs among them hold; nothing is listed."""
    return any(_holds(name, uri) for name in names)


def _holds(name: str, uri: str) -> bool:
    if uri == name or uri.startswith(join(name, "")):
        return True
    base, pattern = _split_glob(name)
    folder = join(base, "")
    return bool(pattern) and uri.startswith(folder) and _names(pattern.split("/"), uri[len(folder) :].split("/"))


def _refuse_logged(found: Sequence[_Found], infos: Mapping[str, pafs.FileInfo]) -> None:
    first = found[0].location
    logs = {root: mark for entry in found for root, mark in entry.logs.items()}
    shown_already = {entry.anchor for entry in found if entry.location.path == entry.anchor}
    anchors = sorted({entry.anchor for entry in found})
    above = logs_above(first, anchors, listed=shown_already, name=redact(first.uri))
    refuse_logged(first, infos, {**above, **logs})


def _refuse_several_stores(uris: list[str]) -> None:
    first = locate(_split_glob(uris[0])[0])
    for uri in uris[1:]:
        if not locate(_split_glob(uri)[0]).filesystem.equals(first.filesystem):
            raise TableError(
                f"files of one table lie on several stores: got {redact(uris[0])} and {redact(uri)}, expected one. "
                "Name one of them, or make two tables"
            )


def _find(uri: str) -> _Found:
    location = _existing(uri)
    if location is not None:
        info = _info(location)
        if info.type == pafs.FileType.File:
            links = links_among([info.path]) if is_local(location.filesystem) else ()
            return _Found(location, parent(location.path), (info,), links=frozenset(links))
        return _folder(location)
    base, pattern = _split_glob(uri)
    folder = _existing(base) if pattern else None
    if folder is None:
        raise TableNotFoundError(f"{redact(uri)} does not exist: expected a Parquet file, a folder of them or a glob")
    return _matching(_folder(folder), pattern)


def _existing(uri: str) -> Location | None:
    """The location, or None where nothing is there; a glob in a URI may not even parse."""
    if is_uri(uri) and _MAGIC.search(uri.partition("?")[0]):
        return None
    location = locate(uri)
    return None if _info(location).type == pafs.FileType.NotFound else location


def _info(location: Location) -> pafs.FileInfo:
    files, name = location.filesystem, redact(location.uri)
    with explain_errors(name):
        return with_retries(lambda: files.get_file_info(location.path), files, name, verb="listed")


def _folder(location: Location) -> _Found:
    root, local = location.path, is_local(location.filesystem)
    with explain_errors(redact(location.uri)):
        found = walk(root) if local else Walk(list_tree(location))
    files: list[pafs.FileInfo] = []
    ignored: list[str] = []
    hidden: dict[str, bool] = {}
    for info in found.infos:
        if info.type == pafs.FileType.Directory:
            continue
        folder = parent(info.path)
        if folder not in hidden:
            hidden[folder] = any(is_hidden(segment) for segment in _relative(folder, root).split("/"))
        if hidden[folder] or is_hidden(info.base_name):
            continue
        if not _is_parquet_name(info.base_name):
            ignored.append(info.path)
            continue
        if local and info.type != pafs.FileType.File:
            raise _no_file(info)
        files.append(info)
    return _Found(
        location,
        root,
        tuple(files),
        tuple(ignored),
        whole_folder=True,
        logs=logs_below(root, [folder for folder, covered in hidden.items() if covered], ignored),
        links=frozenset(found.links),
        again=found.again,
    )


def _no_file(info: pafs.FileInfo) -> TableError:
    if info.type == pafs.FileType.NotFound:
        return TableError(f"{info.path} is a link to nothing: expected a file. Restore the file, or remove the link")
    return TableError(f"{info.path} is a pipe or a device: expected a file. Remove it, or name the files")


def _matching(folder: _Found, pattern: str) -> _Found:
    """The folder's files that the pattern names, or that lie in a folder that it names."""
    wanted = pattern.split("/")
    root = folder.location.path
    files = tuple(info for info in folder.files if _names(wanted, _relative(info.path, root).split("/")))
    ignored = tuple(path for path in folder.ignored if _names(wanted, _relative(path, root).split("/")))
    if not files:
        raise TableNotFoundError(
            f"{join(redact(folder.location.uri), pattern)} matches no Parquet file: expected at least one, "
            f"got none of the {len(folder.files)} below {redact(folder.location.uri)}"
        )
    return replace(folder, files=files, ignored=ignored, whole_folder=False)


def _names(pattern: list[str], segments: list[str]) -> bool:
    """Whether a glob, segment by segment, names the path or a folder that holds it; `**` is any number of folders."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_names(pattern[1:], segments[start:]) for start in range(len(segments)))
    return bool(segments) and fnmatchcase(segments[0], pattern[0]) and _names(pattern[1:], segments[1:])


def _split_glob(uri: str) -> tuple[str, str]:
    """The folder before the first segment with a wildcard, and the pattern from there on ("" where there is none)."""
    address, mark, options = uri.partition("?") if is_uri(uri) else (uri, "", "")
    segments = address.split("/")
    for index, segment in enumerate(segments):
        if _MAGIC.search(segment):
            base = "/".join(segments[:index]) or "/"
            return base + mark + options, "/".join(segments[index:])
    return uri, ""


def _is_parquet_name(name: str) -> bool:
    if name.endswith("_$folder$"):  # what Hadoop leaves on object stores in place of a folder
        return False
    return name.lower().endswith(_SUFFIXES) or "." not in name


def _relative(path: str, root: str) -> str:
    return path[len(root) :].lstrip("/") if root else path


def depth(path: str) -> int:
    """How many folders and names a path is made of."""
    return len([segment for segment in path.split("/") if segment])


def parent(path: str) -> str:
    """The folder that a path lies in."""
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else "")


def common_root(folders: list[str]) -> str:
    """The deepest folder that holds all of these, less the `key=value` folders at its end."""
    split = [folder.split("/") for folder in folders]
    shared = split[0]
    for other in split[1:]:
        length = min(len(shared), len(other))
        shared = shared[: next((i for i in range(length) if shared[i] != other[i]), length)]
    while shared and is_partition(shared[-1]):
        shared = shared[:-1]
    return "/".join(shared) or ("/" if folders[0].startswith("/") else "")


def listing_of(
    uri: str, root: str, infos: Mapping[str, pafs.FileInfo], partitions: Mapping[str, str] | None
) -> Listing:
    """Files below a root (its URI, and its path on the filesystem), by their paths there, in the table's order."""
    start = len(root) + (not root.endswith("/")) if root else 0
    paths = sorted((path[start:] for path in infos), key=lambda path: path.split("/"))
    prefix = next(iter(infos))[:start]
    partition = typed_columns(paths, partitions)
    order = _table_order(len(paths), partition)
    ordered = [infos[prefix + paths[i]] for i in order.tolist()]
    columns = {
        "path": pa.array([paths[i] for i in order.tolist()], pa.string()),
        "bytes": pa.array([info.size for info in ordered], pa.int64()),
        "mtime_ns": pa.array([-1 if info.mtime_ns is None else info.mtime_ns for info in ordered], pa.int64()),
    }
    return Listing(
        uri=uri,
        files=pa.table(columns),
        partition={name: column.take(pa.array(order)) for name, column in partition.items()},
        ignored=0,
        inferred=frozenset(partition).difference(partitions or ()),
    )


def _table_order(files: int, partition: dict[str, pa.Array]) -> npt.NDArray[np.int64]:
    """Positions by typed partition values, nulls last; equal ones stay in path order."""
    ranks = [np.arange(files)]
    for column in partition.values():
        coded = column.dictionary_encode()
        by_value = pc.sort_indices(coded.dictionary).to_numpy()
        rank = np.empty(len(by_value) + 1, np.int64)
        rank[by_value] = np.arange(len(by_value))
        rank[-1] = len(by_value)  # what null's code is made to point at
        codes = coded.indices.fill_null(len(by_value)).to_numpy()
        ranks.append(rank[codes])
    return np.lexsort((ranks[0], *reversed(ranks[1:])))


def _tag(listing: Listing, folder: Location) -> Listing:
    """The listing with the entity tags of an fsspec store; pyarrow's own filesystems do not show them."""
    handler = getattr(folder.filesystem, "handler", None)
    find = getattr(getattr(handler, "fs", None), "find", None)
    if find is None:
        return listing
    with explain_errors(redact(folder.uri)):
        details = find(folder.path, detail=True)  # mostly out of fsspec's own cache
    paths = [join(folder.path, path) for path in listing.files["path"].to_pylist()]
    tags = [_etag(details.get(path) or details.get(path.lstrip("/")) or {}) for path in paths]
    if all(tag is None for tag in tags):
        return listing
    return replace(listing, files=listing.files.append_column("etag", pa.array(tags, pa.string())))


def _etag(detail: Mapping[str, Any]) -> str | None:
    found = next((detail[name] for name in _TAGS if detail.get(name)), None)
    return None if found is None else str(found)


def _nothing(where: str, ignored: list[str]) -> TableNotFoundError:
    if not ignored:
        return TableNotFoundError(f"{where} is empty: expected at least one Parquet file below it")
    example = ignored[0].rpartition("/")[2]
    return TableNotFoundError(
        f"{where} holds no Parquet file: got {len(ignored)} files with other suffixes ({example}), "
        f"expected names ending in {', '.join(_SUFFIXES)}, or without a suffix"
    )
