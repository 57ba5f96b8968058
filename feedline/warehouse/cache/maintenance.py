"""List, prune and verify the entries of a cache's folder.

Runs in: the process of the command; jobs may use the folder meanwhile. Each file's header and index are read; arrays by
`verify_entries` alone. A file that another process removes meanwhile is not there. Files of other versions are counted
by their sizes, and pruned by age or all together, as nothing else is known of them.
"""

from __future__ import annotations

import datetime
import decimal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from feedline.errors import ExpressionError, SpecError
from feedline.expressions import Expression, bind_where, parse
from feedline.progress import report_progress, track
from feedline.warehouse.cache.cache_folder import check_folder
from feedline.warehouse.cache.entry_file import DamagedEntryError, EntryFile, EntryIndex, OtherVersionError
from feedline.warehouse.cache.eviction import StoredFileStat, is_abandoned, list_entries, remove_file

_TYPES: tuple[tuple[type, pa.DataType], ...] = (  # in this order: a bool is an int, a datetime a date
    (bool, pa.bool_()),
    (int, pa.int64()),
    (float, pa.float64()),
    (str, pa.string()),
    (datetime.datetime, pa.timestamp("us")),
    (datetime.date, pa.date32()),
    (bytes, pa.binary()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryTotals:
    """The files of one row group, of one table, or of a folder.

    Attributes:
        table, path, row_group, partition: None where the totals are of several.
        files, columns, bytes: columns are counted once per file that holds them; bytes are whole blocks of the disk.
        used_s: the time of the last use.
    """

    table: str | None = None
    path: str | None = None
    row_group: int | None = None
    partition: Mapping[str, Any] | None = None
    files: int
    columns: int
    bytes: int
    used_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderReport:
    """What a folder holds: totals of its readable files, and files of which the index cannot be read.

    Attributes:
        groups: of each table or row group, sorted.
        whole: of all files, the unreadable, those of other versions and temporary ones included.
        unreadable, other_versions, temporary: files of these kinds.
    """

    groups: tuple[EntryTotals, ...]
    whole: EntryTotals
    unreadable: int
    other_versions: int
    temporary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What was removed, and what is kept because a condition cannot be decided for it.

    Attributes:
        files, bytes: removed.
        kept: files that the conditions do not select.
        undecided: files, by the reason, such as `without the partition key day`.
    """

    files: int
    bytes: int
    kept: int
    undecided: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Files and bytes that were read, and the paths of those that were damaged and removed, or cannot be read."""

    files: int
    bytes: int
    damaged: tuple[str, ...]
    unreadable: tuple[str, ...]
    other_versions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneChoice:
    """Which files to remove: those that meet all conditions; `everything` has no others."""

    table: str | None = None
    where: str | None = None
    older_than_s: float | None = None
    everything: bool = False


def describe_folder(folder: str, *, by_row_group: bool, table: str | None = None) -> FolderReport:
    """The totals of each table, or of each row group; of one table, if given. Raises SpecError for a foreign folder."""
    check_folder(folder)
    groups: dict[tuple[Any, ...], list[tuple[StoredFileStat, EntryIndex]]] = defaultdict(list)
    every: list[StoredFileStat] = []
    counts = {"unreadable": 0, "other_versions": 0, "temporary": 0}
    columns = 0
    for file, index in _indexed(folder, counts):
        every.append(file)
        if index is None:
            continue
        columns += len(index.columns)
        group = index.group
        if table is None or group.table == table:
            key = (group.table, group.path, group.row_group) if by_row_group else (group.table,)
            groups[key].append((file, index))
    whole = EntryTotals(files=len(every), columns=columns, bytes=_bytes(every), used_s=_used_s(every))
    return FolderReport(groups=tuple(_totals(groups[key]) for key in sorted(groups)), whole=whole, **counts)


def prune_entries(folder: str, choice: PruneChoice, now_s: float) -> PruneReport:
    """Remove files. A condition on a partition key decides only for row groups with that key; others are kept.

    Raises SpecError for a foreign folder, no condition, or a `where` that fits no entry's partition keys.
    """
    if not choice.everything and choice == PruneChoice():
        raise SpecError("prune needs a condition: got none. Name --table, --where or --older-than, or use --all")
    if choice.everything and choice != PruneChoice(everything=True):
        raise SpecError("--all removes every entry: got conditions, too. Leave out --all")
    where = None if choice.where is None else parse(choice.where)
    check_folder(folder)
    undecided: dict[str, int] = defaultdict(int)
    chosen: list[StoredFileStat] = []
    judged: list[tuple[StoredFileStat, EntryIndex]] = []
    kept = 0
    needs_index = choice.table is not None or where is not None
    for file in _listed(folder):
        if file.temporary:
            if is_abandoned(file, now_s):
                chosen.append(file)
        elif choice.older_than_s is not None and now_s - file.used_s < choice.older_than_s:
            kept += 1
        elif not needs_index:
            chosen.append(file)
        else:
            index, reason = _index_of(file)
            if index is None:
                undecided[reason] += reason != ""
            elif choice.table is not None and index.group.table != choice.table:
                kept += 1
            else:
                judged.append((file, index))
    if where is not None:
        judged, refused = _select(where, judged, undecided)
        kept += refused
    chosen += [file for file, _ in judged]
    removed = [file for file in track(chosen, "removing", [1] * len(chosen), "files") if remove_file(file.path)]
    return PruneReport(files=len(removed), bytes=_bytes(removed), kept=kept, undecided=dict(undecided))


def verify_entries(folder: str) -> VerifyReport:
    """Read every array of this version's files, and remove files that are not as they were written.

    Raises SpecError for a foreign folder.
    """
    check_folder(folder)
    files = nbytes = others = 0
    damaged: list[str] = []
    unreadable: list[str] = []
    whole_files = [file for file in _listed(folder) if not file.temporary]
    for file in track(whole_files, "verifying", [file.nbytes for file in whole_files], "bytes"):
        try:
            with EntryFile(file.path) as entry:
                whole = all(entry.read([name])[1] for name in entry.index.columns)
        except FileNotFoundError:
            continue
        except OtherVersionError:
            others += 1
            continue
        except DamagedEntryError:
            whole = False
        except OSError:
            unreadable.append(file.path)
            continue
        files, nbytes = files + 1, nbytes + file.nbytes
        if not whole:
            damaged.append(file.path)
            if not remove_file(file.path):
                unreadable.append(file.path)
    return VerifyReport(
        files=files, bytes=nbytes, damaged=tuple(damaged), unreadable=tuple(unreadable), other_versions=others
    )


def _listed(folder: str) -> Iterator[StoredFileStat]:
    for number, file in enumerate(list_entries(folder), 1):
        report_progress("listing", number, None, "files")
        yield file


def _index_of(file: StoredFileStat) -> tuple[EntryIndex | None, str]:
    """The index of a file, or why it is not known; `""`: the file has vanished."""
    try:
        with EntryFile(file.path) as entry:
            return entry.index, ""
    except FileNotFoundError:
        return None, ""
    except OtherVersionError:
        return None, "of another version"
    except (DamagedEntryError, OSError):
        return None, "unreadable"


def _indexed(folder: str, counts: dict[str, int]) -> Iterator[tuple[StoredFileStat, EntryIndex | None]]:
    """All files, with their indexes where these can be read; others are counted by their kind."""
    for file in list_entries(folder):
        if file.temporary:
            counts["temporary"] += 1
            yield file, None
            continue
        index, reason = _index_of(file)
        if index is None and not reason:
            continue
        if index is None:
            counts["other_versions" if reason == "of another version" else "unreadable"] += 1
        yield file, index


def _totals(members: Sequence[tuple[StoredFileStat, EntryIndex]]) -> EntryTotals:
    files = [file for file, _ in members]
    groups = [index.group for _, index in members]
    first = groups[0]
    is_one = all((each.path, each.row_group) == (first.path, first.row_group) for each in groups)
    return EntryTotals(
        table=first.table,
        path=first.path if is_one else None,
        row_group=first.row_group if is_one else None,
        partition=first.partition if is_one else None,
        files=len(files),
        columns=sum(len(index.columns) for _, index in members),
        bytes=_bytes(files),
        used_s=_used_s(files),
    )


def _bytes(files: Iterable[StoredFileStat]) -> int:
    return sum(file.nbytes for file in files)


def _used_s(files: Iterable[StoredFileStat]) -> float:
    return max((file.used_s for file in files), default=0.0)


def _select(
    where: Expression, entries: Sequence[tuple[StoredFileStat, EntryIndex]], undecided: dict[str, int]
) -> tuple[list[tuple[StoredFileStat, EntryIndex]], int]:
    """The entries whose partition values meet a condition, and how many do not; the rest is added to `undecided`.

    A null is as in a `where` of a table: what compares with it is not selected.
    """
    by_types: dict[tuple[pa.DataType, ...], list[tuple[StoredFileStat, EntryIndex]]] = defaultdict(list)
    names = sorted(where.columns)
    for each in entries:
        partition = each[1].group.partition
        if missing := [name for name in names if name not in partition]:
            undecided[f"without the partition key {missing[0]}"] += 1
        else:
            by_types[tuple(_type_of(partition[name]) for name in names)].append(each)
    if entries and not by_types:
        keys = sorted({key for _, index in entries for key in index.group.partition})
        raise SpecError(
            f"--where is a condition on partition keys: got {', '.join(names)}, expected of "
            f"{', '.join(keys) or 'none'}. To remove the entries of all partitions, use --table or --all alone"
        )
    selected: list[tuple[StoredFileStat, EntryIndex]] = []
    refused, faults = 0, []
    usual = {
        name: next((types[at] for types in by_types if types[at] != pa.null()), pa.string())
        for at, name in enumerate(names)
    }
    for types, members in by_types.items():
        kinds = [usual[name] if kind == pa.null() else kind for name, kind in zip(names, types, strict=True)]
        schema = pa.schema(list(zip(names, kinds, strict=True)))
        try:
            bound = bind_where(where.text, schema)
        except ExpressionError as error:
            faults.append(error)
            undecided["with partition keys of other types"] += len(members)
            continue
        values = [[index.group.partition[name] for _, index in members] for name in names]
        table = pa.table([pa.array(column, kind) for column, kind in zip(values, kinds, strict=True)], schema=schema)
        frame = pl.DataFrame(table)
        truths = frame.select(bound.polars.alias("selected"))["selected"].fill_null(value=False).to_list()
        selected += [each for each, truth in zip(members, truths, strict=True) if truth]
        refused += len(truths) - sum(truths)
    if faults and len(faults) == len(by_types):
        raise faults[0]
    return selected, refused


def _type_of(value: Any) -> pa.DataType:
    if value is None:
        return pa.null()
    if isinstance(value, decimal.Decimal):
        return pa.scalar(value).type
    return next((arrow for kind, arrow in _TYPES if isinstance(value, kind)), pa.string())
