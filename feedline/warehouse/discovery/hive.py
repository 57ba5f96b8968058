"""List the files of a table: a folder, a file, a list of either, or a glob.

Runs where a snapshot is taken, once per job. The listing is recursive and ordered by typed partition values (nulls
last), then by path. Below the root,

- hidden files and folders (`_x`, `.x`, `.key=value`; not `_key=value`) are skipped;
- files that end in .parquet, .parq or .pq, and files without a suffix (Hive's `000000_0`), belong to the table;
- files with another suffix are skipped and counted.

A file that the user names is read whatever its name. A folder named alone is the root; for files, lists and globs it is
their deepest common folder, without the `key=value` folders at its end. A folder with a table's log (`logs`) is
refused, and so is a file that two paths lead to.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from itertools import takewhile

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.errors import TableArgumentError, TableError, TableNotFoundError
from feedline.progress import report_progress
from feedline.warehouse.discovery.column_log import FILES, FOLDER, LOG, ColumnLog, read_log, with_column_files
from feedline.warehouse.discovery.logs import LogFoundError, logs_above, logs_below, refuse_files_with_log
from feedline.warehouse.discovery.partitions import (
    LISTING,
    Walk,
    is_hidden,
    is_partition,
    links_among,
    refuse_same_files,
    table_order,
    typed_columns,
    walk,
)
from feedline.warehouse.parquet.stored_names import StoredNames
from feedline.warehouse.storage.faults import explain_errors
from feedline.warehouse.storage.file_identity import Stamp, stamp_in, tag_in
from feedline.warehouse.storage.locations import (
    Location,
    absolute,
    info_of,
    is_uri,
    join,
    list_tree,
    locate,
    redact,
    split_options,
    uri_on,
)
from feedline.warehouse.storage.retry import is_local, with_retries

# --------------------------------------------------------------------------------------------------------------------
# Tell Parquet files by their suffixes, and say what makes a table of other files. Runs where a snapshot is taken,
# once per job.

_SUFFIXES = (".parquet", ".parq", ".pq")
# How Polars reads files of text, as they come beside or instead of Parquet.
_TEXTS = {
    **dict.fromkeys((".csv", ".csv.gz", ".csv.zst", ".txt", ".data"), "scan_csv"),
    **dict.fromkeys((".jsonl", ".ndjson"), "scan_ndjson"),
    **dict.fromkeys((".feather", ".arrow", ".ipc"), "scan_ipc"),
}


def is_parquet_name(name: str) -> bool:
    """Whether a file of a folder belongs to its table."""
    if name.endswith("_$folder$"):  # Hadoop's marker of a folder on an object store
        return False
    return name.lower().endswith(_SUFFIXES) or "." not in name


def no_parquet_error(where: str, ignored: list[str]) -> TableNotFoundError:
    """The error of a folder without Parquet files. ignored: the paths of others below it."""
    if not ignored:
        return TableNotFoundError(f"{where} is empty: expected at least one Parquet file below it")
    example = ignored[0].rpartition("/")[2]
    message = f"{where} holds no Parquet file: got {len(ignored)} files with other suffixes ({example})"
    if remedy := _remedy_of_suffix(example):
        return TableNotFoundError(f"{message}. {remedy}")
    return TableNotFoundError(f"{message}, expected names ending in {', '.join(_SUFFIXES)}, or without a suffix")


def _remedy_of_suffix(name: str) -> str:
    """What makes a table of files like this one; empty where the name does not tell."""
    lower = name.lower()
    if any(f"{suffix}." in lower for suffix in _SUFFIXES):  # x.parquet.snappy
        return "Rename them to end in .parquet, such as part-0.snappy.parquet, or list them one by one"
    kind = next((reader for ends, reader in _TEXTS.items() if lower.endswith(ends)), None)
    if kind is None:
        return ""
    return (
        'Convert them: python -c "import polars; '
        f'polars.{kind}({name!r}).sink_parquet({name.partition(".")[0] + ".parquet"!r})"'
    )


# --------------------------------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

_MAGIC = re.compile(r"[*?\[]")
_SUMMARIES = ("_metadata", "_common_metadata")  # as Spark, Dask and pyarrow write them beside a table's files
_MARKER = "_SUCCESS"  # the file that Spark and Hadoop write last


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnHistory:
    """The history of a column with a field id in the log, for files that lack the id or the column.

    `names`: its names in such files, the current one included. `ambiguous`: another column may have its name there.
    `default`: the value in rows of files without it, as a string; None for null. `in_partitions`: for a file that lacks
    it the log has the value.
    """

    names: frozenset[str] = frozenset()
    ambiguous: bool = False
    default: str | None = None
    in_partitions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a table, in the table's order.

    `files`: path (string, relative to `uri`), bytes (int64), mtime_ns (int64; -1 if the store has none) and, if the
    store has one, etag (string), and column_files, if the table has a log of these. `partition`: one typed array per
    key, aligned with `files`. `ignored`: the number of files skipped because of their suffix. `inferred_keys`: those
    whose type was inferred from the paths.
    `source_names`: the names that the user gave, as one string. `schema`: the table's columns, if a log declares
    them (see `table_log`). `histories`: of these columns, by field id. `stored_names`: of the columns in files,
    if the log maps them. `markers`: folders (relative to `uri`) with a file `_SUCCESS`, and its mtime_ns. `columns`:
    the log of column files, if there is one. `column_bytes`: of all column files, by their paths below `uri`, also of
    those that no commit names.
    """

    uri: str
    files: pa.Table
    partition: dict[str, pa.Array]
    ignored: int
    inferred_keys: frozenset[str] = frozenset()
    source_names: str = ""
    schema: pa.Schema | None = None
    histories: Mapping[int, ColumnHistory] = field(default_factory=dict)
    stored_names: StoredNames | None = None
    markers: Mapping[str, int] = field(default_factory=dict)
    columns: ColumnLog | None = None
    column_bytes: Mapping[str, int] = field(default_factory=dict)

    def take(self, positions: npt.NDArray[np.int64]) -> Listing:
        indices = pa.array(positions)
        partition = {name: column.take(indices) for name, column in self.partition.items()}
        return replace(self, files=self.files.take(indices).combine_chunks(), partition=partition)


