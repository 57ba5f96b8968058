"""Parse Hive partition keys from paths, and infer their types from all their values.

Pure. A folder `key=value` below the table's root gives its files the column `key`. Keys and values are
percent-decoded; `__HIVE_DEFAULT_PARTITION__` is null, and so is a key that a file's path lacks. The type of a key is
the one that the pipeline declares (`declared`); else, if the files hold the key as a column too, that column's
(`refine`), if all values fit and mean the same there: an integer never becomes a time, nor a date an integer; else it
is inferred from all values in the table:

- int64 if all are integers that fit, zero-padded ones (`month=01`) included, as in Spark and pyarrow;
- date32 if all are ISO dates (`ds=2026-01-31`);
- string otherwise, also for keys without any value but null.
"""

from __future__ import annotations

import datetime
import errno
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.errors import TableError
from feedline.progress import report_progress
from feedline.warehouse.parquet.schemas import is_text

NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"

_INTEGER = re.compile(r"-?[0-9]{1,40}\Z", re.ASCII)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z", re.ASCII)
_BASIC_DATE = re.compile(r"[0-9]{8}\Z", re.ASCII)
_INT64 = range(-(2**63), 2**63)


def is_partition(segment: str) -> bool:
    """Whether a folder's name is `key=value` with a non-empty key."""
    return segment.find("=") > 0


def is_hidden(segment: str) -> bool:
    """Whether files and folders of that name are a writer's bookkeeping, not part of a table: as Spark has it, `_key=1`
    is a partition, `.key=1` is hidden."""
    return segment.startswith(".") or (segment.startswith("_") and not is_partition(segment))


def keys_of_path(path: str) -> dict[str, str | None]:
    """The partition keys of a file's path (relative to the table's root) and their strings, in path order."""
    keys: dict[str, str | None] = {}
    for segment in path.split("/")[:-1]:
        if not is_partition(segment):
            continue
        name, _, string = segment.partition("=")
        name = _decode(name)
        if name in keys:
            raise TableError(f"path {path!r} names partition key {name!r} twice: expected each key once")
        keys[name] = None if string == NULL_VALUE else _decode(string)
    return keys


def typed_columns(paths: Sequence[str], declared: Mapping[str, str] | None = None) -> dict[str, pa.Array]:
    """One typed column per key, one value per path; keys in order of first appearance.

    `declared`: types of keys, by the names of `KEY_TYPES`. Raises TableError if a value does not fit (naming path and
    value), or if no path has a key with a declared type.
    """
    declared = declared or {}
    folders: dict[str, dict[str, str | None]] = {}
    per_path: list[dict[str, str | None]] = []
    for path in paths:
        folder = path.rpartition("/")[0]
        if folder not in folders:
            folders[folder] = keys_of_path(path)
        per_path.append(folders[folder])
    names = dict.fromkeys(name for keys in folders.values() for name in keys)
    unknown = [name for name in declared if name not in names]
    if unknown:
        raise TableError(
            f"partition key {unknown[0]!r} is declared but not in the table: got keys {', '.join(names) or 'none'}. "
            "Correct `partitions`"
        )
    strings = {name: [keys.get(name) for keys in per_path] for name in names}
    return {
        name: _declare(name, column, paths, declared[name]) if name in declared else _convert_types(column)
        for name, column in strings.items()
    }


def table_order(paths: Sequence[list[str]], partition: Mapping[str, pa.Array]) -> npt.NDArray[np.int64]:
    """The order by typed partition values, nulls last, then by path. paths: as segments."""
    place = np.empty(len(paths), np.int64)
    place[sorted(range(len(paths)), key=paths.__getitem__)] = np.arange(len(paths))
    ranks = []  # of k=10, k=2 and a path without k: [1, 0, 2], so that the order is [1, 0, 2]
    for column in partition.values():
        coded = column.dictionary_encode()
        by_value = pc.sort_indices(coded.dictionary).to_numpy()
        rank = np.empty(len(by_value) + 1, np.int64)
        rank[by_value] = np.arange(len(by_value))
        rank[-1] = len(by_value)  # the rank of null
        codes = coded.indices.fill_null(len(by_value)).to_numpy()
        ranks.append(rank[codes])
    return np.lexsort((place, *reversed(ranks)))


