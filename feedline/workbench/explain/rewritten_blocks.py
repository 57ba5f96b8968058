"""Write the rows that sampled blocks read as other Parquet files, and read the same blocks from these.

Runs in: the process that explains, in a temporary folder. Only columns that blocks read are written: every row of the
row groups, in other encodings, or in larger row groups. A request of the new files has the same rows in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from feedline.blocks.jobs import CompiledJob
from feedline.blocks.request import BlockRequest, PieceRequest
from feedline.expressions.column_parts import has_column, part_of
from feedline.warehouse.optimize.survey import file_fragment, null_paths, without_nulls
from feedline.warehouse.parquet.encodings import choose
from feedline.warehouse.parquet.writer import DICTIONARY, PLAIN, SUFFIX, Encoding, leaf_paths, writer_options
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment
from feedline.warehouse.reading.read import read_arrow
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.workbench.explain.sampled_blocks import BlockSample

ROW_GROUP_ROWS = 65_536  # that `optimize` writes unless it is asked for others
_READ_ROWS = 1 << 20
_CHOICE_BYTES = 2 << 20  # of a column, on which its encoding is chosen: a quarter of what `optimize` takes
_DICTIONARY_BYTES = 1 << 20  # pyarrow's, of a table that another program wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenSample:
    """The sample with requests of new files. nbytes: of the new files' columns; before: of the same columns now.
    row_group_rows: the mean of the new row groups."""

    sample: BlockSample
    nbytes: int
    before: int
    row_group_rows: int


def read_columns(compiled: CompiledJob) -> list[str]:
    """The columns of the table that a job's blocks read, partition columns among them."""
    names = {*compiled.columns, *(part for mark in compiled.marks for part in mark.parts)}
    names |= set() if compiled.where is None else set(compiled.where.parts)
    names |= set() if compiled.sample is None else set(compiled.sample.parts)
    found = set()
    for name in names:
        part = None if has_column(compiled.schema, name) else part_of(name)
        found.add(name if part is None else part.column)
    return [name for name in compiled.schema.names if name in found]


def mean_row_group_rows(sample: BlockSample, rows_per_row_group: NDArray[np.int64]) -> float:
    """The mean rows of the row groups that an epoch reads. rows_per_row_group: int64 [row groups of the table]."""
    return float(rows_per_row_group[sample.row_groups].mean()) if len(sample.row_groups) else 0.0


def rewrite_sample(
    sample: BlockSample, compiled: CompiledJob, folder: Path, *, better: Sequence[str] = (), merge: bool = False
) -> RewrittenSample:
    """Write the sample's row groups. better: columns whose encodings are chosen for decoding, as `optimize` chooses
    them; the others keep theirs. merge: row groups of a block are joined to ones of `ROW_GROUP_ROWS`.
    """
    writer = _SampleWriter(sample, compiled, folder, frozenset(better))
    requests, before = list[BlockRequest](), 0
    for request in sample.requests:
        groups = _joined(request) if merge else [[piece] for piece in request.pieces]
        pieces = tuple(writer.write(group, merge=merge) for group in groups)
        requests.append(replace(request, pieces=pieces))
        before += sum(writer.bytes_now(piece.fragment) for piece in request.pieces)
    nbytes = sum(path.stat().st_size for path in folder.glob(f"*{SUFFIX}"))
    return RewrittenSample(
        sample=replace(sample, requests=tuple(requests)),
        nbytes=nbytes,
        before=before,
        row_group_rows=round(writer.rows / max(writer.groups, 1)),
    )


def _joined(request: BlockRequest) -> list[list[PieceRequest]]:
    """Pieces that may be one: each is read to its end and the next from its start, of the same partition."""
    if request.draws is not None or request.buckets is not None:
        return [[piece] for piece in request.pieces]
    groups: list[list[PieceRequest]] = []
    rows = 0
    for piece in request.pieces:
        before = groups[-1][-1] if groups else None
        follows = (
            before is not None
            and before.skip + before.rows == _rows_of(before.fragment)
            and piece.skip == 0
            and piece.fragment.partition == before.fragment.partition
            and rows + _rows_of(piece.fragment) <= ROW_GROUP_ROWS
        )
        if follows:
            groups[-1].append(piece)
            rows += _rows_of(piece.fragment)
        else:
            groups.append([piece])
            rows = _rows_of(piece.fragment)
    return groups


def _rows_of(fragment: Fragment) -> int:
    return sum(fragment.rows_of(position) for position in range(len(fragment.row_groups)))


