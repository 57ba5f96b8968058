"""What `work_dir` keeps: small immutable artifacts, each a file of Arrow tables that proves its own bytes.

Runs in every process. An artifact is written aside and renamed into place, so a reader sees all of it or nothing and
several writers of the same content do no harm; object stores show an object only once it is complete, so there it is
written in place. The file holds one Arrow IPC stream per table, then the sha256 of all that went before: a truncated
or altered file is refused, never half believed. Nothing here is pickled.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.fs as pafs

from feedline.errors import CorruptFileError
from feedline.warehouse.locations import absolute, join, locate, shown

_DIGEST_BYTES = 32


def create(work_dir: str, name: str, tables: Sequence[pa.Table], *, compression: str | None = "zstd") -> None:
    """Write an artifact named `name` (`folder/file`) below `work_dir`, whatever was there under that name."""
    location = locate(absolute(work_dir))
    sink = pa.BufferOutputStream()
    for table in tables:
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(table)
    body = sink.getvalue()
    _write(location.filesystem, join(location.path, name), body, hashlib.sha256(memoryview(body)).digest())


def load(work_dir: str, name: str, tables: int) -> list[pa.Table]:
    """The artifact's tables.

    Raises FileNotFoundError where there is none, CorruptFileError where its bytes are not those that were written.
    """
    location = locate(absolute(work_dir))
    path = join(location.path, name)
    with location.filesystem.open_input_file(path) as source:
        content = source.read_buffer()
    size = content.size - _DIGEST_BYTES
    if size < 0 or hashlib.sha256(memoryview(content)[:size]).digest() != content.slice(max(size, 0)).to_pybytes():
        raise CorruptFileError(
            f"{shown(path)} does not hold the bytes that were written: it is truncated or altered. Delete it"
        )
    reader = pa.BufferReader(content.slice(0, size))
    return [pa.ipc.open_stream(reader).read_all() for _ in range(tables)]


def _write(filesystem: pafs.FileSystem, target: str, body: pa.Buffer, digest: bytes) -> None:
    filesystem.create_dir(target.rpartition("/")[0], recursive=True)
    local = filesystem.type_name == "local"
    path = f"{target}.{os.getpid()}.{secrets.token_hex(4)}.tmp" if local else target
    try:
        with filesystem.open_output_stream(path) as sink:
            sink.write(body)
            sink.write(digest)
        if local:
            filesystem.move(path, target)
    except BaseException:
        if local and filesystem.get_file_info(path).type != pafs.FileType.NotFound:
            filesystem.delete_file(path)
        raise