@dataclass(frozen=True, slots=True)
class _NamedFiles:
    """The files that one of the user's names stands for, and the folder that its path fixes (`anchor`).

    `logs`: as in `logs.logs_above`, of a folder that was listed. `markers`: folders with a file `_SUCCESS`, and its
    mtime_ns. `apart`: as in `discover`, those that are not. `column_files`: all files below the folder's `_columns`, by
    their paths below the folder.
    """

    location: Location
    anchor: str
    files: tuple[pafs.FileInfo, ...]
    tree: Walk
    ignored: tuple[str, ...] = ()
    whole_folder: bool = False
    logs: Mapping[str, str] = field(default_factory=dict)
    markers: Mapping[str, int] = field(default_factory=dict)
    apart: tuple[str, ...] = ()
    column_files: Mapping[str, Stamp] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        return self.anchor == self.location.path


def discover(
    table: str | Sequence[str], *, partitions: Mapping[str, str] | None = None, apart: Mapping[str, str] | None = None
) -> Listing:
    """List a table. `partitions`: types of its keys, see `partitions.KEY_TYPES`. `apart`: folders that others write to,
    by what names them.

    Raises TableNotFoundError if a name does not exist or no Parquet file is found, TableError if a folder may not be
    read, the names are on several filesystems, or a partition's value does not fit its type, TableArgumentError if
    files of a folder in `apart` would be read as the table's.
    """
    names = [table] if isinstance(table, str) else list(table)
    if not names:
        raise TableError("list of files is empty: expected at least one file, folder or glob")
    uris = [absolute(name) for name in names]
    _refuse_several_stores(uris)
    entries = [_find(uri, apart or {}) for uri in uris]
    first = entries[0].location
    infos = {info.path: info for entry in entries for info in entry.files}
    ignored = sorted({path for entry in entries for path in entry.ignored})
    if not infos:
        raise no_parquet_error(redact(first.uri), ignored)
    _refuse_files_with_log(entries, infos, named=isinstance(table, str) and not entries[0].is_folder)
    for uri, entry in zip(uris, entries, strict=True):
        for name in entry.apart:
            raise _not_apart_error(name, (apart or {})[name], uri)
    if is_local(first.filesystem) and (len(entries) > 1 or entries[0].tree.links or entries[0].tree.duplicates):
        duplicates = {folder: first for entry in entries for folder, first in entry.tree.duplicates.items()}
        refuse_same_files(infos, {link for entry in entries for link in entry.tree.links}, duplicates)
    whole_folder = len(entries) == 1 and entries[0].whole_folder
    root = first.path if whole_folder else common_root([entry.anchor for entry in entries])
    listing = hive_listing(uri_on(first, root), root, infos, partitions)
    if whole_folder:  # in fsspec's cache now; other names would be listed again
        listing = _tag(listing, first)
    listing = _with_column_files(listing, first, root, entries)
    every_marker = [marker for entry in entries for marker in entry.markers.items()]
    markers = {_relative(folder, root): time for folder, time in every_marker if folder.startswith(join(root, ""))}
    return replace(listing, ignored=len(ignored), source_names="\n".join(sorted(set(uris))), markers=markers)


