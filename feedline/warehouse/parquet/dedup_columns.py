"""Store columns once per run of equal rows: names, footer metadata and checks of the format, and its writing.

Runs in: the tasks of `optimize`, and in every process that reads tables. Pure.

Each column of a *group*, say `user`, is nullable and holds its value where a run of equal rows starts, null in the rows
that repeat it. The Boolean column `__run_user`, never null, is true where a run starts; such flag columns come last. A
run starts at the first row of every row group, at every new key of `--cluster-by`, and where a column of the group
differs from the row above in any bit. The footer's key-value metadata, under `feedline.dedup`, names the groups, and
per row group its rows, its runs and a digest of the flags. See docs/decisions/0032.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
import xxhash
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.errors import TableError
from feedline.warehouse.parquet.repeated_rows import first_rows_of_table

METADATA_KEY = b"feedline.dedup"
FLAG_PREFIX = "__run_"

_VERSION = 1
_GROUP_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DIGEST = re.compile(r"[0-9a-f]{16}")
_REWRITE = "Write the table again with feedline optimize, from its source"

Bools = NDArray[np.bool_]
Groups = Mapping[str, Sequence[str]]  # the columns of each group


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroupRuns:
    """The flags of a group in one row group: rows, runs, and a digest (16 hex digits) of the packed flags."""

    rows: int
    runs: int
    digest: str

    @classmethod
    def of(cls, flags: Bools) -> Self:
        packed = np.packbits(flags, bitorder="little").tobytes()
        return cls(rows=len(flags), runs=int(np.count_nonzero(flags)), digest=xxhash.xxh3_64_hexdigest(packed))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRuns:
    """A group of a file: its columns, and the flags of each row group in order."""

    columns: tuple[str, ...]
    row_groups: tuple[RowGroupRuns, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupMetadata:
    """The groups of a file by name."""

    groups: Mapping[str, GroupRuns]

    def to_json(self) -> bytes:
        groups = {
            name: {
                "columns": list(group.columns),
                "row_groups": [[one.rows, one.runs, one.digest] for one in group.row_groups],
            }
            for name, group in self.groups.items()
        }
        return json.dumps({"version": _VERSION, "groups": groups}, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, content: bytes, file: str) -> Self:
        """Parse what `to_json` wrote. Raises TableError, naming the file, for anything else."""
        try:
            document = json.loads(content)
        except ValueError:
            raise _malformed(file, "no JSON") from None
        if not isinstance(document, dict) or not isinstance(document.get("groups"), dict):
            raise _malformed(file, "no groups")
        if document.get("version") != _VERSION:
            raise TableError(
                f"{file} stores columns once per run in a format of another version: got version "
                f"{document.get('version')!r} of {METADATA_KEY.decode()!r}, expected {_VERSION}. Read it with the "
                "version of Feedline that wrote it, or a newer one"
            )
        groups = {name: _parse_group(name, group, file) for name, group in document["groups"].items()}
        columns = [column for group in groups.values() for column in group.columns]
        if len(set(columns)) < len(columns):
            raise _malformed(file, "a column twice")
        return cls(groups=groups)


def flag_column(group: str) -> str:
    """The name of a group's flag column."""
    return f"{FLAG_PREFIX}{group}"


def flag_field(group: str) -> pa.Field:
    """The field of a group's flag column."""
    return pa.field(flag_column(group), pa.bool_(), nullable=False)


def may_be_flag(field: pa.Field) -> bool:
    """Whether a column is named and typed like the flags of a group. The file's metadata decides whether it is."""
    return field.name.startswith(FLAG_PREFIX) and bool(pat.is_boolean(field.type))


def is_group_name(name: str) -> bool:
    """Whether a group may have this name: letters, digits, `_`, `.` and `-`."""
    return _GROUP_NAME.fullmatch(name) is not None


def stored_schema(schema: pa.Schema, groups: Groups) -> pa.Schema:
    """The schema of files with these groups: their columns nullable, and a flag column per group at the end."""
    nullable = {name for columns in groups.values() for name in columns}
    fields = [field.with_nullable(True) if field.name in nullable else field for field in schema]
    return pa.schema([*fields, *(flag_field(group) for group in groups)], metadata=schema.metadata)


