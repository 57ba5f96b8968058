"""The usage record: which columns and partitions of a table runs read.

`record_usage` runs in the feeder of rank 0 when a job begins, `load_uses` and `popularity` in commands. A run is one
JSON line in a file of its own, `usage/<table>/<time>-<random>.json` below `work_dir`; the last `KEPT` of a table are
kept. A record that cannot be written is a warning; one that cannot be read is skipped.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.errors import FeedlineError
from feedline.expressions.column_parts import part_of, source_columns
from feedline.warehouse.optimize.landing import partition_folder
from feedline.warehouse.reading.columns import column_bytes
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.content_store import get, put, remove
from feedline.warehouse.storage.faults import explain_errors
from feedline.warehouse.storage.locations import Location, absolute, join, locate, redact
from feedline.warehouse.storage.parallel import in_threads
from feedline.warehouse.storage.retry import with_retries

logger = logging.getLogger(__name__)

KEPT = 500  # runs of one table; of a table with thousands of columns a record has 100 KB
_PARTITIONS = 1000  # at most, named in a record
_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One run: when (UTC) and as which job, on which snapshot; bytes read per column, the partitions (the first 1,000).

    `table_columns`, `table_partitions`: what the table had then. `row_group_bytes`: of all columns, in the row groups
    that the run read.
    """

    time: str
    job: str
    table: str
    snapshot: str
    columns: dict[str, int]
    partitions: tuple[str, ...]
    partitions_read: int
    table_columns: int
    row_group_bytes: int
    table_partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnUse:
    """A column: runs that read it, bytes they read of it, and its bytes in the table now."""

    name: str
    runs: int
    read_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Popularity:
    """Columns by the runs that read them (unread ones last), and means over runs.

    `column_share`, `byte_share`: of the table's columns, and of the bytes of the row groups it read, that a run reads.
    `used_column_share`, `used_byte_share`: of the table, columns that any run read. `partitions`: folder and runs, most
    read first.
    """

    table: str
    runs: int
    jobs: tuple[str, ...]
    first: str | None
    last: str | None
    columns: tuple[ColumnUse, ...]
    column_share: float
    byte_share: float
    used_column_share: float
    used_byte_share: float
    partitions: tuple[tuple[str, int], ...]


def record_usage(
    work_dir: str, snapshot: Snapshot, parts: Iterable[str], rows: npt.NDArray[np.int64], *, job: str
) -> None:
    """Record what a run reads: the columns and column parts `parts`, in the row groups with kept `rows`.

    Failures of the store or disk are logged, not raised.
    """
    try:
        use = _use(snapshot, parts, np.flatnonzero(rows), job)
        line = json.dumps(asdict(use), separators=(",", ":")).encode() + b"\n"
        location, folder = locate(absolute(work_dir)), _folder(snapshot.uri)
        digits = "".join(character for character in use.time if character.isdigit())
        put(location, f"{folder}/{digits[:20]}-{secrets.token_hex(4)}.json", [line])
        for stale in _names(location, folder)[:-KEPT]:
            remove(work_dir, f"{folder}/{stale}")  # another run may delete it first, or it is another user's
    except (OSError, FeedlineError, pa.ArrowException) as error:
        logger.warning("the usage record in %s could not be written: %s", redact(work_dir), error)


def load_uses(work_dir: str, table: str) -> list[Use]:
    """Load the recorded runs on a table (the root's path or URI), oldest first.

    Raises StoreError if the store of `work_dir` keeps failing, TableError if it may not be listed.
    """
    location, folder = locate(absolute(work_dir)), _folder(absolute(table))

    def load(name: str) -> Use | None:
        try:
            facts: dict[str, Any] = json.loads(bytes(get(location, f"{folder}/{name}")))
            return Use(**{**facts, "partitions": tuple(facts["partitions"])})
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException):
            logger.warning("the usage record %s cannot be read and is skipped", name)
            return None

    uses = in_threads(load, _names(location, folder), threads=_THREADS)
    return [use for use in uses if use is not None]


def popularity(uses: Sequence[Use], snapshot: Snapshot) -> Popularity:
    """Compute the popularity of the table's current columns in the recorded runs."""
    stored = {name: int(snapshot.column_part(name, "bytes").sum()) for name in snapshot.file_columns}
    runs, read = Counter(name for use in uses for name in use.columns), Counter[str]()
    for use in uses:
        read.update(use.columns)
    columns = [
        ColumnUse(name=name, runs=runs[name], read_bytes=read[name], stored_bytes=size) for name, size in stored.items()
    ]
    total = sum(stored.values())
    in_use = [column for column in columns if column.runs]
    columns_read = [len(use.columns) / use.table_columns for use in uses if use.table_columns]
    bytes_read = [sum(use.columns.values()) / use.row_group_bytes for use in uses if use.row_group_bytes]
    return Popularity(
        table=snapshot.uri,
        runs=len(uses),
        jobs=tuple(dict.fromkeys(use.job for use in uses)),
        first=uses[0].time if uses else None,
        last=uses[-1].time if uses else None,
        columns=tuple(sorted(columns, key=lambda column: -column.runs)),  # stable: the table's order among equals
        column_share=fmean(columns_read or [0.0]),
        byte_share=fmean(bytes_read or [0.0]),
        used_column_share=len(in_use) / len(columns),
        used_byte_share=sum(column.stored_bytes for column in in_use) / total if total else 0.0,
        partitions=tuple(Counter(folder for use in uses for folder in use.partitions).most_common()),
    )


def popular_columns(uses: Sequence[Use]) -> tuple[str, ...]:
    """Return the columns that runs read, most often read first; ties in the order of the latest run."""
    runs = Counter(name for use in reversed(uses) for name in use.columns)
    return tuple(name for name, _ in runs.most_common())


def _use(snapshot: Snapshot, parts: Iterable[str], row_groups: npt.NDArray[np.int64], job: str) -> Use:
    stored = set(snapshot.file_columns)
    own_parts = {name: None for name in parts if name in stored or part_of(name) is not None}
    sizes = {name: int(size[row_groups].sum()) for name, size in column_bytes(snapshot, own_parts)}
    sources = source_columns(snapshot.schema, own_parts)
    read = [name for name in sources if name in stored and (name in own_parts or sizes[name])]
    folders = [partition_folder(path) for path in snapshot.files["path"].to_pylist()]
    partitions = dict.fromkeys(folders[file] for file in np.unique(snapshot.file_of_row_group[row_groups]))
    return Use(
        time=datetime.now(UTC).isoformat(timespec="microseconds"),
        job=job,
        table=redact(snapshot.uri),
        snapshot=snapshot.id,
        columns={name: sizes[name] for name in read},
        partitions=tuple(partitions)[:_PARTITIONS],
        partitions_read=len(partitions),
        table_columns=len(stored),
        row_group_bytes=int(snapshot.row_groups["bytes"].to_numpy()[row_groups].sum()),
        table_partitions=len(set(folders)),
    )


def _names(location: Location, folder: str) -> list[str]:
    files, name = location.filesystem, join(redact(location.uri), folder)
    selector = pafs.FileSelector(join(location.path, folder), allow_not_found=True)
    with explain_errors(name, verb="listed"):
        infos = with_retries(lambda: files.get_file_info(selector), files, name, verb="listed")
    return sorted(info.base_name for info in infos if info.base_name.endswith(".json"))


def _folder(uri: str) -> str:
    return f"usage/{hashlib.sha256(redact(uri).encode()).hexdigest()[:16]}"