def refine(column: pa.Array, name: str, kind: pa.DataType, paths: Sequence[str]) -> pa.Array:
    """An inferred key in the type of the files' column of that name; unchanged if a value does not fit."""
    if is_text(kind):
        return typed_columns(paths, {name: "string"})[name].cast(kind)  # as in the path, with leading zeros
    if not _means_the_same(column.type, kind):
        return column
    try:
        refined = column.cast(kind)
        return refined if refined.cast(column.type).equals(column) else column
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column


def _means_the_same(inferred: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a folder's value may stand for one of a column's type: 20260101 is not a microsecond of 1970, and a day
    is midnight in UTC only."""
    if pat.is_integer(inferred):
        return not pat.is_temporal(kind)
    if pat.is_date(inferred):
        return bool(pat.is_date(kind) or (pat.is_timestamp(kind) and kind.tz in (None, "UTC")))
    return True


def _declare(name: str, strings: Sequence[str | None], paths: Sequence[str], kind: str) -> pa.Array:
    parse, arrow = KEY_TYPES[kind]
    values: dict[str | None, Any] = {None: None}
    for string, path in zip(strings, paths, strict=True):
        if string is None or string in values:
            continue
        value = parse(string)
        if value is None:
            raise TableError(
                f"partition key {name!r} does not fit its declared type: got {string!r} in {path}, expected {kind}. "
                "Correct `partitions`, or rename the folder"
            )
        values[string] = value
    return pa.array([values[string] for string in strings], arrow)


def _integer(string: str) -> int | None:
    return int(string) if _INTEGER.match(string) and int(string) in _INT64 else None


def _iso_date(string: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(string) if _DATE.match(string) else None
    except ValueError:
        return None


def _date(string: str) -> datetime.date | None:
    """ISO 8601, with or without hyphens."""
    return _iso_date(f"{string[:4]}-{string[4:6]}-{string[6:]}" if _BASIC_DATE.match(string) else string)


def _timestamp(string: str) -> datetime.datetime | None:
    """ISO 8601 without an offset; a date alone is its midnight."""
    try:
        moment = datetime.datetime.fromisoformat(string)
    except ValueError:
        return None
    return None if moment.tzinfo is not None else moment


KEY_TYPES: dict[str, tuple[Callable[[str], Any], pa.DataType]] = {
    "int": (_integer, pa.int64()),
    "date": (_date, pa.date32()),
    "string": (str, pa.string()),
    "timestamp": (_timestamp, pa.timestamp("us")),
}


def _decode(string: str) -> str:
    if "%" not in string:
        return string
    try:
        return unquote(string, errors="strict")
    except UnicodeDecodeError:
        return string  # percent signs that do not spell UTF-8 are the value's own


def _convert_types(strings: Sequence[str | None]) -> pa.Array:
    distinct = {string for string in strings if string is not None}
    parsers: tuple[tuple[Callable[[str], Any], pa.DataType], ...] = ((_integer, pa.int64()), (_iso_date, pa.date32()))
    for parse, kind in parsers:
        values = {string: parse(string) for string in distinct}
        if values and None not in values.values():
            return pa.array([None if string is None else values[string] for string in strings], kind)
    return pa.array(strings, pa.string())


# --------------------------------------------------------------------------------------------------------------------
# List a local folder with symbolic links, and refuse a file that two paths of a table lead to. Runs where a snapshot
# is taken. Links are followed, but no folder is entered twice; real folders come first. Links with hidden names, and
# links in hidden folders, are ignored. A hard link is a file of its own.

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
