"""List, prune and verify the entries of a cache's folder.

Runs in: the process of the command; jobs may use the folder meanwhile. Each file's header and index are read; arrays by
`verify_entries` alone. A file that another process removes meanwhile is not there. Files of other versions are counted
by their sizes, and pruned by age or all together, as nothing else is known of them.
"""

from __future__ import annotations

import datetime
import decimal
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import ExpressionError, SpecError
from feedline.expressions import Expression, bind_where, parse
from feedline.progress import report_progress, track
from feedline.warehouse.cache.cache_folder import check_folder
from feedline.warehouse.cache.entry_file import (
    DamagedEntryError,
    EntryFile,
    EntryGroup,
    EntryIndex,
    OtherVersionError,
)
from feedline.warehouse.cache.eviction import StoredFileStat, is_abandoned, list_entries, remove_file
from feedline.warehouse.storage.locations import join, real_name

_Entry: TypeAlias = tuple[StoredFileStat, EntryIndex]
KeysOf: TypeAlias = Callable[[Sequence[str]], Sequence[Mapping[str, Any]]]

_NAMED = 5  # tables in an error

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
    """The files of one row group, of one table, or of a folder. table, path, row_group, partition: None where the
    totals are of several. files, columns, bytes: columns are counted once per file that holds them; bytes are whole
    blocks of the disk. used_s: the time of the last use."""

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
    """What a folder holds: totals of its readable files, and files of which the index cannot be read. groups: of each
    table or row group, sorted. whole: of all files, the unreadable, those of other versions and temporary ones
    included. unreadable, other_versions, temporary: files of these kinds."""

    groups: tuple[EntryTotals, ...]
    whole: EntryTotals
    unreadable: int
    other_versions: int
    temporary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What was removed, and what is left of what may be meant.

    Attributes:
        files, bytes: removed.
        kept: files that the conditions do not select.
        undecided: files of which a condition cannot be decided, by the reason, such as `without the partition key day`.
        failed: files that are selected and cannot be removed.
        names: removed files by the name that their job had for the table.
        is_met: whether nothing is left of the table or the partitions that were named, as far as is known. A file
            without the key counts where its table was named: it may hold rows of the partition.
    """

    files: int
    bytes: int
    kept: int
    undecided: Mapping[str, int]
    failed: int
    names: Mapping[str, int]
    is_met: bool


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
    """Which files to remove: those that meet all conditions; `everything` has no others.

    table: the name of a table, folder or file, in any form: entries of its files belong to it, whatever name the job
    had for the table.
    """

    table: str | None = None
    where: str | None = None
    older_than_s: float | None = None
    everything: bool = False


def _no_keys(paths: Sequence[str]) -> list[dict[str, Any]]:
    return [{} for _ in paths]


def describe_folder(folder: str, *, by_row_group: bool, table: str | None = None) -> FolderReport:
    """The totals of each table, or of each row group; of the files of one table (as `PruneChoice.table`), if given.

    Raises SpecError for a foreign folder, or a table without entries.
    """
    check_folder(folder)
    is_of_table, tables = _of_table(table), set[str]()
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
        tables.add(group.table)
        if is_of_table(group):
            key = (group.table, group.path, group.row_group) if by_row_group else (group.table,)
            groups[key].append((file, index))
    if table is not None and not groups:
        raise _unknown_table_error(table, tables, {})
    whole = EntryTotals(files=len(every), columns=columns, bytes=_bytes(every), used_s=_used_s(every))
    return FolderReport(groups=tuple(_totals(groups[key]) for key in sorted(groups)), whole=whole, **counts)


def prune_entries(folder: str, choice: PruneChoice, now_s: float, keys_of: KeysOf = _no_keys) -> PruneReport:
    """Remove files. A condition on a partition key decides only for row groups with that key; others are kept.

    keys_of: the partition keys in paths, for entries whose job named a folder below the table, which has none.

    Raises SpecError for a foreign folder, no condition, a table without entries, or a `where` that fits no entry's
    partition keys.
    """
    if not choice.everything and choice == PruneChoice():
        raise SpecError("prune needs a condition: got none. Name --table, --where or --older-than, or use --all")
    if choice.everything and choice != PruneChoice(everything=True):
        raise SpecError("--all removes every entry: got conditions, too. Leave out --all")
    where = None if choice.where is None else parse(choice.where)
    check_folder(folder)
    files = list(_listed(folder))
    stored = [file for file in files if not file.temporary]
    old = [file for file in stored if choice.older_than_s is None or now_s - file.used_s >= choice.older_than_s]
    undecided: dict[str, int] = defaultdict(int)
    judged: list[_Entry] = []
    unreadable = 0
    if choice.table is None and where is None:
        chosen = old
    else:
        judged = _entries_of(choice.table, stored, {file.path for file in old}, undecided)
        unreadable = sum(undecided.values())
        judged = judged if where is None else _select(where, judged, undecided, keys_of)
        chosen = [file for file, _ in judged]
    kept = len(stored) - len(chosen) - sum(undecided.values())
    chosen += [file for file in files if file.temporary and is_abandoned(file, now_s)]
    removed = [file for file in track(chosen, "removing", [1] * len(chosen), "files") if remove_file(file.path)]
    gone = {file.path for file in removed}
    failed = sum(file.path not in gone and os.path.lexists(file.path) for file in chosen)
    return PruneReport(
        files=len(removed),
        bytes=_bytes(removed),
        kept=kept,
        undecided=dict(undecided),
        failed=failed,
        names=dict(sorted(Counter(index.group.table for file, index in judged if file.path in gone).items())),
        is_met=not (failed or unreadable or (choice.table is not None and undecided)),
    )


def prune_files(folder: str, files: Collection[str]) -> PruneReport:
    """Remove the entries of some files (their paths or URIs), of any age and version of these: what a deletion has left
    of their old rows. A folder without such entries is as good.

    Raises SpecError for a foreign folder.
    """
    check_folder(folder)
    stored = [file for file in list_entries(folder) if not file.temporary]
    undecided: dict[str, int] = defaultdict(int)
    chosen = _entries_of_files(files, stored, undecided)
    removed = [(file, index) for file, index in chosen if remove_file(file.path)]
    gone = {file.path for file, _ in removed}
    failed = sum(file.path not in gone and os.path.lexists(file.path) for file, _ in chosen)
    return PruneReport(
        files=len(removed),
        bytes=_bytes(file for file, _ in removed),
        kept=len(stored) - len(chosen) - sum(undecided.values()),
        undecided=dict(undecided),
        failed=failed,
        names=dict(sorted(Counter(index.group.table for _, index in removed).items())),
        is_met=not (failed or undecided),
    )


def count_entries(folder: str, files: Collection[str]) -> int:
    """The entries of some files, and those of which nobody can tell. Raises as `prune_files`."""
    check_folder(folder)
    undecided: dict[str, int] = defaultdict(int)
    entries = _entries_of_files(files, [file for file in list_entries(folder) if not file.temporary], undecided)
    return len(entries) + sum(undecided.values())


def _entries_of_files(
    files: Collection[str], stored: Iterable[StoredFileStat], undecided: dict[str, int]
) -> list[_Entry]:
    """The entries of files, by the real name that a file had when the entry was written, or has now."""
    real, names, entries = set(map(real_name, files)), dict[str, str](), list[_Entry]()
    for file in stored:
        index, reason = _index_of(file)
        if index is None:
            if reason:
                undecided[reason] += 1
            continue
        name = join(index.group.table, index.group.path)
        if name not in names:
            names[name] = real_name(name)
        if not real.isdisjoint((index.group.file, names[name])):
            entries.append((file, index))
    return entries


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


def _of_table(table: str | None) -> Callable[[EntryGroup], bool]:
    """Whether a group is of a file of a table, by the file's real name when it was written or now; True without one."""
    if table is None:
        return lambda group: True
    root, names = real_name(table), dict[str, str]()

    def is_of_table(group: EntryGroup) -> bool:
        name = join(group.table, group.path)
        if name not in names:
            names[name] = real_name(name)
        return any(each == root or each.startswith(join(root, "")) for each in (group.file, names[name]))

    return is_of_table


