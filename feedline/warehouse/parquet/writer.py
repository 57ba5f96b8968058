"""Write rows as Parquet files, with limits for row groups and files and an encoding for each column.

Runs in the tasks of `optimize`. A `TableWriter` writes one unit of a partition: `{stem}-00000.parquet`, `-00001`, … On
a local disk files have another suffix until `landing` renames them; a file for an object store is buffered in memory.
Every file holds a note (its settings and sources) and its index, and the unit's last file is marked. Groups of columns
that are stored once per run (`dedup_columns`) start a run in every row group. Statistics and page checksums are
written. A page index is written for tables of histories (`history_note`): there pages and row groups hold whole
stripes, and the rows of a key lie in one file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from feedline.dataclass import dataclass
from feedline.warehouse.parquet.dedup_columns import (
    METADATA_KEY,
    DedupMetadata,
    GroupRuns,
    Groups,
    RowGroupRuns,
    dedup_table,
    stored_schema,
)
from feedline.warehouse.parquet.history_note import NOTE_KEY as HISTORY_KEY
from feedline.warehouse.parquet.history_note import STRIPE_ROWS, HistoryOrder, NoteBuilder
from feedline.warehouse.parquet.request_rows import REQUESTS_KEY, ROWS_KEY, RequestColumns, list_lengths
from feedline.warehouse.storage.retry import is_local, with_retries

DICTIONARY, PLAIN = "DICTIONARY", "PLAIN"
# Of a dictionary, where it was chosen; pyarrow's 1 MiB ends codes in mid-chunk, and then readers get none.
_DICTIONARY_BYTES = 8 << 20
_PAGE_BYTES = 1 << 30  # more than any page of so many rows: rows alone end it
NOTE_KEY = b"feedline.optimize"
SUFFIX, PART_SUFFIX = ".parquet", ".parquet.part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How one Parquet column (a leaf) is stored: DICTIONARY or the name of a Parquet encoding, and a codec."""

    leaf: str
    encoding: str
    codec: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a row group, in rows and decoded bytes (None: no limit), and the target size of a file."""

    row_group_rows: int
    row_group_bytes: int | None
    file_bytes: int

    def rows_for(self, row_bytes: float, multiple_of: int = 1) -> int:
        """The rows of a row group, at `row_bytes` per decoded row: a multiple of `multiple_of`, at least one."""
        rows = self.row_group_rows
        if self.row_group_bytes is not None and row_bytes > 0:
            rows = min(rows, int(self.row_group_bytes / row_bytes))
        return max(1, rows // multiple_of) * multiple_of


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that a `TableWriter` has finished."""

    name: str
    rows: int
    row_groups: int
    bytes: int