def _with_column_files(listing: Listing, first: Location, root: str, entries: Sequence[_NamedFiles]) -> Listing:
    """The listing of a folder, or of a glob in it, with the folder's column files. A file named alone has none."""
    stamps = next((entry.column_files for entry in entries if entry.is_folder and entry.anchor == root), {})
    names = [path[len(LOG) + 1 :] for path in stamps if path.startswith(f"{LOG}/")]
    log = read_log(replace(first, path=root), names)
    if log is None:
        return listing
    files = with_column_files(listing.files, log, stamps, redact(listing.uri))
    sizes = {path: stamp.size_bytes for path, stamp in stamps.items() if path.startswith(f"{FILES}/")}
    return replace(listing, columns=log, files=files, column_bytes=sizes)


def matches_any(uri: str, names: Iterable[str]) -> bool:
    """Whether a file is one of the named files, or below a named folder, or matches a glob. Lists nothing."""
    return any(_matches(name, uri) for name in names)


def _matches(name: str, uri: str) -> bool:
    if uri == name or uri.startswith(join(name, "")):
        return True
    base, pattern = _split_glob(name)
    folder = join(base, "")
    return bool(pattern) and uri.startswith(folder) and _glob_matches(pattern.split("/"), uri[len(folder) :].split("/"))


def _refuse_files_with_log(entries: Sequence[_NamedFiles], infos: Mapping[str, pafs.FileInfo], *, named: bool) -> None:
    """named: the user has named one file."""
    first = entries[0].location
    logs = {root: mark for entry in entries for root, mark in entry.logs.items()}
    listed = {entry.anchor for entry in entries if entry.is_folder}
    anchors = sorted({entry.anchor for entry in entries})
    above = logs_above(first, anchors, listed=listed, name=redact(first.uri))
    try:
        refuse_files_with_log(first, infos, {**above, **logs})
    except LogFoundError as error:
        if not named:
            raise
        logger.warning("%s is read although %s", redact(first.uri), str(error).partition(", so its folders")[0])


def _refuse_several_stores(uris: list[str]) -> None:
    first = locate(_split_glob(uris[0])[0])
    for uri in uris[1:]:
        if not locate(_split_glob(uri)[0]).filesystem.equals(first.filesystem):
            raise TableError(
                f"files of one table are on several stores: got {redact(uris[0])} and {redact(uri)}, expected one. "
                "Name one of them, or make two tables"
            )


def _find(uri: str, apart: Mapping[str, str]) -> _NamedFiles:
    location = _locate_existing(uri)
    if location is not None:
        info = _info(location)
        if info.type == pafs.FileType.File:
            if info.base_name in _SUMMARIES:
                raise TableError(
                    f"{redact(uri)} holds the footers of a table's files: expected a file of rows. Name its folder"
                )
            tree = Walk(links=links_among([info.path]) if is_local(location.filesystem) else set())
            return _NamedFiles(location, parent(location.path), (info,), tree)
        return _folder(location, apart)
    base, pattern = _split_glob(uri)
    folder = _locate_existing(base) if pattern else None
    if folder is None:
        raise TableNotFoundError(f"{redact(uri)} does not exist: expected a Parquet file, a folder of them or a glob")
    return _filter_by_glob(_folder(folder, apart, pattern), pattern)