class _SampleWriter:
    """Writes pieces into a folder, each as a file; encodings are those of the first one."""

    def __init__(self, sample: BlockSample, compiled: CompiledJob, folder: Path, better: frozenset[str]) -> None:
        self._folder, self._better = folder, better
        first = sample.requests[0].pieces[0].fragment
        keys = {name for name, _ in first.partition}
        self._columns = [name for name in read_columns(compiled) if name not in keys]
        self._schema = compiled.schema
        self._encodings: list[Encoding] = []
        self._target: pa.Schema | None = None
        self._count = 0
        self.rows = self.groups = 0

    def bytes_now(self, fragment: Fragment) -> int:
        """Compressed bytes of the columns in a fragment's row groups."""
        with fragment.open() as file:
            leaves = [leaf for name in self._columns for leaf in file.stored.get(name, ())]
            groups = [file.metadata.row_group(index) for index in fragment.row_groups]
            return sum(int(group.column(leaf).total_compressed_size) for group in groups for leaf in leaves)

    def write(self, pieces: Sequence[PieceRequest], *, merge: bool) -> PieceRequest:
        """Write the row groups of pieces as one file, and return the piece that reads their rows from it."""
        fragments = [piece.fragment for piece in pieces]
        has_gaps = any(bits is not None for fragment in fragments for bits in fragment.excluded)
        tables = [self._read(fragment, index) for fragment in fragments for index in range(len(fragment.row_groups))]
        expected = [count for fragment in fragments for count in fragment.expected]
        if merge and not has_gaps:
            tables, expected = [pa.concat_tables(tables)], [sum(expected)]
        if not self._encodings:
            self._encodings = self._choose(fragments[0], tables[0])
        path = self._folder / f"{self._count:05d}{SUFFIX}"
        self._count += 1
        self._write(path, tables)
        snapshot = take_snapshot(str(path))
        written = file_fragment(snapshot, 0)
        fragment = replace(
            written,
            expected=tuple(expected),
            partition=fragments[0].partition,
            proofs=() if len(expected) != len(fragments[0].proofs) else fragments[0].proofs,
            excluded=() if not has_gaps else tuple(bits for one in fragments for bits in one.excluded),
            decoder=fragments[0].decoder,
        )
        return PieceRequest(fragment=fragment, skip=pieces[0].skip, rows=sum(piece.rows for piece in pieces))

    def _read(self, fragment: Fragment, position: int) -> pa.Table:
        one = replace(fragment.alone(position), expected=(UNCOUNTED,), proofs=(), excluded=())
        return read_arrow(one, self._columns, None, self._schema, chunk_rows=_READ_ROWS).combine_chunks()

    def _choose(self, fragment: Fragment, table: pa.Table) -> list[Encoding]:
        """The encodings of all leaves, and the schema of files: without nulls where the first row group has none."""
        nulls = frozenset(path for name in table.schema.names for path in null_paths(name, _whole(table[name])))
        better = {name for name in table.schema.names if name in self._better}
        fields = [without_nulls(each, nulls) if each.name in better else each for each in table.schema]
        chosen: dict[str, list[Encoding]] = {}
        for name in better:
            column = table.select([name])
            rows = max(1, int(column.num_rows * min(1.0, _CHOICE_BYTES / max(column.nbytes, 1))))
            one = column.slice(0, rows).cast(pa.schema([each for each in fields if each.name == name]))
            chosen[name] = [choice.encoding for choice in choose(one, "decode")]
        self._target = pa.schema(fields)
        found: list[Encoding] = []
        for each in self._target:
            leaves = list(leaf_paths(pa.schema([each])).items())
            found += chosen.get(each.name) or self._stored(fragment, each.name, leaves)
        return found

    def _stored(self, fragment: Fragment, name: str, leaves: Sequence[tuple[str, str]]) -> list[Encoding]:
        """The encodings that a column has, as far as a writer can be asked for them."""
        with fragment.open() as file:
            group = file.metadata.row_group(fragment.row_groups[0])
            chunks = [group.column(leaf) for leaf in file.stored.get(name, ())]
            if len(chunks) != len(leaves):
                return [Encoding(leaf=leaf, encoding=DICTIONARY, codec="zstd") for leaf, _ in leaves]
            return [
                Encoding(leaf=leaf, encoding=_encoding_of(chunk.encodings), codec=_codec_of(chunk.compression))
                for (leaf, _), chunk in zip(leaves, chunks, strict=True)
            ]

    def _write(self, path: Path, tables: Sequence[pa.Table]) -> None:
        assert self._target is not None
        options = writer_options(self._encodings)
        if not self._better:
            options["dictionary_pagesize_limit"] = _DICTIONARY_BYTES
        schema = self._target
        if any(_breaks(table, schema) for table in tables):  # a later row group has nulls
            schema = pa.schema([tables[0].schema.field(name) for name in schema.names])
        self.rows += sum(table.num_rows for table in tables)
        self.groups += len(tables)
        with pq.ParquetWriter(str(path), schema, **options) as writer:
            for table in tables:
                writer.write_table(table.cast(schema), row_group_size=max(table.num_rows, 1))


def _breaks(table: pa.Table, schema: pa.Schema) -> bool:
    """Whether a column holds a null where the schema has none."""
    return any(
        any(True for _ in null_paths(field.name, _whole(table[field.name])))
        for field in schema
        if not field.nullable or (pa.types.is_nested(field.type) and field != table.schema.field(field.name))
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _encoding_of(names: Sequence[str]) -> str:
    if any("DICTIONARY" in name for name in names):
        return DICTIONARY
    return next((name for name in names if name not in ("RLE", "BIT_PACKED")), PLAIN)


def _codec_of(name: str) -> str:
    return "none" if name == "UNCOMPRESSED" else name.lower()