def leaf_paths(schema: pa.Schema) -> dict[str, str]:
    """The Parquet columns that a schema is stored as: their names in pyarrow's writer, each with its physical type."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema):
        pass
    stored = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    columns = map(stored.column, range(len(stored.names)))
    return {column.path: column.physical_type for column in columns}


def writer_options(encodings: Sequence[Encoding], page_rows: int | None = None) -> dict[str, Any]:
    """The arguments of pyarrow's writer for these encodings; `page_rows`: of every page, with a page index."""
    pages = {"max_rows_per_page": page_rows, "data_page_size": _PAGE_BYTES, "write_page_index": True}
    return {
        **(pages if page_rows else {}),
        "version": "2.6",
        "compression": {choice.leaf: choice.codec for choice in encodings},
        "use_dictionary": [choice.leaf for choice in encodings if choice.encoding == DICTIONARY],
        "column_encoding": {choice.leaf: choice.encoding for choice in encodings if choice.encoding != DICTIONARY},
        "dictionary_pagesize_limit": _DICTIONARY_BYTES,
        "write_statistics": True,
        "write_page_checksum": True,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """How the rows of a table are stored. schema: that of the rows. groups: the columns to store once per run; a run
    ends where one of `keys` changes. history: the order of a table of histories, in which the rows come. requests: the
    columns of a request table."""

    schema: pa.Schema
    encodings: Sequence[Encoding]
    limits: Limits
    groups: Groups = field(default_factory=dict)
    keys: Sequence[str] = ()
    history: HistoryOrder | None = None
    requests: RequestColumns | None = None

    @property
    def page_rows(self) -> int | None:
        """The rows of every page but a row group's last; None: as pyarrow's writer ends pages."""
        return None if self.history is None else STRIPE_ROWS


class TableWriter:
    """Writes the rows of one unit into files of a folder. `close` finishes them, `abandon` removes them."""

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        folder: str,
        stem: str,
        format: TableFormat,
        *,
        note: Mapping[str, object],
        suffix: str,
    ) -> None:
        self._filesystem = filesystem
        self._folder, self._stem, self._suffix = folder, stem, suffix
        self._dedup, self._keys, self._limits = format.groups, format.keys, format.limits
        self._schema = stored_schema(format.schema, format.groups)
        self._options = writer_options(format.encodings, format.page_rows)
        self._page_rows, self._history = format.page_rows or 1, format.history
        self._builder: NoteBuilder | None = None
        self._requests, self._impressions = format.requests, list[tuple[int, int]]()
        self._note = dict(note)
        self._pending: list[pa.Table] = []
        self._pending_rows = self._group_rows = 0
        self._sink: Any = None  # a file, or a buffer for an upload
        self._writer: pq.ParquetWriter | None = None
        self._rows = self._groups = self._last_bytes = 0
        self._runs: dict[str, list[RowGroupRuns]] = {}
        self.files: list[WrittenFile] = []

    def write(self, table: pa.Table) -> None:
        """Add rows; row groups are written as soon as they are full."""
        if not table.num_rows:
            return
        self._group_rows = self._group_rows or self._limits.rows_for(table.nbytes / table.num_rows, self._page_rows)
        self._pending.append(table)
        self._pending_rows += table.num_rows
        while self._pending_rows >= self._group_rows:
            self._write_group(self._group_rows)

    def close(self) -> list[WrittenFile]:
        """Write the remaining rows and end the last file; a unit without rows is one file without row groups."""
        while self._pending_rows:
            self._write_group(min(self._pending_rows, self._group_rows))
        if self._writer is None:
            self._open()
        self._end_file(last=True)
        return self.files

    def abandon(self) -> None:
        names = [file.name for file in self.files]
        if self._writer is not None:
            names.append(self._name)
            _close_quietly(self._writer, self._sink)
            self._writer = self._sink = None
        for name in names:
            path = f"{self._folder}/{name}"
            if self._filesystem.get_file_info(path).type == pafs.FileType.File:
                self._filesystem.delete_file(path)

    @property
    def _name(self) -> str:
        return f"{self._stem}-{len(self.files):05d}{self._suffix}"

    def _write_group(self, rows: int) -> None:
        """Write the first pending rows as a row group: of a file that is full only those of its last key, if any."""
        table = self._take(rows)
        if self._sink is not None and self._sink.tell() + self._last_bytes > self._limits.file_bytes:
            continued = self._builder.continued_rows(table) if self._builder else 0
            if continued:
                self._append(table.slice(0, continued))
            if continued < rows:
                self._end_file(last=False)
            if continued:
                self._return(table.slice(continued))
                return
        self._append(table)

    def _append(self, table: pa.Table) -> None:
        """Write rows as a row group of the current file, or of a new one."""
        rows, runs = table.num_rows, dict[str, RowGroupRuns]()
        if self._writer is None:
            self._open()
        assert self._sink is not None
        assert self._writer is not None
        start = self._sink.tell()
        if self._builder:
            self._builder.add(table)
        if self._requests:
            lists = table[self._requests.candidates[0]]
            self._impressions.append((rows, sum(int(list_lengths(chunk).sum()) for chunk in lists.chunks)))
        if self._dedup:
            table, runs = dedup_table(table, self._dedup, self._keys)
        self._writer.write_table(table, row_group_size=rows)
        self._last_bytes = self._sink.tell() - start
        self._rows += rows
        self._groups += 1
        for group, found in runs.items():
            self._runs[group].append(found)

    def _take(self, rows: int) -> pa.Table:
        """Remove the first pending rows; returns them as one table."""
        parts: list[pa.Table] = []
        self._pending_rows -= rows
        while rows:
            first = self._pending[0]
            if first.num_rows <= rows:
                parts.append(self._pending.pop(0))
            else:
                parts.append(first.slice(0, rows))
                self._pending[0] = first.slice(rows)
            rows -= parts[-1].num_rows
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts)

    def _return(self, table: pa.Table) -> None:
        """Put rows back that were taken."""
        if table.num_rows:
            self._pending.insert(0, table)
            self._pending_rows += table.num_rows

    def _open(self) -> None:
        local = is_local(self._filesystem)
        path = f"{self._folder}/{self._name}"
        self._sink = self._filesystem.open_output_stream(path) if local else pa.BufferOutputStream()
        try:
            self._writer = pq.ParquetWriter(self._sink, self._schema, **self._options)
        except BaseException:
            self._sink.close()
            self._sink = None
            raise
        self._rows = self._groups = 0
        self._runs = {group: [] for group in self._dedup}
        self._impressions = []
        if self._history is not None:
            self._builder = NoteBuilder(self._history, self._schema.field(self._history.key).type)

    def _end_file(self, *, last: bool) -> None:
        writer, sink = self._writer, self._sink
        assert writer is not None
        assert sink is not None
        note = {**self._note, "file": len(self.files), "last": last}
        notes = {NOTE_KEY: json.dumps(note, sort_keys=True).encode()}
        if self._dedup:
            described = {
                name: GroupRuns(columns=tuple(columns), row_groups=tuple(self._runs[name]))
                for name, columns in self._dedup.items()
            }
            notes[METADATA_KEY] = DedupMetadata(groups=described).to_json()
        if self._builder:
            notes[HISTORY_KEY] = self._builder.note().to_json()
        if self._requests:
            notes |= {REQUESTS_KEY: self._requests.to_json(), ROWS_KEY: json.dumps(self._impressions).encode()}
        writer.add_key_value_metadata(notes)
        writer.close()
        size = sink.tell()
        if is_local(self._filesystem):
            sink.close()
        else:
            upload(self._filesystem, f"{self._folder}/{self._name}", sink.getvalue())
        self.files.append(WrittenFile(name=self._name, rows=self._rows, row_groups=self._groups, bytes=size))
        self._writer = self._sink = None


def upload(filesystem: pafs.FileSystem, path: str, content: pa.Buffer) -> None:
    """Write an object whole, retrying where the store fails transiently."""

    def write() -> None:
        with filesystem.open_output_stream(path) as sink:
            sink.write(content)

    with_retries(write, filesystem, path, verb="written")


def _close_quietly(writer: pq.ParquetWriter, sink: pa.NativeFile | None) -> None:
    for stream in (writer, sink):
        try:
            if stream is not None:
                stream.close()
        except (OSError, pa.ArrowException):
            continue
