"""Transform a file of rows into a file of features: chunk by chunk, in order, all or nothing.

Runs in: the process of `feedline transform`. Rows come from Parquet (a file, folder, glob or URI) or from an Arrow file
or stream, and leave as one Parquet or Arrow file, which appears whole (`whole_file`).
Each feature is a column: float32 (dense), fixed-size lists of float32 (dense vectors), int64 (categorical), large lists
of int64 or float32 (sparse), large lists of struct<id, weight> (weighted), or the input type (extra).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, DataError, SpecError, TableError, TableNotFoundError
from feedline.loader.encoding.encoded_rows import arrow_table
from feedline.serving.encoder import Serving
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.optimize.landing import refuse_overlap
from feedline.warehouse.reading.columns import CHUNK_ROWS
from feedline.warehouse.reading.fragment import fragment_of
from feedline.warehouse.reading.read import ReadRequest, batches
from feedline.warehouse.snapshot.splits import plan_splits
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.warehouse.storage.locations import is_uri, redact
from feedline.warehouse.storage.whole_file import whole_file

STREAM = "-"  # an Arrow stream on standard input or output
_ARROW_SUFFIXES = (".arrow", ".feather", ".ipc", ".arrows")
_PARQUET_SUFFIXES = (".parquet", ".pq")
_ROW_GROUP_ROWS = 65_536
_WHOLE_FILES = 2**62  # rows of a split: one split per file

Chunk = tuple[str, int, pa.RecordBatch]  # source of its rows, for messages; index of its first row there; the rows


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRows:
    """Rows to transform: their schema, and a function that yields chunks of some columns."""

    schema: pa.Schema
    chunks: Callable[[tuple[str, ...]], Iterator[Chunk]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Summary of a transformation: rows, seconds, bytes and columns of the output, fingerprint of the features."""

    input: str
    output: str
    rows: int
    seconds: float
    bytes: int
    columns: tuple[str, ...]
    features: str


def transform_file(serving: Serving, source: str, target: str, *, overwrite: bool = False) -> Summary:
    """Transform the rows at `source` into one file `target`; `-` is standard input or output, as an Arrow stream.

    Raises SpecError if the target exists or has an unknown suffix, or columns do not fit; TableError, with the
    position, if the input cannot be read; DataError, with file and row, for values.
    """
    _check_target(source, target, overwrite=overwrite)
    began = time.perf_counter()
    rows = 0
    with _open_input(source) as table:
        form = serving.form(table.schema)
        empty, columns = serving.encode(table.schema.empty_table())
        schema = arrow_table(empty, columns).schema.with_metadata({"feedline.features": form.features.fingerprint})
        with _open_output(target, schema) as write:
            for origin, first, chunk in table.chunks(form.features.columns):
                try:
                    encoded, columns = serving.encode(chunk)
                except DataError as error:
                    row = (
                        f"rows {first} to {first + len(chunk) - 1}" if error.row is None else f"row {first + error.row}"
                    )
                    raise DataError(f"{error} ({origin}, {row})") from error
                rows += encoded.rows
                write(arrow_table(encoded, columns))
    return Summary(
        input=source,
        output=target,
        rows=rows,
        seconds=time.perf_counter() - began,
        bytes=0 if target == STREAM else Path(target).stat().st_size,
        columns=tuple(schema.names),
        features=form.features.fingerprint[:32],
    )


def _check_target(source: str, target: str, *, overwrite: bool) -> None:
    if target == STREAM:
        return
    if is_uri(target):
        raise SpecError(
            f"the output must be a local file: got {redact(target)}, expected a path or {STREAM}. Copy the file there"
        )
    path = Path(target)
    if path.suffix not in (*_PARQUET_SUFFIXES, *_ARROW_SUFFIXES):
        raise SpecError(
            f"the output's suffix is unknown: got {target!r}, expected a name that ends in "
            f"{', '.join((*_PARQUET_SUFFIXES, *_ARROW_SUFFIXES))}, or {STREAM} for an Arrow stream"
        )
    if path.is_dir():
        raise SpecError(f"the output is a folder: got {target!r}, expected a file. Add a file name")
    if not path.absolute().parent.is_dir():
        raise SpecError(f"the output's folder does not exist: got {str(path.parent)!r}. Create it")
    if source != STREAM:
        try:
            refuse_overlap([source], target)
        except TableError as error:
            raise SpecError(str(error)) from error
    if path.exists() and not overwrite:
        raise SpecError(f"the output exists: got {target!r}, expected a new file. Add --overwrite to replace it")


