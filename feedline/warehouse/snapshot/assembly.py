"""Assemble the tables of a snapshot from footers just read and from an earlier snapshot, in the table's order.

Pure; runs where a snapshot is taken. Each `SnapshotPart` holds some of the listed files, in any order; together
they hold each file once. No loop is over files: a table may have hundreds of thousands of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.snapshot.column_facts import Facts, contiguous, join_facts
from feedline.warehouse.storage.file_identity import is_settled, known_files

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SnapshotPart:
    """Files whose footers have been read.

    `files`: file (int64, its index in the listing), etag (null without one), footer_digest, footer_bytes, rows,
    row_groups, schema (int32, an index of `schemas`). `row_groups`: rows and bytes, file after file; `facts`: in the
    same order.
    """

    files: pa.Table
    schemas: tuple[pa.Schema, ...]
    row_groups: pa.Table
    facts: Facts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assembly:
    """All files in the listing's order: `files` without the index, `row_groups` with file and row_group.

    `schemas`: the distinct ones, in order of first appearance; `first`: the first file of each.
    """

    files: pa.Table
    row_groups: pa.Table
    facts: Facts
    schemas: tuple[pa.Schema, ...]
    first: tuple[int, ...]


def assemble(parts: Sequence[SnapshotPart]) -> Assembly:
    """Join the parts, which together hold each file of the listing once."""
    schemas, schema_ids = _distinct_schemas(parts)
    files = pa.concat_tables([part.files.drop_columns("schema") for part in parts])
    index = files["file"].to_numpy()
    order = np.argsort(index, kind="stable")
    counts = files["row_groups"].to_numpy()
    group_order = np.argsort(np.repeat(index, counts), kind="stable")
    which, first = _by_appearance(schema_ids[order])
    row_groups = pa.concat_tables([part.row_groups for part in parts])
    counts = counts[order].astype(np.int64)
    file = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    return Assembly(
        files=_take(files.drop_columns("file"), order).append_column("schema", pa.array(which.astype(np.int32))),
        row_groups=pa.table(
            {
                "file": pa.array(file),
                "row_group": pa.array((np.arange(len(file)) - starts).astype(np.int32)),
                **{name: _take(row_groups.select([name]), group_order)[name] for name in ("rows", "bytes")},
            }
        ),
        facts=join_facts([part.facts for part in parts], group_order),
        schemas=tuple(schemas[int(schema_ids[order][index])] for index in first),
        first=tuple(first.tolist()),
    )


def in_order(whole: Assembly, order: npt.NDArray[np.int64]) -> Assembly:
    """The same files in another order: of each, its index so far."""
    index = np.empty(len(order), np.int64)
    index[order] = np.arange(len(order))
    files = whole.files.add_column(0, "file", pa.array(index))
    row_groups = whole.row_groups.select(["rows", "bytes"])
    return assemble([SnapshotPart(files=files, schemas=whole.schemas, row_groups=row_groups, facts=whole.facts)])


def unchanged_files(listing: Listing, last: SnapshotPart, *, kept: set[str], taken_ns: int) -> npt.NDArray[np.int64]:
    """For each listed file its index in the last snapshot if it is unchanged, else -1: then its footer must be read.

    `last`: the last snapshot, taken at `taken_ns`; its files also have path, bytes, mtime_ns and perhaps etag. A file
    without etag that was younger than the clock's grain when it was read may have been replaced. A file with a column
    other than `kept` counts as changed, as the facts of that column are lost. If the table's log declares the columns,
    dropped columns in files do not matter.
    """
    known = known_files(listing.files, last.files)
    same = known.same & (known.tagged | is_settled(contiguous(listing.files["mtime_ns"]).to_numpy(), taken_ns))
    whole = np.array([kept.issuperset(_columns_of(schema, listing.schema)) for schema in last.schemas], np.bool_)
    same &= whole[contiguous(last.files["schema"]).to_numpy()[known.index]]
    return np.where(same, known.index, -1)


def _columns_of(file: pa.Schema, declared: pa.Schema | None) -> Iterable[str]:
    return file.names if declared is None else set(file.names).intersection(declared.names)


def carry_over(last: SnapshotPart, old: npt.NDArray[np.int64]) -> SnapshotPart:
    """The facts of unchanged files from the last snapshot (`old`: from `unchanged_files`), as a part of the new one."""
    kept = np.flatnonzero(old >= 0)
    index = np.full(len(last.files), -1, np.int64)
    index[old[kept]] = kept
    mine = np.flatnonzero(index >= 0)
    groups = np.flatnonzero(index[contiguous(last.row_groups["file"]).to_numpy()] >= 0)
    files = last.files
    if "etag" not in files.schema.names:
        files = files.append_column("etag", pa.nulls(len(files), pa.string()))
    names = ["etag", "footer_digest", "footer_bytes", "rows", "row_groups", "schema"]
    files = files.select(names).take(pa.array(mine)).add_column(0, "file", pa.array(index[mine]))
    row_groups = last.row_groups.select(["rows", "bytes"]).take(pa.array(groups))
    return SnapshotPart(files=files, schemas=last.schemas, row_groups=row_groups, facts=last.facts.take(groups))


def _distinct_schemas(parts: Sequence[SnapshotPart]) -> tuple[list[pa.Schema], Int64s]:
    """The distinct schemas of all parts, and for each file, part after part, the index of its schema."""
    indices: dict[bytes, int] = {}
    schemas: list[pa.Schema] = []
    schema_ids = []
    for part in parts:
        mine = []
        for schema in part.schemas:
            key = schema.serialize().to_pybytes()
            if key not in indices:
                indices[key] = len(schemas)
                schemas.append(schema)
            mine.append(indices[key])
        schema_ids.append(np.asarray(mine, np.int64)[part.files["schema"].to_numpy()])
    return schemas, np.concatenate(schema_ids)


def _by_appearance(schema_ids: Int64s) -> tuple[Int64s, Int64s]:
    """Renumber to 0, 1, … in order of first appearance; also returns the position where each first appears."""
    _, first, which = np.unique(schema_ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    names = np.empty(len(order), np.int64)
    names[order] = np.arange(len(order))
    return names[which], first[order]


def _take(table: pa.Table, order: Int64s) -> pa.Table:
    """The rows in that order, each column as one chunk."""
    return table.combine_chunks().take(pa.array(order)).combine_chunks()
