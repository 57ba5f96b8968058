"""Pack the facts of many footers into few typed Arrow columns.

Pure; runs where footers are read. Files with equal schemas are grouped into a block and converted together into arrays
of the files' own types. Blocks are compressed column by column (a chunk's facts take about 10 bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.parquet.bounds import bounds_of, has_bounds
from feedline.warehouse.parquet.footer import ColumnFacts, FileFacts
from feedline.warehouse.parquet.schemas import without_dictionaries
from feedline.warehouse.snapshot.column_facts import Facts, arrange_facts, contiguous, join_facts
from feedline.warehouse.storage.file_identity import is_settled, known_files

# --------------------------------------------------------------------------------------------------------------------
# Assemble the tables of a snapshot from footers just read and from an earlier snapshot, in the table's order. Pure;
# runs where a snapshot is taken. Each `SnapshotPart` holds some of the listed files, in any order; together they hold
# each file once. No loop is over files: a table may have hundreds of thousands of them.

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
    known = known_files(listing.files, last.files)  # of a new file, and two that were files 0 and 2: [-1, 0, 2]
    same = known.same & (known.tagged | is_settled(contiguous(listing.files["mtime_ns"]).to_numpy(), taken_ns))
    whole = np.array([kept.issuperset(_columns_of(schema, listing.schema)) for schema in last.schemas], np.bool_)
    same &= whole[contiguous(last.files["schema"]).to_numpy()[known.index]]
    return np.where(same, known.index, -1)


def _columns_of(file: pa.Schema, declared: pa.Schema | None) -> Iterable[str]:
    return file.names if declared is None else set(file.names).intersection(declared.names)


def carry_over(last: SnapshotPart, old: npt.NDArray[np.int64]) -> SnapshotPart:
    """The facts of unchanged files from the last snapshot (`old`: from `unchanged_files`), as a part of the new one."""
    new_files = np.flatnonzero(old >= 0)
    index = np.full(len(last.files), -1, np.int64)
    index[old[new_files]] = new_files
    old_files = np.flatnonzero(index >= 0)
    groups = np.flatnonzero(index[contiguous(last.row_groups["file"]).to_numpy()] >= 0)
    files = last.files
    if "etag" not in files.schema.names:
        files = files.append_column("etag", pa.nulls(len(files), pa.string()))
    names = ["etag", "footer_digest", "footer_bytes", "rows", "row_groups", "schema"]
    files = files.select(names).take(pa.array(old_files)).add_column(0, "file", pa.array(index[old_files]))
    row_groups = last.row_groups.select(["rows", "bytes"]).take(pa.array(groups))
    return SnapshotPart(files=files, schemas=last.schemas, row_groups=row_groups, facts=last.facts.take(groups))


def _distinct_schemas(parts: Sequence[SnapshotPart]) -> tuple[list[pa.Schema], Int64s]:
    """The distinct schemas of all parts, and for each file, part after part, the index of its schema."""
    indices: dict[bytes, int] = {}
    schemas: list[pa.Schema] = []
    schema_ids = []
    for part in parts:
        of_part = []
        for schema in part.schemas:
            key = schema.serialize().to_pybytes()
            if key not in indices:
                indices[key] = len(schemas)
                schemas.append(schema)
            of_part.append(indices[key])
        schema_ids.append(np.asarray(of_part, np.int64)[part.files["schema"].to_numpy()])
    return schemas, np.concatenate(schema_ids)


def _by_appearance(schema_ids: Int64s) -> tuple[Int64s, Int64s]:
    """Renumber to 0, 1, … in order of first appearance; also returns the position where each first appears."""
    # [5, 2, 5, 9] -> [0, 1, 0, 2] and [0, 1, 3]
    _, first, which = np.unique(schema_ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    names = np.empty(len(order), np.int64)
    names[order] = np.arange(len(order))
    return names[which], first[order]


def _take(table: pa.Table, order: Int64s) -> pa.Table:
    return table.combine_chunks().take(pa.array(order)).combine_chunks()


# --------------------------------------------------------------------------------------------------------------------

_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")
_WORTH_COMPRESSING = 4096  # bytes of a column's facts: fewer cost more time than they save space


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FactBlock:
    """The facts of files of one schema.

    `files`, `row_groups`: as in `SnapshotPart`. `columns`: an Arrow stream of facts per column of `schema`.
    """

    schema: pa.Schema
    files: pa.Table
    row_groups: pa.Table
    columns: tuple[pa.Buffer, ...]

    @property
    def nbytes(self) -> int:
        return sum(int(part.size) for part in self.columns) + int(self.files.nbytes) + int(self.row_groups.nbytes)

    def part(self) -> SnapshotPart:
        return part_of_schema(self.schema, self.files, self.row_groups, self.columns.__getitem__)


def part_of_schema(
    schema: pa.Schema, files: pa.Table, row_groups: pa.Table, column: Callable[[int], pa.Buffer]
) -> SnapshotPart:
    """Files of one schema as a part of a snapshot; `column` returns the packed facts of a column."""
    indices = {name: index for index, name in enumerate(schema.names)}
    rows = row_groups["rows"].combine_chunks()

    def fetch(field: pa.Field) -> pa.StructArray:
        index = indices.get(field.name)
        return arrange_facts(None if index is None else _unpack(column(index)), rows, field)

    return SnapshotPart(files=files, schemas=(schema,), row_groups=row_groups, facts=Facts(fetch))


def join_blocks(blocks: Sequence[FactBlock]) -> list[FactBlock]:
    """Merge the blocks of each schema: a stream of few facts is mostly schema."""
    return [
        same[0]
        if len(same) == 1
        else FactBlock(
            schema=same[0].schema,
            files=pa.concat_tables([block.files for block in same]),
            row_groups=pa.concat_tables([block.row_groups for block in same]),
            columns=tuple(join_fact_columns(same)),
        )
        for same in group_by_schema(blocks)
    ]


def group_by_schema(blocks: Iterable[FactBlock]) -> list[list[FactBlock]]:
    """The blocks grouped by schema, in order of first appearance."""
    groups: dict[bytes, list[FactBlock]] = {}
    for block in blocks:
        groups.setdefault(block.schema.serialize().to_pybytes(), []).append(block)
    return list(groups.values())


def join_fact_columns(blocks: Sequence[FactBlock]) -> Iterator[pa.Buffer]:
    """The packed columns of blocks of one schema, each joined over the blocks."""
    for column in range(len(blocks[0].columns)):
        parts = [_unpack(block.columns[column]) for block in blocks]
        yield _pack({name: pa.concat_arrays([part[name] for part in parts]) for name in parts[0]})


def blocks_of(facts: Sequence[tuple[int, FileFacts]]) -> list[FactBlock]:
    """Blocks of files (each with its index in the listing), one per schema and physical types."""
    groups: dict[tuple[bytes, tuple[int, ...]], list[tuple[int, FileFacts]]] = {}
    for index, file in facts:
        # one Arrow type may have several physical types, which bounds are stored as
        key = file.schema.serialize().to_pybytes(), tuple(file.physical)
        groups.setdefault(key, []).append((index, file))
    return [_block(files[0][1].schema, files) for files in groups.values()]


def part_without_files() -> SnapshotPart:
    return _block(pa.schema([]), []).part()


def _block(schema: pa.Schema, indexed_files: Sequence[tuple[int, FileFacts]]) -> FactBlock:
    files = [file for _, file in indexed_files]
    columns = [
        _arrays([file.columns[index] for file in files], without_dictionaries(field.type))
        for index, field in enumerate(schema)
    ]
    rows = np.fromiter(chain.from_iterable(file.rows for file in files), np.int64)
    sizes = sum((column["bytes"].to_numpy() for column in columns), np.zeros(len(rows), np.int64))
    return FactBlock(
        schema=schema,
        files=pa.table(
            {
                "file": pa.array([index for index, _ in indexed_files], pa.int64()),
                "etag": pa.array([file.tag or None for file in files], pa.string()),
                "footer_digest": pa.array([file.digest for file in files], pa.binary(32)),
                "footer_bytes": pa.array([file.footer_bytes for file in files], pa.int64()),
                "rows": pa.array([sum(file.rows) for file in files], pa.int64()),
                "row_groups": pa.array([len(file.rows) for file in files], pa.int32()),
                "schema": pa.array(np.zeros(len(files), np.int32)),
            }
        ),
        row_groups=pa.table({"rows": pa.array(rows), "bytes": pa.array(sizes)}),
        columns=tuple(_pack(column) for column in columns),
    )


def _pack(arrays: dict[str, pa.Array]) -> pa.Buffer:
    batch = pa.RecordBatch.from_pydict(arrays)
    sink = pa.BufferOutputStream()
    options = _OPTIONS if batch.nbytes >= _WORTH_COMPRESSING else None
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return pa.py_buffer(sink.getvalue().to_pybytes())  # a copy: the stream's buffer is larger than its content


def _unpack(packed: pa.Buffer) -> dict[str, pa.Array]:
    batch = pa.ipc.open_stream(packed).read_next_batch()
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _arrays(facts: Sequence[ColumnFacts], kind: pa.DataType) -> dict[str, pa.Array]:
    arrays = {
        "bytes": pa.array(list(chain.from_iterable(column.bytes for column in facts)), pa.int64()),
        "nulls": pa.array(list(chain.from_iterable(column.nulls for column in facts)), pa.int64()),
        "exact": pa.array(list(chain.from_iterable(column.exact for column in facts)), pa.bool_()),
    }
    if has_bounds(kind):
        low = list(chain.from_iterable(column.low for column in facts))
        high = list(chain.from_iterable(column.high for column in facts))
        arrays["min"], arrays["max"] = bounds_of(low, high, facts[0].physical, kind)
    return arrays
