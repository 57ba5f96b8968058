"""What `work_dir` keeps: small immutable artifacts, each a file of Arrow tables that proves its own bytes.

Runs in every process. An artifact is written aside and renamed into place, so a reader sees all of it or nothing and
several writers of the same content do no harm; object stores show an object only once it is complete, so there it is
written in place, and again where the store failed for a moment (`retrying`). The file holds one Arrow IPC stream per
table, then the sha256 of all that went before: a truncated or altered file is refused, never half believed. Nothing
here is pickled.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.fs as pafs

from feedline.errors import CorruptFileError
from feedline.warehouse.fetching import read_range
from feedline.warehouse.locations import Location, absolute, join, locate, shown
from feedline.warehouse.retrying import is_local, retried

_DIGEST_BYTES = 32
_OBJECT_STORES = {"s3", "gcs", "abfs"}  # they have no folders to be made


def create(work_dir: str, name: str, tables: Sequence[pa.Table]) -> None:
    """Write an artifact named `name` (`folder/file`) below `work_dir`, whatever was there under that name."""
    location = locate(absolute(work_dir))
    sink = pa.BufferOutputStream()
    for table in tables:
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
    body = sink.getvalue()
    put(location, name, body, hashlib.sha256(memoryview(body)).digest())


def load(work_dir: str, name: str, tables: int) -> list[pa.Table]:
    """The artifact's tables.

    Raises FileNotFoundError where there is none, CorruptFileError where its bytes are not those that were written,
    StoreError where the store kept failing.
    """
    location = locate(absolute(work_dir))
    path = join(location.path, name)
    content = pa.py_buffer(get(location, name))
    size = content.size - _DIGEST_BYTES
    if size < 0 or hashlib.sha256(memoryview(content)[:size]).digest() != content.slice(max(size, 0)).to_pybytes():
        raise CorruptFileError(
            f"{shown(path)} does not hold the bytes that were written: it is truncated or altered. Delete it"
        )
    reader = pa.BufferReader(content.slice(0, size))
    return [pa.ipc.open_stream(reader).read_all() for _ in range(tables)]


def put(location: Location, name: str, *parts: bytes | pa.Buffer) -> None:
    """Write a small file below a place, all of it or nothing, whatever was there under that name."""
    filesystem, target = location.filesystem, join(location.path, name)
    if is_local(filesystem):
        _write_aside(filesystem, target, parts)
        return

    def write() -> None:
        if filesystem.type_name not in _OBJECT_STORES:
            filesystem.create_dir(target.rpartition("/")[0], recursive=True)
        with filesystem.open_output_stream(target) as sink:
            for part in parts:
                sink.write(part)

    retried(write, filesystem, join(shown(location.uri), name), doing="written")


def get(location: Location, name: str) -> bytes | pa.Buffer:
    """A small file's content; errors as `load`, but nothing is known about its bytes."""
    filesystem, path = location.filesystem, join(location.path, name)

    def read() -> bytes | pa.Buffer:
        with filesystem.open_input_file(path) as source:
            return source.read_buffer() if is_local(filesystem) else read_range(source, 0, source.size())

    return retried(read, filesystem, join(shown(location.uri), name))


def _write_aside(filesystem: pafs.FileSystem, target: str, parts: Sequence[bytes | pa.Buffer]) -> None:
    filesystem.create_dir(target.rpartition("/")[0], recursive=True)
    path = f"{target}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        with filesystem.open_output_stream(path) as sink:
            for part in parts:
                sink.write(part)
        filesystem.move(path, target)
    except BaseException:
        if filesystem.get_file_info(path).type != pafs.FileType.NotFound:
            filesystem.delete_file(path)
        raise