# -- reading ------------------------------------------------------------------------------------------------------


def _open_input(source: str) -> AbstractContextManager[InputRows]:
    if source == STREAM:
        return _arrow(sys.stdin.buffer, "standard input", stream=True)
    if Path(source.partition("?")[0]).suffix in _ARROW_SUFFIXES and not is_uri(source):
        return _arrow_file(Path(source))
    return _table(source)


@contextmanager
def _table(source: str) -> Iterator[InputRows]:
    """Open Parquet files as a run does its table: one schema for all, partition keys from their paths."""
    snapshot = snapshot_of(list_table(source))
    splits = plan_splits(snapshot.rows_per_row_group, snapshot.file_of_row_group, _WHOLE_FILES)

    def chunks(columns: tuple[str, ...]) -> Iterator[Chunk]:
        request = ReadRequest(columns, snapshot.schema)
        for index in range(len(splits)):
            fragment = fragment_of(snapshot, splits, snapshot.rows_per_row_group, index)
            kept = [0] * len(fragment.row_groups)
            for batch in batches(fragment, request, kept):
                origin = f"file {fragment.uri}, row group {fragment.row_groups[batch.position]}"
                yield origin, sum(kept), batch.data
                kept[batch.position] += batch.data.num_rows

    yield InputRows(schema=snapshot.schema, chunks=chunks)


@contextmanager
def _arrow_file(path: Path) -> Iterator[InputRows]:
    """Open an Arrow file, or a file with an Arrow stream."""
    try:
        with path.open("rb") as file:
            stream = file.read(6) != b"ARROW1"
            file.seek(0)
            with _arrow(file, f"file {path}", stream=stream) as rows:
                yield rows
    except FileNotFoundError as error:
        raise TableNotFoundError(f"{path} does not exist: expected a file. Check the path") from error


@contextmanager
def _arrow(file: BinaryIO, name: str, *, stream: bool) -> Iterator[InputRows]:
    with _explain_arrow_errors(name):
        reader = pa.ipc.open_stream(file) if stream else pa.ipc.open_file(file)

    def chunks(columns: tuple[str, ...]) -> Iterator[Chunk]:
        for batch, first in _batches(reader, name, stream=stream):
            for start in range(0, batch.num_rows, CHUNK_ROWS):
                yield name, first + start, batch.select(list(columns)).slice(start, CHUNK_ROWS)

    with reader:
        yield InputRows(schema=reader.schema, chunks=chunks)


def _batches(reader: Any, name: str, *, stream: bool) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the batches, fully validated, each with the index of its first row."""
    first, index = 0, 0
    while stream or index < reader.num_record_batches:
        with _explain_arrow_errors(name):
            batch = next(reader, None) if stream else reader.get_batch(index)
            if batch is None:
                return
            batch.validate(full=True)
        yield batch, first
        first, index = first + batch.num_rows, index + 1


@contextmanager
def _explain_arrow_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        cause = str(error).partition("\n")[0]
        raise CorruptFileError(f"{name} is not a readable Arrow file or stream: {cause}. Write it again") from error


# -- writing ------------------------------------------------------------------------------------------------------


@contextmanager
def _open_output(target: str, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that writes tables to the target; the file appears when the body ends without an error."""
    if target == STREAM:
        with pa.ipc.new_stream(sys.stdout.buffer, schema) as writer:
            yield writer.write_table
        sys.stdout.buffer.flush()
        return
    path = Path(target).absolute()
    try:
        with whole_file(path) as unfinished, _writer(unfinished, path.suffix, schema) as write:
            yield write
    except OSError as error:
        if isinstance(error, TableError):
            raise
        raise TableError(f"{target} could not be written: {error}. Name another path, or free space") from error


@contextmanager
def _writer(path: Path, suffix: str, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    if suffix in _ARROW_SUFFIXES:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        make = pa.ipc.new_stream if suffix == ".arrows" else pa.ipc.new_file
        with path.open("wb") as file, make(file, schema, options=options) as writer:
            yield writer.write_table
        return
    with pq.ParquetWriter(path, schema, compression="zstd", version="2.6") as writer:
        yield lambda table: _write_batches(writer, table)


def _write_batches(writer: Any, table: pa.Table) -> None:
    for batch in table.to_batches():  # the writer collects them into row groups
        writer.write_batch(batch, row_group_size=_ROW_GROUP_ROWS)