def dedup_table(table: pa.Table, groups: Groups, keys: Sequence[str] = ()) -> tuple[pa.Table, dict[str, RowGroupRuns]]:
    """Store the groups of a row group's rows once per run; return the table and, per group, what its flags hold.

    A run also ends where one of the columns `keys` changes. Types are kept.
    """
    schema = stored_schema(table.schema, groups)
    arrays: dict[str, pa.Array | pa.ChunkedArray] = {name: table[name] for name in table.schema.names}
    runs = {}
    for group, columns in groups.items():
        starts = first_rows_of_table(table, [*columns, *keys])
        arrays |= {name: _only_at(starts, table[name]) for name in columns}
        arrays[flag_column(group)] = pa.array(starts)
        runs[group] = RowGroupRuns.of(starts)
    return pa.Table.from_arrays([arrays[name] for name in schema.names], schema=schema), runs


def keep_rows(table: pa.Table, groups: Groups, keep: Bools) -> tuple[pa.Table, dict[str, RowGroupRuns]]:
    """Some rows of a row group as it is stored, with these groups; and, per group, what its flags hold.

    A run whose first row goes begins at the next of its rows that stays. Types are kept.
    """
    # flags [1, 0, 0, 1, 0], keep [0, 1, 1, 0, 1] -> rows of runs [0, 0, 1], flags [1, 0, 1], values of rows [0, -, 3]
    rows = np.flatnonzero(keep)
    arrays: dict[str, pa.ChunkedArray] = {}
    runs = {}
    for group, columns in groups.items():
        first_rows = np.flatnonzero(table[flag_column(group)].to_numpy())
        run = np.searchsorted(first_rows, rows, side="right") - 1
        starts = np.diff(run, prepend=-1) != 0
        places = pa.array(np.where(starts, first_rows[run], rows))
        arrays |= {name: _only_at(starts, table[name].take(places)) for name in columns}
        arrays[flag_column(group)] = pa.chunked_array([pa.array(starts)])
        runs[group] = RowGroupRuns.of(starts)
    others = table.filter(pa.array(keep))
    kept = [arrays[name] if name in arrays else others[name] for name in table.schema.names]
    return pa.Table.from_arrays(kept, schema=table.schema), runs


