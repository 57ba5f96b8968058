"""Pack the facts of many footers into few typed Arrow columns.

Pure; runs where footers are read. Files with equal schemas are grouped into a block and converted together into arrays
of the files' own types. Blocks are compressed column by column (a chunk's facts take about 10 bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from feedline.warehouse.parquet.bounds import bounds_of, has_bounds
from feedline.warehouse.parquet.footer import ColumnFacts, FileFacts
from feedline.warehouse.parquet.schemas import without_dictionaries
from feedline.warehouse.snapshot.assembly import SnapshotPart
from feedline.warehouse.snapshot.column_facts import Facts, arrange_facts

_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")
_WORTH_COMPRESSING = 4096  # bytes of a column's facts: fewer cost more time than they save space


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FactBlock:
    """The facts of files of one schema.

    `files`, `row_groups`: as in `assembly.SnapshotPart`. `columns`: an Arrow stream of facts per column of `schema`.
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
    """The facts of a table without files."""
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
