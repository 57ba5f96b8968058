"""Transform a file of rows into a file of features: chunk by chunk, in order, all or nothing.

Runs in: the process of `feedline transform`. Rows come from Parquet (a file, a folder, a glob, a path or URI) as any
table's do, or from an Arrow file or stream; they go through `Serving.encode`, and to one Parquet or Arrow file, which
is written aside and renamed when it is complete. A chunk of input and one of output are held at a time.

A column of the output is a feature: float32 (dense), fixed-size lists of float32 (dense vectors), int64 (categorical),
large lists of int64 or float32 (sparse), large lists of struct<id, weight> (weighted), as they are (extra).
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from feedline.errors import CorruptFileError, DataError, SpecError, TableError, TableNotFoundError
from feedline.loader.encoding.arrow_table import arrow_table
from feedline.serving.encoder import Serving
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.optimize.landing import refuse_overlap
from feedline.warehouse.reading.fragment import fragment_of
from feedline.warehouse.reading.read import CHUNK_ROWS, batches
from feedline.warehouse.reading.row_filter import RowFilter
from feedline.warehouse.snapshot.splits import plan_splits
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.warehouse.storage.locations import is_uri, redact

STREAM = "-"  # the name of standard input and output, as Arrow streams
_ARROW = (".arrow", ".feather", ".ipc", ".arrows")
_PARQUET = (".parquet", ".pq")
_ROW_GROUP_ROWS = 65_536
_WHOLE_FILES = 2**62  # rows of a split: a file is opened once

Chunk = tuple[str, int, pa.RecordBatch]  # where its rows come from, as messages name it, and at which row they begin


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRows:
    """Rows to transform: their schema, and their chunks with the columns asked for."""

    schema: pa.Schema
    chunks: Callable[[tuple[str, ...]], Iterator[Chunk]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What was done: rows, seconds, bytes of the output, its columns, and the fingerprint of what rows became."""

    input: str
    output: str
    rows: int
    seconds: float
    bytes: int
    columns: tuple[str, ...]
    features: str


def transform_file(serving: Serving, source: str, target: str, *, overwrite: bool = False) -> Summary:
    """Transform the rows at `source` into one file `target`; `-` is standard input or output, as an Arrow stream.

    Raises SpecError for a target that is there already or of an unknown suffix, and where columns do not fit;
    TableError, with its place, where the input cannot be read; DataError, with file and row, for values.
    """
    _check_target(source, target, overwrite=overwrite)
    began = time.perf_counter()
    rows = 0
    with _opened(source) as given:
        form = serving.form(given.schema)
        empty, columns = serving.encode(given.schema.empty_table())
        schema = arrow_table(empty, columns).schema.with_metadata({"feedline.features": form.features.fingerprint})
        with _landing(target, schema) as write:
            for place, first, chunk in given.chunks(form.features.columns):
                try:
                    encoded, columns = serving.encode(chunk)
                except DataError as error:
                    row = (
                        f"rows {first} to {first + len(chunk) - 1}" if error.row is None else f"row {first + error.row}"
                    )
                    raise DataError(f"{error} ({place}, {row})") from error
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
        raise SpecError(f"the output is a local file: got {redact(target)}, expected a path or {STREAM}. Copy it there")
    path = Path(target)
    if path.suffix not in (*_PARQUET, *_ARROW):
        raise SpecError(
            f"the output's name says no format: got {target!r}, expected one that ends in "
            f"{', '.join((*_PARQUET, *_ARROW))}, or {STREAM} for an Arrow stream"
        )
    if path.is_dir():
        raise SpecError(f"the output is a folder: got {target!r}, expected a file. Add a name")
    if not path.absolute().parent.is_dir():
        raise SpecError(f"the output's folder does not exist: got {str(path.parent)!r}. Make it")
    if source != STREAM:
        try:
            refuse_overlap([source], target)
        except TableError as error:
            raise SpecError(str(error)) from error
    if path.exists() and not overwrite:
        raise SpecError(f"the output exists: got {target!r}, expected a new file. Add --overwrite to replace it")


# -- reading ------------------------------------------------------------------------------------------------------


