"""Compare two snapshots of a table: which files are unchanged, and which old and new files share a partition.

Pure. A file that is the same (`file_identity`) is unchanged. The others are grouped by partition: by the values
of the keys, or, where a key's type changed, by the strings in the folder names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.errors import StateError
from feedline.warehouse.discovery.column_log import column_file_names
from feedline.warehouse.discovery.partitions import keys_of_path
from feedline.warehouse.parquet.schemas import is_bytes, is_list, is_text
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.file_identity import known_files

Partition: TypeAlias = tuple[tuple[str, str | None], ...]


@dataclass(slots=True)
class FileChanges:
    """How an old and a new snapshot differ, by file indices.

    `unchanged`: old -> new. `old`, `new`: per partition the files only in the old and only in the new snapshot.
    `rewritten`: how many of these have the same path. `retimed`: bool [new files], those of these with the same size
    and footer, too, and another time or tag.
    """

    retimed: npt.NDArray[np.bool_]

    unchanged: dict[int, int] = field(default_factory=dict)
    old: dict[Partition, list[int]] = field(default_factory=dict)
    new: dict[Partition, list[int]] = field(default_factory=dict)
    rewritten: int = 0


def file_changes(old: Snapshot, new: Snapshot, columns: Collection[str] | None = None) -> FileChanges:
    """Compare the files of two snapshots. A file with other column files is rewritten; columns: with others of these.

    Raises StateError if a partition key changed its type and a path does not spell its value.
    """
    known = known_files(new.files, old.files)
    now, before = (np.array(column_file_names(each.files, columns), object) for each in (new, old))
    same = known.same & (now == before[known.index]) if len(before) else known.same
    changes = FileChanges(retimed=known.retimed)
    spelled = [name for name in old.partition_columns if not same_string(_type(old, name), _type(new, name))]
    after = np.flatnonzero(same)
    changes.unchanged = dict(sorted(zip(known.index[after].tolist(), after.tolist(), strict=True)))
    changes.rewritten = int((~same & (known.index >= 0)).sum())
    for file in range(len(old.files)):
        if file not in changes.unchanged:
            changes.old.setdefault(_partition(old, file, spelled), []).append(file)
    for file in range(len(new.files)):
        if not same[file]:
            changes.new.setdefault(_partition(new, file, spelled), []).append(file)
    return changes


def by_file(snapshot: Snapshot, row_groups: Sequence[int]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Group row groups of the table, in its order, by file: yields (file, its row groups)."""
    groups = np.asarray(row_groups, np.int64)
    files = snapshot.file_of_row_group[groups]
    for part in np.split(groups, np.flatnonzero(np.diff(files)) + 1) if len(groups) else ():
        yield int(snapshot.file_of_row_group[part[0]]), part


def same_string(was: pa.DataType, now: pa.DataType) -> bool:
    """Whether equal values of two types of a partition key have the same string."""
    if pat.is_decimal(was) and pat.is_decimal(now):
        return bool(was.scale == now.scale)
    return was.equals(now) or any(test(was) and test(now) for test in (pat.is_integer, is_text))


def same_filter(was: pa.DataType, now: pa.DataType) -> bool:
    """Whether a filter gives equal values of two types the same result.

    Float and time literals take the column's type; comparisons and arithmetic of integers are exact in any width.
    """
    if is_list(was) and is_list(now):
        return same_filter(was.value_type, now.value_type)
    return was.equals(now) or any(test(was) and test(now) for test in (pat.is_integer, is_text, is_bytes))


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


def _type(snapshot: Snapshot, name: str) -> pa.DataType:
    return snapshot.schema.field(name).type


def _partition(snapshot: Snapshot, file: int, spelled: Collection[str]) -> Partition:
    typed = dict(snapshot.partition_of(file))
    values = {name: None if value is None else str(value) for name, value in typed.items()}
    if spelled:
        path = snapshot.files["path"][file].as_py()
        spelled_keys = keys_of_path(path)
        for name in spelled:
            spelling = spelled_keys.get(name)
            if (spelling is None) != (typed[name] is None):
                raise StateError(
                    f"partition key {name!r} changed its type, and paths do not spell its values: got "
                    f"{path}, expected a folder {name}=... Finish the epoch on the old table, or begin the next one"
                )
            values[name] = _plain(spelling)
    return tuple(sorted(values.items()))


def _plain(spelling: str | None) -> str | None:
    """Strip leading zeros of integers: `month=1` and `month=01` are one partition."""
    digits = (spelling or "").removeprefix("-")
    return str(int(spelling or "")) if digits.isascii() and digits.isdigit() else spelling