def _locate_existing(uri: str) -> Location | None:
    """The location of a name, or None if it does not exist; a glob in a URI may not even parse."""
    if is_uri(uri) and _MAGIC.search(uri.partition("?")[0]):
        return None
    location = locate(uri)
    return None if _info(location).type == pafs.FileType.NotFound else location


def _info(location: Location) -> pafs.FileInfo:
    files, name = location.filesystem, redact(location.uri)
    with explain_errors(name):
        return with_retries(lambda: info_of(files, location.path), files, name, verb="listed")


def _folder(location: Location, apart: Mapping[str, str], pattern: str = "") -> _NamedFiles:
    root, local = location.path, is_local(location.filesystem)
    report_progress(LISTING, 0, None, "files")
    with explain_errors(redact(location.uri)):
        tree = walk(root) if local else Walk(list_tree(location))
    files: list[pafs.FileInfo] = []
    ignored: list[str] = []
    hidden: dict[str, bool] = {}
    markers: dict[str, int] = {}
    column_files: dict[str, Stamp] = {}
    for info in tree.infos:
        if info.type == pafs.FileType.Directory:
            continue
        folder = parent(info.path)
        if (path := _relative(info.path, root)).startswith(f"{FOLDER}/"):
            column_files[path] = stamp_in(info)
        if folder not in hidden:
            hidden[folder] = any(is_hidden(segment) for segment in _relative(folder, root).split("/"))
        if info.base_name == _MARKER and not hidden[folder]:
            markers[folder] = -1 if info.mtime_ns is None else info.mtime_ns
        if hidden[folder] or is_hidden(info.base_name):
            continue
        if not is_parquet_name(info.base_name):
            ignored.append(info.path)
            continue
        if local and info.type != pafs.FileType.File:
            raise _not_a_file_error(info)
        files.append(info)
    return _NamedFiles(
        location,
        root,
        tuple(files),
        tree,
        tuple(ignored),
        whole_folder=True,
        logs=logs_below(root, [folder for folder, covered in hidden.items() if covered], ignored),
        markers=markers,
        apart=tuple(name for name, uri in apart.items() if _would_read(location, tree, pattern, uri)),
        column_files=column_files,
    )


def _would_read(table: Location, tree: Walk, pattern: str, folder: str) -> bool:
    """Whether the table has the files of another folder, which need not exist yet. tree: of the table's folder."""
    local, elsewhere = is_local(table.filesystem), is_uri(folder) and not folder.lower().startswith("file://")
    if local == elsewhere:  # no store is asked, as the folder may never be used
        return False
    location = locate(absolute(folder))
    if location.filesystem.type_name != table.filesystem.type_name:
        return False
    entered = tree.entered if local else {table.path: table.path}
    above, below = os.path.realpath(location.path) if local else location.path, ""
    while above not in entered:  # the nearest folder of the table, also through a link in it
        if not above.strip("/"):
            return False
        above, name = parent(above), above.rpartition("/")[2]
        below = join(name, below) if below else name
    segments = [part for part in (*_relative(entered[above], table.path).split("/"), *below.split("/")) if part]
    if any(is_hidden(segment) for segment in segments):
        return False
    return not pattern or _glob_matches(pattern.split("/"), [*segments, "folder", "file.parquet"])


def _not_a_file_error(info: pafs.FileInfo) -> TableError:
    if info.type == pafs.FileType.NotFound:
        return TableError(f"{info.path} is a dangling link: expected a file. Restore the file, or remove the link")
    return TableError(f"{info.path} is a pipe or a device: expected a file. Remove it, or name the files")


def _filter_by_glob(folder: _NamedFiles, pattern: str) -> _NamedFiles:
    """The folder's files that match the pattern, or are below a folder that matches."""
    segments = pattern.split("/")
    root = folder.location.path
    files = tuple(info for info in folder.files if _glob_matches(segments, _relative(info.path, root).split("/")))
    ignored = tuple(path for path in folder.ignored if _glob_matches(segments, _relative(path, root).split("/")))
    if not files:
        raise TableNotFoundError(
            f"{join(redact(folder.location.uri), pattern)} matches no Parquet file: expected at least one, "
            f"got none of the {len(folder.files)} below {redact(folder.location.uri)}"
        )
    return replace(folder, files=files, ignored=ignored, whole_folder=False)


