"""Read Hive partition keys from paths, and type them from all their values.

Pure. A folder `key=value` below the table's root gives its files the column `key`. Keys and values are
percent-decoded; `__HIVE_DEFAULT_PARTITION__` is null, and so is a key that some other file's path has and this one's
has not. The type of a key is the one that the pipeline names (`declared`); else, where the files hold the key as a
column too, that column's (`refine`: the snapshot knows it), if all values fit and mean the same there: a whole number
never becomes a time, nor a date a number; else it is inferred from every value the table has:

- int64 if each is a whole number that fits, zero-padded ones (`month=01`) included, as Spark and pyarrow have it;
- date32 if each is an ISO date (`ds=2026-01-31`);
- string otherwise, for keys with no value but null too.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.types as pat

from feedline.errors import TableError

NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"

_INTEGER = re.compile(r"-?[0-9]{1,40}\Z", re.ASCII)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z", re.ASCII)
_BASIC_DATE = re.compile(r"[0-9]{8}\Z", re.ASCII)
_INT64 = range(-(2**63), 2**63)


def is_partition(segment: str) -> bool:
    """Whether a folder's name is `key=value` with a key."""
    return segment.find("=") > 0


def is_hidden(segment: str) -> bool:
    """Whether files and folders of that name are a writer's own, and no part of a table."""
    return segment.startswith((".", "_")) and not is_partition(segment)


def keys_of(path: str) -> dict[str, str | None]:
    """The keys and texts that the folders of a file's path (relative to the table's root) give it, in path order."""
    keys: dict[str, str | None] = {}
    for segment in path.split("/")[:-1]:
        if not is_partition(segment):
            continue
        name, _, text = segment.partition("=")
        name = _decode(name)
        if name in keys:
            raise TableError(f"path {path!r} names partition key {name!r} twice: expected each key once")
        keys[name] = None if text == NULL_VALUE else _decode(text)
    return keys


def typed_columns(paths: Sequence[str], declared: Mapping[str, str] | None = None) -> dict[str, pa.Array]:
    """One typed column per key, one value per path; keys in the order in which the paths first show them.

    `declared`: types of keys, by the names of `KEY_TYPES`. Raises TableError where a value does not fit (naming path
    and value), or where no path has a key that a type is declared for.
    """
    declared = declared or {}
    folders: dict[str, dict[str, str | None]] = {}
    per_path: list[dict[str, str | None]] = []
    for path in paths:
        folder = path.rpartition("/")[0]
        if folder not in folders:
            folders[folder] = keys_of(path)
        per_path.append(folders[folder])
    names = dict.fromkeys(name for keys in folders.values() for name in keys)
    unknown = [name for name in declared if name not in names]
    if unknown:
        raise TableError(
            f"partition key {unknown[0]!r} is declared but not in the table: got keys {', '.join(names) or 'none'}. "
            "Correct `partitions`"
        )
    texts = {name: [keys.get(name) for keys in per_path] for name in names}
    return {
        name: _declare(name, column, paths, declared[name]) if name in declared else _convert_types(column)
        for name, column in texts.items()
    }


def refine(column: pa.Array, name: str, kind: pa.DataType, paths: Sequence[str]) -> pa.Array:
    """An inferred key in the type that a column of its name has in the files; unchanged where a value does not fit."""
    if pat.is_string(kind) or pat.is_large_string(kind):
        return typed_columns(paths, {name: "string"})[name].cast(kind)  # as the path spells it, leading zeros included
    if not _means_the_same(column.type, kind):
        return column
    try:
        found = column.cast(kind)
        return found if found.cast(column.type).equals(column) else column
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column


def _means_the_same(inferred: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a value of a folder can be meant as one of a column's type: 20260101 is no microsecond of 1970, and a
    day is midnight in no zone but UTC."""
    if pat.is_integer(inferred):
        return not pat.is_temporal(kind)
    if pat.is_date(inferred):
        return bool(pat.is_date(kind) or (pat.is_timestamp(kind) and kind.tz in (None, "UTC")))
    return True


def _declare(name: str, texts: Sequence[str | None], paths: Sequence[str], kind: str) -> pa.Array:
    parse, arrow = KEY_TYPES[kind]
    values: dict[str | None, Any] = {None: None}
    for text, path in zip(texts, paths, strict=True):
        if text is None or text in values:
            continue
        value = parse(text)
        if value is None:
            raise TableError(
                f"partition key {name!r} does not fit its declared type: got {text!r} in {path}, expected {kind}. "
                "Correct `partitions`, or rename the folder"
            )
        values[text] = value
    return pa.array([values[text] for text in texts], arrow)


def _integer(text: str) -> int | None:
    return int(text) if _INTEGER.match(text) and int(text) in _INT64 else None


def _date(text: str) -> datetime.date | None:
    """ISO 8601, with or without hyphens."""
    if _BASIC_DATE.match(text):
        text = f"{text[:4]}-{text[4:6]}-{text[6:]}"
    return datetime.date.fromisoformat(text) if _is_date(text) else None


def _timestamp(text: str) -> datetime.datetime | None:
    """ISO 8601 without an offset; a date alone is its midnight."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is not None else moment


KEY_TYPES: dict[str, tuple[Callable[[str], Any], pa.DataType]] = {
    "int": (_integer, pa.int64()),
    "date": (_date, pa.date32()),
    "string": (str, pa.string()),
    "timestamp": (_timestamp, pa.timestamp("us")),
}


def _decode(text: str) -> str:
    if "%" not in text:
        return text
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text  # percent signs that do not spell UTF-8 are the value's own


def _convert_types(texts: Sequence[str | None]) -> pa.Array:
    distinct = {text for text in texts if text is not None}
    values = _parse(distinct)
    kind = pa.string() if not distinct else _kind(values.values())
    return pa.array([None if text is None else values[text] for text in texts], type=kind)


def _parse(texts: set[str]) -> dict[str, int] | dict[str, datetime.date] | dict[str, str]:
    if texts and all(_INTEGER.match(text) and int(text) in _INT64 for text in texts):
        return {text: int(text) for text in texts}
    if texts and all(_is_date(text) for text in texts):
        return {text: datetime.date.fromisoformat(text) for text in texts}
    return {text: text for text in texts}


def _is_date(text: str) -> bool:
    if not _DATE.match(text):
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _kind(values: Iterable[int | datetime.date | str]) -> pa.DataType:
    first = next(iter(values))
    if isinstance(first, int):
        return pa.int64()
    return pa.date32() if isinstance(first, datetime.date) else pa.string()
