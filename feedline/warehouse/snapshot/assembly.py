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
import pyarrow.compute as pc

from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.snapshot.column_facts import Facts, contiguous, join_facts

Int64s = npt.NDArray[np.int64]
_CLOCK_GRAIN_NS = 2 * 10**9  # of the coarsest file systems in use


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SnapshotPart:
    """Files whose footers are known.

    `files`: file (int64, its place in the listing), footer_digest, footer_bytes, rows, row_groups, schema (int32:
    which of `schemas`). `row_groups`: rows and bytes, file after file; `facts` likewise.
    """

    files: pa.Table
    schemas: tuple[pa.Schema, ...]
    row_groups: pa.Table
    facts: Facts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assembly:
    """All files in the listing's order: `files` without the place, `row_groups` with file and row_group.

    `schemas`: the distinct ones, in the order in which files show them; `first`: the first file of each.
    """

    files: pa.Table
    row_groups: pa.Table
    facts: Facts
    schemas: tuple[pa.Schema, ...]
    first: tuple[int, ...]


def assemble(parts: Sequence[SnapshotPart]) -> Assembly:
    """Put the parts' files together; their places are 0 to the number of files."""
    schemas, numbers = _number(parts)
    files = pa.concat_tables([part.files.drop_columns("schema") for part in parts])
    place = files["file"].to_numpy()
    order = np.argsort(place, kind="stable")
    counts = files["row_groups"].to_numpy()
    group_order = np.argsort(np.repeat(place, counts), kind="stable")
    which, first = _by_appearance(numbers[order])
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
        schemas=tuple(schemas[int(numbers[order][place])] for place in first),
        first=tuple(first.tolist()),
    )


def unchanged_files(listing: Listing, last: SnapshotPart, *, kept: set[str], taken_ns: int) -> npt.NDArray[np.int64]:
    """For each file listed, the file of an earlier snapshot that it still is; -1 where it has to be read.

    `last`: that snapshot, whose files have path, bytes, mtime_ns and maybe etag besides; it was taken at `taken_ns`. A
    file without a time and an etag cannot be told from its successor, and neither can one that was younger than the
    clock's grain when it was read. Nor is a file taken over that has a column other than `kept`: its facts are lost.
    Of a table whose log says its columns only those matter, not what files still hold of dropped ones.
    """
    files = listing.files
    found = pc.index_in(files["path"], value_set=last.files["path"])
    place = contiguous(found.fill_null(-1)).to_numpy().astype(np.int64)
    same = place >= 0
    for name in ("bytes", "mtime_ns"):
        same &= contiguous(files[name]).to_numpy() == contiguous(last.files[name]).to_numpy()[place]
    if "etag" in files.schema.names and "etag" in last.files.schema.names:
        tags = contiguous(files["etag"]), contiguous(last.files["etag"]).take(pa.array(np.maximum(place, 0)))
        same &= pc.fill_null(pc.equal(*tags), False).to_numpy(zero_copy_only=False)
    else:
        mtime_ns = contiguous(files["mtime_ns"]).to_numpy()
        same &= (mtime_ns >= 0) & (mtime_ns + _CLOCK_GRAIN_NS < taken_ns)
    whole = np.array([kept.issuperset(_columns_of(schema, listing.schema)) for schema in last.schemas], np.bool_)
    same &= whole[contiguous(last.files["schema"]).to_numpy()[place]]
    return np.where(same, place, -1)


def _columns_of(file: pa.Schema, declared: pa.Schema | None) -> Iterable[str]:
    return file.names if declared is None else set(file.names).intersection(declared.names)


def carry_over(last: SnapshotPart, old: npt.NDArray[np.int64]) -> SnapshotPart:
    """The earlier facts of unchanged files (`old`: see `unchanged_files`), by their places in the new listing."""
    kept = np.flatnonzero(old >= 0)
    place = np.full(len(last.files), -1, np.int64)
    place[old[kept]] = kept
    mine = np.flatnonzero(place >= 0)
    groups = np.flatnonzero(place[contiguous(last.row_groups["file"]).to_numpy()] >= 0)
    names = ["footer_digest", "footer_bytes", "rows", "row_groups", "schema"]
    files = last.files.select(names).take(pa.array(mine)).add_column(0, "file", pa.array(place[mine]))
    row_groups = last.row_groups.select(["rows", "bytes"]).take(pa.array(groups))
    return SnapshotPart(files=files, schemas=last.schemas, row_groups=row_groups, facts=last.facts.take(groups))


def _number(parts: Sequence[SnapshotPart]) -> tuple[list[pa.Schema], Int64s]:
    """The distinct schemas of all parts, and for each file, part after part, which one it has."""
    known: dict[bytes, int] = {}
    schemas: list[pa.Schema] = []
    numbers = []
    for part in parts:
        mine = []
        for schema in part.schemas:
            key = schema.serialize().to_pybytes()
            if key not in known:
                known[key] = len(schemas)
                schemas.append(schema)
            mine.append(known[key])
        numbers.append(np.asarray(mine, np.int64)[part.files["schema"].to_numpy()])
    return schemas, np.concatenate(numbers)


def _by_appearance(numbers: Int64s) -> tuple[Int64s, Int64s]:
    """Numbers renamed 0, 1, … in the order in which they first appear, and where each one does."""
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)
    names = np.empty(len(order), np.int64)
    names[order] = np.arange(len(order))
    return names[which], first[order]


def _take(table: pa.Table, order: Int64s) -> pa.Table:
    """The rows in that order, each column in one piece."""
    return table.combine_chunks().take(pa.array(order)).combine_chunks()