def _glob_matches(pattern: list[str], segments: list[str]) -> bool:
    """Whether a glob, segment by segment, matches the path or a folder above it; `**` is any number of folders."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_glob_matches(pattern[1:], segments[start:]) for start in range(len(segments)))
    return bool(segments) and fnmatchcase(segments[0], pattern[0]) and _glob_matches(pattern[1:], segments[1:])


def _split_glob(uri: str) -> tuple[str, str]:
    """The folder before the first segment with a wildcard, and the pattern from there on ("" if there is none):
    `s3://b/t/ds=*/x?region=eu` -> `s3://b/t?region=eu`, `ds=*/x`."""
    address, options = split_options(uri)
    segments = address.split("/")
    for index, segment in enumerate(segments):
        if _MAGIC.search(segment):
            base = "/".join(segments[:index]) or "/"
            return base + options, "/".join(segments[index:])
    return uri, ""


def _relative(path: str, root: str) -> str:
    return path[len(root) :].lstrip("/") if root else path


def parent(path: str) -> str:
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else "")


def common_segments(folders: Iterable[str]) -> list[str]:
    """The names of the deepest common folder: `[a/b/c, a/b, a/b/d]` -> `[a, b]`."""
    levels = zip(*(folder.split("/") for folder in folders), strict=False)
    return [names[0] for names in takewhile(lambda names: len(set(names)) == 1, levels)]


def common_root(folders: list[str]) -> str:
    """The deepest common folder, without the `key=value` folders at its end: of `/t/ds=1/h=2` and `/t/ds=1/h=3`,
    `/t`."""
    shared = common_segments(folders)
    while shared and is_partition(shared[-1]):
        shared = shared[:-1]
    return "/".join(shared) or ("/" if folders[0].startswith("/") else "")


def hive_listing(
    uri: str, root: str, infos: Mapping[str, pafs.FileInfo], partitions: Mapping[str, str] | None
) -> Listing:
    """The listing of files below a root, whose folders are the partition keys. `partitions`: types of some keys."""
    keys = typed_columns([_relative(path, root) for path in infos], partitions)
    return replace(listing_of(uri, root, infos, keys), inferred_keys=frozenset(keys).difference(partitions or ()))


def listing_of(uri: str, root: str, infos: Mapping[str, pafs.FileInfo], partition: Mapping[str, pa.Array]) -> Listing:
    """The listing of files (by their paths) below a root, given by its URI and its path on the filesystem.

    `partition`: one array per key, aligned with the files.
    """
    paths = [_relative(path, root) for path in infos]
    columns = {
        "path": pa.array(paths, pa.string()),
        "bytes": pa.array([info.size for info in infos.values()], pa.int64()),
        "mtime_ns": pa.array([-1 if info.mtime_ns is None else info.mtime_ns for info in infos.values()], pa.int64()),
    }
    listing = Listing(uri=uri, files=pa.table(columns), partition=dict(partition), ignored=0)
    return listing.take(table_order([path.split("/") for path in paths], partition))


def _tag(listing: Listing, folder: Location) -> Listing:
    """Add the entity tags of an fsspec store; pyarrow's own filesystems do not list them."""
    handler = getattr(folder.filesystem, "handler", None)
    find = getattr(getattr(handler, "fs", None), "find", None)
    if find is None:
        return listing
    with explain_errors(redact(folder.uri)):
        details = find(folder.path, detail=True)  # mostly from fsspec's cache
    paths = [join(folder.path, path) for path in listing.files["path"].to_pylist()]
    tags = [tag_in(details.get(path) or details.get(path.lstrip("/")) or {}) or None for path in paths]
    if all(tag is None for tag in tags):
        return listing
    return replace(listing, files=listing.files.append_column("etag", pa.array(tags, pa.string())))


def _not_apart_error(name: str, folder: str, table: str) -> TableArgumentError:
    return TableArgumentError(
        f"{name} lies in the table: got {redact(folder)}, whose files {redact(table)} would read as rows, expected a "
        "folder beside the table, or one with a hidden name. Move it, or begin its name with a dot"
    )
