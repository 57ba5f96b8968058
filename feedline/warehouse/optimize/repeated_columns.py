"""Check the groups of columns that `optimize` stores once per run of equal rows, and report what they save.

Pure; runs where `optimize` is planned. The format of the files is that of `parquet.dedup_columns`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from feedline.dataclass import dataclass
from feedline.errors import TableArgumentError
from feedline.warehouse.optimize.footprint import Footprint
from feedline.warehouse.parquet.dedup_columns import flag_column, is_group_name
from feedline.warehouse.snapshot.snapshot import Snapshot

DedupGroups = tuple[tuple[str, tuple[str, ...]], ...]  # (group, columns), in the order of their flags


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSaving:
    """A group as `optimize` stored it: its columns, the table's rows, the runs, and the bytes of its columns.

    `bytes_before`, `bytes_after`: compressed bytes of the columns and their flags in the source and in the target.
    """

    group: str
    columns: tuple[str, ...]
    rows: int
    runs: int
    bytes_before: int
    bytes_after: int

    @property
    def factor(self) -> float:
        return self.rows / self.runs if self.runs else 1.0


def check_groups(groups: DedupGroups) -> None:
    """Raise TableArgumentError for bad names, empty groups, and columns named twice."""
    columns = Counter(column for _, members in groups for column in members)
    for name, members in groups:
        if not is_group_name(name):
            raise TableArgumentError(
                f"--dedup has a bad group name: got {name!r}, expected letters, digits, `_`, `.` or `-`, as it becomes "
                f"part of a column's name. Write --dedup user=column,column"
            )
        if not members:
            raise TableArgumentError(
                f"--dedup names group {name!r} without columns: expected at least one. Write --dedup {name}=column"
            )
    for column, count in columns.items():
        if count > 1:
            named = " and ".join(dict.fromkeys(name for name, members in groups if column in members))
            raise TableArgumentError(
                f"--dedup names column {column!r} {count} times, in {named}: a column is stored once per run of one "
                "group. Keep it in the group whose columns change when it does"
            )


def refuse_columns(snapshot: Snapshot, groups: DedupGroups, flatten: tuple[str, ...]) -> None:
    for name, members in groups:
        if flag_column(name) in snapshot.schema.names:
            raise TableArgumentError(
                f"--dedup {name} needs a column {flag_column(name)!r} for its flags, and the table has one of its own. "
                "Name the group otherwise"
            )
        for column in members:
            if column in snapshot.partition_columns:
                raise TableArgumentError(
                    f"--dedup {name} names the partition key {column!r}, whose values are the folders' names and take "
                    "no bytes. Leave it out"
                )
            if column in flatten:
                raise TableArgumentError(
                    f"--dedup {name} names column {column!r}, whose keys --flatten makes columns of. Choose one of the "
                    "two"
                )


def groups_to_write(dedup: DedupGroups, *, expand: bool, before: Footprint) -> DedupGroups:
    """The groups of the target: those that `--dedup` names, none for `--expand`, else those of the source's files.

    Raises TableArgumentError for a column that files of the source store in different groups.
    """
    if dedup or expand:
        return dedup
    group_of: dict[str, str] = {}
    for name, members in before.groups.items():
        for column in members:
            other = group_of.setdefault(column, name)
            if other != name:
                raise TableArgumentError(
                    f"files of the source store column {column!r} in different groups: got {other} and {name}. Name "
                    "the groups to write (--dedup), or store every column in every row (--expand)"
                )
    return tuple(before.groups.items())


def group_savings(before: Footprint, after: Footprint, groups: DedupGroups) -> tuple[GroupSaving, ...]:
    """Compare the bytes of each group's columns in the source and in the target."""
    return tuple(
        GroupSaving(
            group=name,
            columns=columns,
            rows=after.rows,
            runs=after.runs.get(name, 0),
            bytes_before=_bytes(before.column_bytes, columns, name),
            bytes_after=_bytes(after.column_bytes, columns, name),
        )
        for name, columns in groups
    )


def _bytes(column_bytes: Mapping[str, int], columns: tuple[str, ...], group: str) -> int:
    return sum(column_bytes.get(name, 0) for name in (*columns, flag_column(group)))
