"""Add columns to a table, or drop them: `feedline columns add` and `drop`.

Runs in the caller's process; column files are written by small picklable tasks that any `map` may run. Steps of `add`:

1. take a snapshot, select whole base files, and check names and types;
2. take the claim on the table's column files: of two runs at once the first one stops with an error;
3. write a column file per base file below the run's own hidden folder;
4. move them below `_columns/files`, and create the commit that names them: it appears last, and whole.

A run that is killed leaves the table as it was, and files that the next run removes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.errors import TableArgumentError
from feedline.expressions import bind_where
from feedline.progress import track
from feedline.warehouse.columns.column_writer import ColumnTask, new_columns, staged, write_column_file
from feedline.warehouse.columns.commit import claimed, create_commit, refuse_taken, remove_orphans
from feedline.warehouse.columns.values import ColumnSource, refuse_kind
from feedline.warehouse.discovery.column_log import COLUMN_FILES, AddCommit, ColumnLog, DropCommit, column_files_of
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.discovery.logs import DELTA, ICEBERG, log_of_folder
from feedline.warehouse.parquet.dedup_columns import may_be_flag
from feedline.warehouse.parquet.encodings import choose
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, field_of, fragment_at, nearest_hint
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.warehouse.storage.claim import Claim
from feedline.warehouse.storage.locations import Location, absolute, join, locate, redact
from feedline.warehouse.storage.parallel import Map, in_threads

_SAMPLE_ROWS = 65_536  # on which encodings are measured
_WRITING = "writing column files"  # the phase of progress
_FORMATS = {DELTA: "Delta Lake", ICEBERG: "Iceberg"}

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddReport:
    """What `add` did: the fields and their types, base files and rows that have them now, bytes of column files."""

    table: str
    columns: dict[str, str]
    files: int
    table_files: int
    rows: int
    bytes: int
    commit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropReport:
    """What `drop` did: the columns that the table does not have any more, and the bytes that they still take."""

    table: str
    columns: tuple[str, ...]
    bytes: int
    commit: int


def add_columns(
    table: str, source: ColumnSource, *, where: str | None = None, replaced: bool = False, map: Map | None = None
) -> AddReport:
    """Add the columns of a source to all base files of a table, or to those that `where` selects by partition keys.

    replaced: base files may have the columns already. Raises TableArgumentError for a table, name, type or condition
    that does not fit, TableError where another run writes column files, and what reading raises.
    """
    location = _folder_of(table)
    listing, snapshot = table_now(location.uri)
    chosen = _chosen_files(snapshot, where)
    fields = _fields(snapshot, source)
    for field in fields:
        _check_field(field, listing, snapshot, chosen, replaced=replaced)
    with claimed(location) as claim:
        tasks = _tasks(claim, snapshot, source, fields, chosen)
        sizes = [sum(task.rows) for task in tasks]
        written = track((map or in_threads)(write_column_file, tasks), _WRITING, sizes, "rows")
        files = {task.fragment.path: file for task, file in zip(tasks, written, strict=True)}
        refuse_taken(location, listing.columns)
        remove_orphans(location, claim, listing.columns)
        claim.move((staged(claim, file.path), join(location.path, file.path)) for file in files.values())
        commit = AddCommit(schema=fields, files=files, source=source.text)
        number = create_commit(location, claim, listing.columns, commit.to_json())
    return AddReport(
        table=redact(location.uri),
        columns={field.name: str(field.type) for field in fields},
        files=len(files),
        table_files=len(snapshot.files),
        rows=sum(sizes),
        bytes=sum(file.bytes for file in files.values()),
        commit=number,
    )


def drop_columns(table: str, names: Sequence[str]) -> DropReport:
    """Drop columns: the table does not have them from now on, though files keep their bytes. Raises
    TableArgumentError for unknown names, partition keys, and all columns at once."""
    location = _folder_of(table)
    listing, snapshot = table_now(location.uri)
    for name in names:
        if name in snapshot.partition_columns:
            raise TableArgumentError(f"column {name!r} is a partition key: its folders hold it. Keep it")
        if name not in snapshot.schema.names:
            hint = nearest_hint(name, snapshot.file_columns)
            raise TableArgumentError(f"column {name!r} is not in the table. {hint}")
    if not set(snapshot.file_columns).difference(names):
        raise TableArgumentError(
            f"{redact(location.uri)} would have no column left: got all {len(snapshot.file_columns)}. Keep one"
        )
    base = snapshot_of(_without_columns(listing))
    hidden = tuple(name for name in names if any(name in schema.names for schema in base.file_schemas))
    sizes = [int(snapshot.column_part(name, "bytes").sum()) for name in names]
    commit = DropCommit(fields=tuple(names), hidden=hidden)
    with claimed(location) as claim:
        number = create_commit(location, claim, listing.columns, commit.to_json())
    return DropReport(table=redact(location.uri), columns=tuple(names), bytes=sum(sizes), commit=number)


def table_now(uri: str) -> tuple[Listing, Snapshot]:
    """The listing and snapshot of a table, without column files whose base files were rewritten since."""
    listing = list_table(uri)
    if COLUMN_FILES not in listing.files.schema.names:
        return listing, snapshot_of(listing)
    base = snapshot_of(_without_columns(listing))
    digests = dict(zip(base.files["path"].to_pylist(), base.files["footer_digest"].to_pylist(), strict=True))
    entries = listing.files[COLUMN_FILES].to_pylist()
    paths = listing.files["path"].to_pylist()
    current = [
        [entry for entry in own or () if entry["base_digest"] == digests[path]] or None
        for path, own in zip(paths, entries, strict=True)
    ]
    place = listing.files.schema.get_field_index(COLUMN_FILES)
    kind = listing.files.schema.field(place).type
    files = listing.files.set_column(place, COLUMN_FILES, pa.array(current, kind))
    listing = replace(listing, files=files)
    return listing, snapshot_of(listing)


# -- what is added, and where -----------------------------------------------------------------------------------------


def _folder_of(table: str) -> Location:
    """The folder of a table. Raises TableArgumentError for other tables, naming those with a log."""
    mark = log_of_folder(table)
    if mark is not None:
        raise TableArgumentError(
            f"{redact(table)} is a table of {_FORMATS.get(mark, mark)}: expected a folder of Parquet files without a "
            "log. Its own writers do not know column files: add the column with them, or copy it with feedline optimize"
        )
    location = locate(absolute(table))
    if location.filesystem.get_file_info(location.path).type != pafs.FileType.Directory:
        raise TableArgumentError(
            f"{redact(table)} is not a folder: expected that of a table, as column files lie below it. Name the folder"
        )
    return location


def _without_columns(listing: Listing) -> Listing:
    if COLUMN_FILES not in listing.files.schema.names:
        return listing
    return replace(listing, columns=None, files=listing.files.drop_columns(COLUMN_FILES))


def _chosen_files(snapshot: Snapshot, where: str | None) -> Bools:
    """bool [files]: those that a condition on partition keys selects."""
    if where is None:
        return np.ones(len(snapshot.files), np.bool_)
    bound = bind_where(where, snapshot.schema)
    others = sorted(bound.columns.difference(snapshot.partition_columns))
    if others:
        keys = ", ".join(snapshot.partition_columns) or "none"
        raise TableArgumentError(
            f"--where reads column {others[0]!r}, but column files are of whole files: expected partition keys alone "
            f"({keys}). Compute the value for all rows, with null where it does not apply"
        )
    values = pl.DataFrame({name: pl.Series(snapshot.partition_column(name)) for name in bound.schema.names})
    chosen: Bools = values.select(bound.polars.fill_null(False).alias("chosen"))["chosen"].to_numpy()
    if not chosen.any():
        raise TableArgumentError(f"--where selects no file of {redact(snapshot.uri)}: got {where}. Correct it")
    return chosen


def _fields(snapshot: Snapshot, source: ColumnSource) -> pa.Schema:
    """The new columns, with the types that they have of no rows."""
    empty = pa.schema([field_of(snapshot.schema, name) for name in source.inputs(snapshot.schema)]).empty_table()
    return pa.schema([pa.field(field.name, field.type) for field in source.compute(empty).schema])


def _check_field(field: pa.Field, listing: Listing, snapshot: Snapshot, chosen: Bools, *, replaced: bool) -> None:
    name, table = field.name, redact(snapshot.uri)
    log = listing.columns or ColumnLog()
    refuse_kind(field)
    if name in snapshot.partition_columns or not name or may_be_flag(field):
        raise TableArgumentError(f"column {name!r} cannot be added to {table}: its name is taken. Choose another")
    if name in log.hidden:
        raise TableArgumentError(
            f"column {name!r} was dropped from {table}, whose files still hold it: expected a new name. Choose "
            "another, or write the table again with feedline optimize"
        )
    if name not in snapshot.schema.names:
        return
    if name in log.fields and not log.fields[name].type.equals(field.type):
        raise TableArgumentError(
            f"column {name!r} of {table} has another type: got {field.type}, expected {log.fields[name].type}, as it "
            "was added first. Drop it first, or cast the values"
        )
    if name not in log.fields and not snapshot.schema.field(name).type.equals(field.type):
        raise TableArgumentError(
            f"column {name!r} of {table} has another type: got {field.type}, expected "
            f"{snapshot.schema.field(name).type} as in its files. Choose another name, or cast the values"
        )
    own = np.array([name in schema.names for schema in snapshot.file_schemas], np.bool_)
    holders = np.flatnonzero(own[snapshot.files["schema"].to_numpy()] & chosen)
    for file in holders.tolist():
        in_base = not any(name in entry.fields for entry in column_files_of(snapshot.files, file))
        if in_base or not replaced:
            remedy = "Choose another name" if in_base else "Pass --replace, or narrow --where to other files"
            raise TableArgumentError(
                f"column {name!r} exists in {join(table, snapshot.path_of(file))}: got {len(holders)} of "
                f"{int(chosen.sum())} selected files with it, expected none. {remedy}"
            )


def _tasks(
    claim: Claim, snapshot: Snapshot, source: ColumnSource, fields: pa.Schema, chosen: Bools
) -> list[ColumnTask]:
    fragments = [(_whole_file(snapshot, file), _rows_of(snapshot, file)) for file in np.flatnonzero(chosen).tolist()]
    tasks = [
        ColumnTask(
            claim=claim,
            fragment=fragment,
            rows=rows,
            schema=snapshot.schema,
            fields=fields,
            source=source,
            encodings=(),
        )
        for fragment, rows in fragments
    ]
    largest = max(tasks, key=lambda task: max(task.rows, default=0))
    if not any(largest.rows):
        return tasks
    sample = new_columns(largest, int(np.argmax(largest.rows))).slice(0, _SAMPLE_ROWS)
    encodings = tuple(choice.encoding for choice in choose(sample, "balanced"))
    return [replace(task, encodings=encodings) for task in tasks]


def _whole_file(snapshot: Snapshot, file: int) -> Fragment:
    groups = snapshot.row_groups_of(file)
    return fragment_at(snapshot, file, groups, np.full(len(groups), UNCOUNTED))


def _rows_of(snapshot: Snapshot, file: int) -> tuple[int, ...]:
    return tuple(snapshot.rows_per_row_group[snapshot.row_groups_of(file)].tolist())