def _only_at(starts: Bools, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with its values where runs start, null elsewhere."""
    borders = np.cumsum([0, *(len(chunk) for chunk in column.chunks)]).tolist()
    chunks = [
        _kept(chunk, ~starts[first : first + len(chunk)])
        for first, chunk in zip(borders[:-1], column.chunks, strict=True)
    ]
    return pa.chunked_array(chunks, column.type)


def _kept(array: pa.Array, mask: Bools) -> pa.Array:
    """The array with nulls where the mask is true."""
    if not pat.is_struct(array.type):
        return array.take(pa.array(np.arange(len(array)), mask=mask))
    if array.null_count:  # the writer refuses a null in a required field, even within a null struct: fields stay whole
        mask |= array.is_null().to_numpy(zero_copy_only=False)
    fields = [array.field(index) for index in range(array.type.num_fields)]
    return pa.StructArray.from_arrays(fields, fields=list(array.type), mask=pa.array(mask))


def dedup_metadata(
    notes: Mapping[bytes, bytes] | None, schema: pa.Schema, rows: Iterable[int], file: str
) -> DedupMetadata | None:
    """The groups of a file, from its key-value metadata, columns and rows per row group; None if it has none.

    Raises TableError, naming the file, if they contradict each other: another tool wrote it. Only the flags of the
    groups that the metadata names are flags; any other column is plain, whatever its name.
    """
    columns = frozenset(schema.names)
    content = (notes or {}).get(METADATA_KEY)
    if content is None:
        return None
    metadata = DedupMetadata.from_json(content, file)
    stored_rows = list(rows)
    for name, group in metadata.groups.items():
        missing = [column for column in (flag_column(name), *group.columns) if column not in columns]
        if missing:
            raise TableError(
                f"{file} lacks column {missing[0]!r} of the group {name!r}, whose columns are stored once per run: "
                f"expected {', '.join(group.columns)} and {flag_column(name)}. {_REWRITE}"
            )
        described = [one.rows for one in group.row_groups]
        if described != stored_rows:
            raise TableError(
                f"the row groups of {file} are not those of its group {name!r}: got {_some(stored_rows)} rows, "
                f"expected {_some(described)}. Another tool rewrote it. {_REWRITE}"
            )
    return metadata


def lost_metadata(flags: str, file: str) -> TableError:
    """The error for a file that looks like a copy without the metadata."""
    return TableError(
        f"{file} has a column {flags!r} without the metadata {METADATA_KEY.decode()!r}, and nulls in others: it may "
        "be a copy, by a tool that drops the metadata, of a file that stores columns once per run, where such nulls "
        f"are repeated rows. {_REWRITE}, or rename the column"
    )


def logical_nulls(runs: RowGroupRuns, stored: int) -> int:
    """How many rows of a row group are null in a column of a group, by the nulls that are stored; -1 if unknown, and
    -1 - n if at least n are.

    A row that repeats the row above is stored as null. What is stored beyond that stands at starts of runs: of all
    runs, of none, or of some, whose lengths are unknown.
    """
    # 10 rows in 3 runs: 7 stored nulls -> 0, 8 -> -2 (the rows of a run, at least one), 10 -> 10
    if stored == runs.rows:
        return stored
    starts = stored - (runs.rows - runs.runs)
    return -1 if starts < 0 else -1 - starts if starts else 0


def check_flags(flags: pa.Array | pa.ChunkedArray, expected: RowGroupRuns, group: str, place: str) -> Bools:
    """Check the flags of a whole row group against its metadata, and return them as bool [rows].

    place: file and row group, for the error. Raises TableError for other flags: another tool rewrote the file.
    """
    name = flag_column(group)
    if not pat.is_boolean(flags.type):
        raise TableError(f"column {name!r} of {place} is of type {flags.type}: expected bool. {_REWRITE}")
    if flags.null_count:
        raise TableError(f"column {name!r} of {place} holds {flags.null_count:,} nulls: expected none. {_REWRITE}")
    starts: Bools = flags.to_numpy() if isinstance(flags, pa.ChunkedArray) else flags.to_numpy(zero_copy_only=False)
    if len(starts) and not starts[0]:
        raise TableError(
            f"column {name!r} of {place} is false in the first row: expected that every row group starts a run. "
            f"{_REWRITE}"
        )
    actual = RowGroupRuns.of(starts)
    if actual != expected:
        raise TableError(
            f"column {name!r} of {place} does not match its metadata: got {actual.rows:,} rows in {actual.runs:,} runs "
            f"(digest {actual.digest}), expected {expected.rows:,} in {expected.runs:,} ({expected.digest}). Another "
            f"tool rewrote the file. {_REWRITE}"
        )
    return starts


def _parse_group(name: str, body: Any, file: str) -> GroupRuns:
    where = f"in group {name!r}"
    if not is_group_name(name):
        raise _malformed(file, f"a bad group name {name!r}")
    if not isinstance(body, dict):
        raise _malformed(file, f"no mapping {where}")
    columns, row_groups = body.get("columns"), body.get("row_groups")
    if not isinstance(columns, list) or not columns or not all(isinstance(column, str) for column in columns):
        raise _malformed(file, f"no list of columns {where}")
    if not isinstance(row_groups, list):
        raise _malformed(file, f"no row groups {where}")
    return GroupRuns(columns=tuple(columns), row_groups=tuple(_parse_runs(one, where, file) for one in row_groups))


def _parse_runs(value: Any, where: str, file: str) -> RowGroupRuns:
    if not isinstance(value, list) or len(value) != 3:
        raise _malformed(file, f"a row group that is no [rows, runs, digest] {where}")
    rows, runs, digest = value
    counts = all(type(count) is int for count in (rows, runs)) and 0 <= min(rows, 1) <= runs <= rows
    if not counts or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise _malformed(file, f"the row group {json.dumps(value)} {where}")
    return RowGroupRuns(rows=rows, runs=runs, digest=digest)


def _malformed(file: str, what: str) -> TableError:
    return TableError(f"the metadata {METADATA_KEY.decode()!r} of {file} is malformed: it holds {what}. {_REWRITE}")


def _some(counts: Sequence[int]) -> str:
    shown = ", ".join(f"{count:,}" for count in counts[:5])
    return f"{len(counts):,} of {shown}{', …' if len(counts) > 5 else ''}" if counts else "none"
