"""List the columns of a table that column files hold: what they cover and take, and when runs read them.

Runs in the caller's process. Pure, on a snapshot and the usage record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.dataclass import dataclass
from feedline.warehouse.discovery.column_log import COLUMN_FILES, ColumnLog
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.optimize.landing import partition_folder
from feedline.warehouse.optimize.usage import Use
from feedline.warehouse.snapshot.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedColumn:
    """A column: its type and origin, the base files, partitions and rows that have it, and its bytes.

    runs, last_read: of the usage record; `last_read` is None where no run on record has read it.
    """

    name: str
    type: str
    source: str
    files: int
    partitions: tuple[str, ...]
    rows: int
    bytes: int
    runs: int
    last_read: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnList:
    """The columns that column files hold, those of base files that were dropped, and the table's totals.

    unread_bytes: of column files that are read no more: replaced, dropped, or not committed.
    """

    table: str
    columns: tuple[AddedColumn, ...]
    dropped: tuple[str, ...]
    files: int
    partitions: int
    rows: int
    unread_bytes: int
    runs: int


def list_columns(listing: Listing, snapshot: Snapshot, uses: Sequence[Use]) -> ColumnList:
    """List the columns of column files. Never-read columns come first, then the others, the longest unread first."""
    log = listing.columns or ColumnLog()
    folders = np.array([partition_folder(path) for path in snapshot.files["path"].to_pylist()], object)
    rows = snapshot.files["rows"].to_numpy()
    live = {entry["path"] for own in _entries(snapshot) for entry in own}
    columns = []
    for name, field in log.fields.items():
        holders = _holders(snapshot, name)
        reads = [use.time for use in uses if name in use.columns]
        columns.append(
            AddedColumn(
                name=name,
                type=str(field.type),
                source=log.sources.get(name, ""),
                files=int(holders.sum()),
                partitions=tuple(dict.fromkeys(folders[holders].tolist())),
                rows=int(rows[holders].sum()),
                bytes=int(snapshot.column_part(name, "bytes").sum()),
                runs=len(reads),
                last_read=max(reads, default=None),
            )
        )
    return ColumnList(
        table=snapshot.uri,
        columns=tuple(sorted(columns, key=lambda column: column.last_read or "")),
        dropped=tuple(sorted(log.hidden)),
        files=len(folders),
        partitions=len(set(folders.tolist())),
        rows=int(rows.sum()),
        unread_bytes=sum(size for path, size in listing.column_bytes.items() if path not in live),
        runs=len(uses),
    )


def _entries(snapshot: Snapshot) -> list[list[dict[str, Any]]]:
    if COLUMN_FILES not in snapshot.files.schema.names:
        return [[] for _ in range(len(snapshot.files))]
    return [own or [] for own in snapshot.files[COLUMN_FILES].to_pylist()]


def _holders(snapshot: Snapshot, name: str) -> npt.NDArray[np.bool_]:
    """bool [files]: those with a column file that holds the field."""
    return np.array([any(name in entry["fields"] for entry in own) for own in _entries(snapshot)], np.bool_)