def _entries_of(
    table: str | None, files: Sequence[StoredFileStat], old: Collection[str], undecided: dict[str, int]
) -> list[_Entry]:
    """The old files that hold entries of a table; those that cannot be read are added to `undecided`. Raises SpecError
    for a table that has no entries of any age."""
    entries: list[_Entry] = []
    is_of_table, tables, is_known = _of_table(table), set[str](), table is None
    for file in files:
        index, reason = _index_of(file)
        if index is not None:
            tables.add(index.group.table)
            is_meant = is_of_table(index.group)
            is_known |= is_meant
            if is_meant and file.path in old:
                entries.append((file, index))
        elif reason and file.path in old:
            undecided[reason] += 1
    if table is not None and not is_known:
        raise _unknown_table_error(table, tables, undecided)
    return entries


def _unknown_table_error(table: str, tables: Collection[str], undecided: Mapping[str, int]) -> SpecError:
    """The error for a table without entries: a deletion that deletes nothing for want of the right name must not look
    done."""
    some = ", ".join(sorted(filter(None, tables))[:_NAMED])
    there = f"The cache has those of {some}" if some else "The cache has none"
    there += "".join(f", and {count:,} {reason}" for reason, count in undecided.items())
    return SpecError(
        f"no entry is of the table {table}: expected its path or URI, or that of a folder or file of it. {there}"
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


def _select(where: Expression, entries: Sequence[_Entry], undecided: dict[str, int], keys_of: KeysOf) -> list[_Entry]:
    """The entries whose partition values meet a condition; those of which it cannot be told are added to `undecided`.

    A null is as in a `where` of a table: what compares with it is not selected.
    """
    by_types: dict[tuple[pa.DataType, ...], list[tuple[_Entry, Mapping[str, Any]]]] = defaultdict(list)
    names = sorted(where.columns)
    groups = [index.group for _, index in entries]
    lacking = [place for place, group in enumerate(groups) if not group.partition.keys() >= set(names)]
    in_paths = keys_of([groups[place].file or join(groups[place].table, groups[place].path) for place in lacking])
    keys_in_paths = dict(zip(lacking, in_paths, strict=True))
    partitions = [{**keys_in_paths.get(place, {}), **group.partition} for place, group in enumerate(groups)]
    for each, partition in zip(entries, partitions, strict=True):
        if missing := [name for name in names if name not in partition]:
            undecided[f"without the partition key {missing[0]}"] += 1
        else:
            by_types[tuple(_type_of(partition[name]) for name in names)].append((each, partition))
    if entries and not by_types:
        keys = sorted({key for partition in partitions for key in partition})
        raise SpecError(
            f"--where is a condition on partition keys: got {', '.join(names)}, expected of "
            f"{', '.join(keys) or 'none'}. To remove the entries of all partitions, use --table or --all alone"
        )
    selected: list[_Entry] = []
    faults = []
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
        values = [[partition[name] for _, partition in members] for name in names]
        table = pa.table([pa.array(column, kind) for column, kind in zip(values, kinds, strict=True)], schema=schema)
        frame = pl.DataFrame(table)
        truths = frame.select(bound.polars.alias("selected"))["selected"].fill_null(value=False).to_list()
        selected += [each for (each, _), truth in zip(members, truths, strict=True) if truth]
    if faults and len(faults) == len(by_types):
        raise faults[0]
    return selected


def _type_of(value: Any) -> pa.DataType:
    if value is None:
        return pa.null()
    if isinstance(value, decimal.Decimal):
        return pa.scalar(value).type
    return next((arrow for kind, arrow in _TYPES if isinstance(value, kind)), pa.string())
