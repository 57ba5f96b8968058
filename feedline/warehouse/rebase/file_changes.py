"""Compare two snapshots of a table: which files are unchanged, and which belong together.

Pure. A file with the same path, size and footer digest is the same, whatever its modification time. The others are
grouped by partition, since a rewritten row stays in its partition, but not in its file. A partition is
the same by the values of its keys, or, where a key's type is another than it was (one new folder can change what all of
them are read as), by what the folders of the paths spell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from feedline.errors import StateError
from feedline.warehouse.discovery.partitions import keys_of
from feedline.warehouse.snapshot.snapshot import Snapshot

Partition: TypeAlias = tuple[tuple[str, str | None], ...]


@dataclass(slots=True)
class FileChanges:
    """How an old and a new snapshot differ, by indices of files.

    `unchanged`: old -> new. `old`, `new`: per partition the files that are not there any more, and those that were not
    there. `rewritten`: how many of them have the same path.
    """

    unchanged: dict[int, int] = field(default_factory=dict)
    old: dict[Partition, list[int]] = field(default_factory=dict)
    new: dict[Partition, list[int]] = field(default_factory=dict)
    rewritten: int = 0


def file_changes(old: Snapshot, new: Snapshot) -> FileChanges:
    """The changes from the old snapshot's files to those of the new one.

    Raises StateError where a partition key has another type than it had, and a path does not spell its value.
    """
    found = FileChanges()
    spelled = [name for name in old.partition_columns if not same_text(_type(old, name), _type(new, name))]
    names = ("path", "bytes", "footer_digest")
    now = {path: (place, rest) for place, (path, *rest) in enumerate(_facts(new, names))}
    kept: set[int] = set()
    for place, (path, *rest) in enumerate(_facts(old, names)):
        after, facts = now.get(path, (-1, None))
        if facts == rest:
            found.unchanged[place] = after
            kept.add(after)
        else:
            found.rewritten += after >= 0
            found.old.setdefault(_partition(old, place, spelled), []).append(place)
    for place in range(len(new.files)):
        if place not in kept:
            found.new.setdefault(_partition(new, place, spelled), []).append(place)
    return found


def by_file(snapshot: Snapshot, row_groups: Sequence[int]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Some row groups of the table, in its order, file by file: the file, and those of it."""
    groups = np.asarray(row_groups, np.int64)
    files = snapshot.file_of_row_group[groups]
    for part in np.split(groups, np.flatnonzero(np.diff(files)) + 1) if len(groups) else ():
        yield int(snapshot.file_of_row_group[part[0]]), part


def _facts(snapshot: Snapshot, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(snapshot.files[name].to_pylist() for name in names), strict=True)


def same_text(was: pa.DataType, now: pa.DataType) -> bool:
    """Whether equal values of two types of a partition key are the same as strings."""
    if pat.is_decimal(was) and pat.is_decimal(now):
        return bool(was.scale == now.scale)
    return was.equals(now) or any(test(was) and test(now) for test in (pat.is_integer, _is_text))


def same_filter(was: pa.DataType, now: pa.DataType) -> bool:
    """Whether a filter decides the same on equal values of two types: literals of floats and times take the column's
    type, comparisons and arithmetic of integers are exact in any width."""
    if _is_list(was) and _is_list(now):
        return same_filter(was.value_type, now.value_type)
    return was.equals(now) or any(test(was) and test(now) for test in (pat.is_integer, _is_text, _is_bytes))


def same_words(was: pa.DataType, now: pa.DataType) -> bool:
    """Whether a sample by key hashes equal values of two types alike (see `reading/sample`)."""
    return pat.is_null(was) or _family(was) == _family(now)


def _family(kind: pa.DataType) -> str:
    families = {
        "integer": (pat.is_integer, pat.is_boolean, pat.is_date32),
        "float": (pat.is_floating,),
        "time": (pat.is_timestamp,),
    }
    return next((family for family, tests in families.items() if any(test(kind) for test in tests)), "text")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pat.is_string(kind) or pat.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pat.is_binary(kind) or pat.is_large_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pat.is_list(kind) or pat.is_large_list(kind))


def _type(snapshot: Snapshot, name: str) -> pa.DataType:
    return snapshot.schema.field(name).type


def _partition(snapshot: Snapshot, file: int, spelled: Collection[str]) -> Partition:
    """A file's partition; of the keys `spelled`, as its path spells them."""
    typed = dict(snapshot.partition_of(file))
    values = {name: None if value is None else str(value) for name, value in typed.items()}
    if spelled:
        path = snapshot.files["path"][file].as_py()
        texts = keys_of(path)
        for name in spelled:
            text = texts.get(name)
            if (text is None) != (typed[name] is None):
                raise StateError(
                    f"partition key {name!r} has another type than it had, and paths do not spell its values: got "
                    f"{path}, expected a folder {name}=... Finish the epoch on the old table, or begin the next one"
                )
            values[name] = _plain(text)
    return tuple(sorted(values.items()))


def _plain(text: str | None) -> str | None:
    """Whole numbers without leading zeros: `month=1` and `month=01` are one partition."""
    digits = (text or "").removeprefix("-")
    return str(int(text or "")) if digits.isascii() and digits.isdigit() else text
