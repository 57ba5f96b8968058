"""What `work_dir` keeps: small immutable artifacts, each a file of Arrow tables that proves its own bytes.

Runs in every process. An artifact is written aside and renamed into place, so a reader sees all of it or nothing and
several writers of the same content do no harm; object stores show an object only once it is complete, so there it is
written in place. Nothing here is pickled.

A file holds one Arrow IPC stream per table (its parts), an index with size and sha256 of each part, and a trailer:
the index's size and sha256. Whoever needs one table of many opens the artifact and reads that part alone; what is read
is proved, so a truncated or altered file is refused, never half believed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from feedline.errors import CorruptFileError
from feedline.warehouse.locations import absolute, join, locate, shown

_DIGEST_BYTES = 32
_ENTRY_BYTES = 8 + _DIGEST_BYTES  # of the index: a part's size (little-endian) and digest
_TRAILER_BYTES = 8 + _DIGEST_BYTES
_GUESS_BYTES = 16 * 1024  # holds an index of 400 parts


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact whose index was read and proved: `starts` and `digests` of its parts; nothing stays open."""

    folder: str
    name: str
    starts: tuple[int, ...]
    digests: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.digests)

    def table(self, part: int) -> pa.Table:
        """One of its tables. Raises as `load`."""
        source, path = _opened(self.folder, self.name)
        with source:
            content = source.read_buffer_at(self.starts[part], self.starts[part + 1])
        return pa.ipc.open_stream(self._proved(part, content, path)).read_all()

    def tables(self) -> list[pa.Table]:
        """All of them. Raises as `load`."""
        return [pa.ipc.open_stream(content).read_all() for content in self._contents()]

    def prove(self) -> None:
        """Read all of it, and see that it holds the bytes that were written. Raises as `load`."""
        for _ in self._contents():
            pass

    def _contents(self) -> Iterator[pa.Buffer]:
        source, path = _opened(self.folder, self.name)
        with source:
            for part, start in enumerate(self.starts[:-1]):
                yield self._proved(part, source.read_buffer_at(start, self.starts[part + 1]), path)

    def _proved(self, part: int, content: pa.Buffer, path: str) -> pa.Buffer:
        if hashlib.sha256(memoryview(content)).digest() != self.digests[part]:
            raise _altered(path)
        return content


@dataclass(frozen=True, slots=True)
class _File:
    """An open file, read by position; its buffers are Arrow's."""

    source: pa.NativeFile

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.close()

    def read_buffer_at(self, start: int, stop: int) -> pa.Buffer:
        self.source.seek(start)
        return self.source.read_buffer(stop - start)


def create(work_dir: str, name: str, tables: Iterable[pa.Table]) -> None:
    """Write an artifact named `name` (`folder/file`) below `work_dir`, whatever was there under that name.

    `tables` may be a generator: each table is written before the next is asked for.
    """
    location = locate(absolute(work_dir))
    target = join(location.path, name)
    location.filesystem.create_dir(target.rpartition("/")[0], recursive=True)
    local = location.filesystem.type_name == "local"
    path = f"{target}.{os.getpid()}.{secrets.token_hex(4)}.tmp" if local else target
    try:
        with location.filesystem.open_output_stream(path) as sink:
            index = b"".join(_written(sink, table) for table in tables)
            sink.write(index + len(index).to_bytes(8, "little") + hashlib.sha256(index).digest())
        if local:
            location.filesystem.move(path, target)
    except BaseException:
        if local and location.filesystem.get_file_info(path).type != pafs.FileType.NotFound:
            location.filesystem.delete_file(path)
        raise


def load(work_dir: str, name: str, tables: int) -> list[pa.Table]:
    """The artifact's tables.

    Raises FileNotFoundError where there is none, CorruptFileError where its bytes are not those that were written.
    """
    artifact = find(work_dir, name)
    if len(artifact) != tables:
        raise CorruptFileError(f"{shown(join(work_dir, name))} holds {len(artifact)} tables, expected {tables}")
    return artifact.tables()


def find(work_dir: str, name: str) -> Artifact:
    """The artifact of that name, without its tables. Raises as `load`."""
    source, path = _opened(work_dir, name)
    with source:
        size = source.source.size()
        guess = min(size, _GUESS_BYTES)
        tail = source.read_buffer_at(size - guess, size).to_pybytes()
        wanted = int.from_bytes(tail[-_TRAILER_BYTES:-_DIGEST_BYTES], "little") + _TRAILER_BYTES
        if size < _TRAILER_BYTES or wanted > size:
            raise _altered(path)
        if wanted > guess:
            tail = source.read_buffer_at(size - wanted, size).to_pybytes()
    index = tail[-wanted:-_TRAILER_BYTES]
    if hashlib.sha256(index).digest() != tail[-_DIGEST_BYTES:] or len(index) % _ENTRY_BYTES:
        raise _altered(path)
    entries = [index[place : place + _ENTRY_BYTES] for place in range(0, len(index), _ENTRY_BYTES)]
    sizes = [int.from_bytes(entry[:8], "little") for entry in entries]
    starts = tuple(np.cumsum([0, *sizes]).tolist())
    if starts[-1] + wanted != size:
        raise _altered(path)
    return Artifact(work_dir, name, starts, tuple(entry[8:] for entry in entries))


def _written(sink: pa.NativeFile, table: pa.Table) -> bytes:
    """Write a part; its entry in the index."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    body = stream.getvalue()
    sink.write(body)
    size: int = body.size
    return size.to_bytes(8, "little") + hashlib.sha256(memoryview(body)).digest()


def _opened(folder: str, name: str) -> tuple[_File, str]:
    location = locate(absolute(folder))
    path = join(location.path, name)
    return _File(location.filesystem.open_input_file(path)), path


def _altered(path: str) -> CorruptFileError:
    return CorruptFileError(
        f"{shown(path)} does not hold the bytes that were written: it is truncated or altered. Delete it"
    )