def _opened(source: str) -> AbstractContextManager[InputRows]:
    if source == STREAM:
        return _arrow(sys.stdin.buffer, "standard input", stream=True)
    if Path(source.partition("?")[0]).suffix in _ARROW and not is_uri(source):
        return _arrow_file(Path(source))
    return _table(source)


@contextmanager
def _table(source: str) -> Iterator[InputRows]:
    """Parquet files, read as a run reads its table: one schema for all, partition keys from their paths."""
    snapshot = snapshot_of(list_table(source))
    splits = plan_splits(snapshot.rows_per_row_group, snapshot.file_of_row_group, _WHOLE_FILES)

    def chunks(columns: tuple[str, ...]) -> Iterator[Chunk]:
        for index in range(len(splits)):
            fragment = fragment_of(snapshot, splits, snapshot.rows_per_row_group, index)
            kept = [0] * len(fragment.row_groups)
            for batch in batches(fragment, columns, RowFilter(), snapshot.schema, chunk_rows=CHUNK_ROWS, counts=kept):
                place = f"file {fragment.uri}, row group {fragment.row_groups[batch.position]}"
                yield place, sum(kept), batch.data
                kept[batch.position] += batch.data.num_rows

    yield InputRows(schema=snapshot.schema, chunks=chunks)


@contextmanager
def _arrow_file(path: Path) -> Iterator[InputRows]:
    """An Arrow file, or a stream in a file."""
    try:
        with path.open("rb") as file:
            stream = file.read(6) != b"ARROW1"
            file.seek(0)
            with _arrow(file, f"file {path}", stream=stream) as given:
                yield given
    except FileNotFoundError as error:
        raise TableNotFoundError(f"{path} does not exist: expected a file. Check the path") from error


@contextmanager
def _arrow(file: BinaryIO, name: str, *, stream: bool) -> Iterator[InputRows]:
    with _readable(name):
        reader = pa.ipc.open_stream(file) if stream else pa.ipc.open_file(file)

    def chunks(columns: tuple[str, ...]) -> Iterator[Chunk]:
        for batch, first in _batches(reader, name, stream=stream):
            for start in range(0, batch.num_rows, CHUNK_ROWS):
                yield name, first + start, batch.select(list(columns)).slice(start, CHUNK_ROWS)

    with reader:
        yield InputRows(schema=reader.schema, chunks=chunks)


def _batches(reader: Any, name: str, *, stream: bool) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The batches, each with the number of its first row; what Arrow believes of their bytes is checked."""
    first, number = 0, 0
    while stream or number < reader.num_record_batches:
        with _readable(name):
            batch = next(reader, None) if stream else reader.get_batch(number)
            if batch is None:
                return
            batch.validate(full=True)
        yield batch, first
        first, number = first + batch.num_rows, number + 1


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        text = str(error).partition("\n")[0]
        raise CorruptFileError(f"{name} is no Arrow file or stream that can be read: {text}. Write it anew") from error


# -- writing ------------------------------------------------------------------------------------------------------


@contextmanager
def _landing(target: str, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """What writes a table to the target; the file appears when the body has ended well."""
    if target == STREAM:
        with pa.ipc.new_stream(sys.stdout.buffer, schema) as writer:
            yield writer.write_table
        sys.stdout.buffer.flush()
        return
    path = Path(target).absolute()
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with _writer(aside, path.suffix, schema) as write:
            yield write
        aside.replace(path)
    except OSError as error:
        if isinstance(error, TableError):
            raise
        raise TableError(f"{target} could not be written: {error}. Name another place, or make room") from error
    finally:
        with suppress(FileNotFoundError):
            aside.unlink()


@contextmanager
def _writer(path: Path, suffix: str, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    if suffix in _ARROW:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        make = pa.ipc.new_stream if suffix == ".arrows" else pa.ipc.new_file
        with path.open("wb") as file, make(file, schema, options=options) as writer:
            yield writer.write_table
        return
    with pq.ParquetWriter(path, schema, compression="zstd", version="2.6") as writer:
        yield lambda table: _write_batches(writer, table)


def _write_batches(writer: Any, table: pa.Table) -> None:
    for batch in table.to_batches():  # a row group takes several of them
        writer.write_batch(batch, row_group_size=_ROW_GROUP_ROWS)
