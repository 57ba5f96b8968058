"""Which files of a table are as they were, when it is looked at again?

Pure. A file with the same path, size and footer digest is the same, whatever its modification time. The others are
taken together partition by partition, since a rewritten row stays in its partition, but not in its file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from feedline.warehouse.snapshot import Snapshot

Partition: TypeAlias = tuple[tuple[str, str], ...]


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
    """What became of the old snapshot's files in the new one."""
    found = FileChanges()
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
            found.old.setdefault(_partition(old, place), []).append(place)
    for place in range(len(new.files)):
        if place not in kept:
            found.new.setdefault(_partition(new, place), []).append(place)
    return found


def row_groups(snapshot: Snapshot, file: int) -> npt.NDArray[np.int64]:
    """A file's row groups, as indices in the table."""
    first, stop = np.searchsorted(snapshot.file_of_row_group, [file, file + 1])
    return np.arange(first, stop)


def _facts(snapshot: Snapshot, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(snapshot.files[name].to_pylist() for name in names), strict=True)


def _partition(snapshot: Snapshot, file: int) -> Partition:
    return tuple(sorted((name, str(value)) for name, value in snapshot.partition_of(file)))
