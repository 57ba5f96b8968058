"""Write and read the files of `work_dir`: small immutable files of Arrow tables, with checksums of their content.

Runs in every process. A local file appears whole (`whole_file`); in an object store it is written in place, and
rewritten where the store fails transiently (`retry`). It holds one Arrow IPC stream per table (its parts),
an index with size and sha256 of each part, and a trailer: the index's size and sha256. A reader of one table reads that
part alone. A truncated or altered file is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, TableError
from feedline.warehouse.storage.locations import Location, absolute, join, locate, redact
from feedline.warehouse.storage.ranges import read_range
from feedline.warehouse.storage.retry import is_local, with_retries
from feedline.warehouse.storage.whole_file import whole_file

_DIGEST_BYTES = 32
_ENTRY_BYTES = 8 + _DIGEST_BYTES  # an entry of the index: a part's size (little-endian) and digest
_TRAILER_BYTES = 8 + _DIGEST_BYTES
_GUESS_BYTES = 16 * 1024  # the first read: enough for an index of 400 parts
_RUN_BYTES = 4 * 2**20  # parts read in one request, which costs about as much as moving one or two megabytes
_WORTH_COMPRESSING = 4096  # bytes of a table: fewer cost more time than they save space
_SPOOL_BYTES = 64 * 2**20  # content for a store kept in memory; more goes to a temporary file first
OBJECT_STORES = {"s3", "gcs", "abfs"}  # stores without folders to create


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file whose index was read and verified: `starts` and `digests` of its parts. No handle stays open."""

    folder: str
    name: str
    starts: tuple[int, ...]
    digests: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.digests)

    def table(self, part: int, columns: Collection[str] | None = None) -> pa.Table:
        """Read one of its tables; only `columns`, if given, are decompressed. If the file was replaced since, by one
        that has the table in another place, it is read there. Raises as `load`."""
        try:
            with _open(self.folder, self.name) as (source, path):
                content = self._verify(part, source.read_buffer_at(self.starts[part], self.starts[part + 1]), path)
        except CorruptFileError:
            now = find(self.folder, self.name)
            if now == self or self.digests[part] not in now.digests:
                raise
            return now.table(now.digests.index(self.digests[part]), columns)
        options = None
        if columns is not None:
            names = pa.ipc.open_stream(content).schema.names
            options = pa.ipc.IpcReadOptions(included_fields=[i for i, name in enumerate(names) if name in columns])
        return pa.ipc.open_stream(content, options=options).read_all()

    def tables(self, count: int | None = None) -> list[pa.Table]:
        """Read the first `count` tables (default: all). Raises as `load`."""
        return [pa.ipc.open_stream(content).read_all() for content in self._contents(count)]

    def verify(self) -> None:
        """Read the whole file and verify its checksums. Raises as `load`."""
        for _ in self._contents():
            pass

    def _contents(self, count: int | None = None) -> Iterator[pa.Buffer]:
        """Read the first parts and verify them; small neighbours share a request."""
        starts, stop = self.starts, len(self) if count is None else count
        with _open(self.folder, self.name) as (source, path):
            first = 0
            while first < stop:
                last = first + 1
                while last < stop and starts[last + 1] - starts[first] <= _RUN_BYTES:
                    last += 1
                run = source.read_buffer_at(starts[first], starts[last])
                for part in range(first, last):
                    content = run.slice(starts[part] - starts[first], starts[part + 1] - starts[part])
                    yield self._verify(part, content, path)
                first = last

    def _verify(self, part: int, content: pa.Buffer, path: str) -> pa.Buffer:
        if hashlib.sha256(memoryview(content)).digest() != self.digests[part]:
            raise _altered_error(path)
        return content


@dataclass(frozen=True, slots=True)
class _File:
    """An open file, read at offsets; `uri` as messages name it."""

    filesystem: pafs.FileSystem
    uri: str
    source: pa.NativeFile

    def read_buffer_at(self, start: int, stop: int) -> pa.Buffer:
        if is_local(self.filesystem):
            self.source.seek(start)
            return self.source.read_buffer(stop - start)
        read = with_retries(lambda: read_range(self.source, start, stop - start), self.filesystem, self.uri)
        return pa.py_buffer(read)


def create(work_dir: str, name: str, tables: Iterable[pa.Table], *, compression: str | None = "zstd") -> None:
    """Write the file `name` (`folder/file`) below `work_dir`, replacing an existing one.

    `tables` may be a generator: each table is written before the next is generated.
    """
    location = locate(absolute(work_dir))
    put(location, name, _content(tables, compression))


def load(work_dir: str, name: str, tables: int) -> list[pa.Table]:
    """Read a file's tables.

    Raises FileNotFoundError where there is none, CorruptFileError where its bytes are not those that were written,
    StoreError where the store keeps failing.
    """
    file = find(work_dir, name)
    if len(file) != tables:
        raise CorruptFileError(f"{redact(join(work_dir, name))} holds {len(file)} tables, expected {tables}")
    return file.tables()


def find(work_dir: str, name: str) -> StoredFile:
    """Read a file's index. Raises as `load`."""
    with _open(work_dir, name) as (source, path):
        size = source.source.size()
        guess = min(size, _GUESS_BYTES)
        tail = source.read_buffer_at(size - guess, size).to_pybytes()
        trailer_bytes = int.from_bytes(tail[-_TRAILER_BYTES:-_DIGEST_BYTES], "little") + _TRAILER_BYTES
        if size < _TRAILER_BYTES or trailer_bytes > size:
            raise _altered_error(path)
        if trailer_bytes > guess:
            tail = source.read_buffer_at(size - trailer_bytes, size).to_pybytes()
    index = tail[-trailer_bytes:-_TRAILER_BYTES]
    if hashlib.sha256(index).digest() != tail[-_DIGEST_BYTES:] or len(index) % _ENTRY_BYTES:
        raise _altered_error(path)
    entries = [index[start : start + _ENTRY_BYTES] for start in range(0, len(index), _ENTRY_BYTES)]
    sizes = [int.from_bytes(entry[:8], "little") for entry in entries]
    starts = tuple(np.cumsum([0, *sizes]).tolist())
    if starts[-1] + trailer_bytes != size:
        raise _altered_error(path)
    return StoredFile(work_dir, name, starts, tuple(entry[8:] for entry in entries))


def _content(tables: Iterable[pa.Table], compression: str | None) -> Iterator[bytes | pa.Buffer]:
    index = b""
    for table in tables:
        stream = pa.BufferOutputStream()
        worth = compression if table.nbytes >= _WORTH_COMPRESSING else None
        with pa.ipc.new_stream(stream, table.schema, options=pa.ipc.IpcWriteOptions(compression=worth)) as writer:
            writer.write_table(table)
        body = stream.getvalue()
        yield body
        index += int(body.size).to_bytes(8, "little") + hashlib.sha256(memoryview(body)).digest()
    yield index + len(index).to_bytes(8, "little") + hashlib.sha256(index).digest()


@contextlib.contextmanager
def _open(folder: str, name: str) -> Iterator[tuple[_File, str]]:
    location = locate(absolute(folder))
    filesystem, path = location.filesystem, join(location.path, name)
    uri = join(redact(location.uri), name)
    with with_retries(lambda: filesystem.open_input_file(path), filesystem, uri) as source:
        yield _File(filesystem, uri, source), path


def _altered_error(path: str) -> CorruptFileError:
    return CorruptFileError(
        f"{redact(path)} does not hold the bytes that were written: it is truncated or altered. Delete it"
    )


def put(location: Location, name: str, parts: Iterable[bytes | pa.Buffer]) -> None:
    """Write a small file below a folder atomically, replacing an existing one."""
    filesystem, target = location.filesystem, join(location.path, name)
    if is_local(filesystem):
        filesystem.create_dir(target.rpartition("/")[0], recursive=True)
        with whole_file(Path(target)) as path, filesystem.open_output_stream(str(path)) as sink:
            for part in parts:
                sink.write(part)
        return
    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as spool:  # for writing again if the store fails
        for part in parts:
            spool.write(memoryview(part))

        def write() -> None:
            spool.seek(0)
            if filesystem.type_name not in OBJECT_STORES:
                filesystem.create_dir(target.rpartition("/")[0], recursive=True)
            with filesystem.open_output_stream(target) as sink:
                while content := spool.read(_RUN_BYTES):
                    sink.write(content)

        with_retries(write, filesystem, join(redact(location.uri), name), verb="written")


def remove(work_dir: str, name: str) -> None:
    """Delete a file; ignores one that is missing or cannot be deleted."""
    location = locate(absolute(work_dir))
    with contextlib.suppress(OSError, TableError):
        location.filesystem.delete_file(join(location.path, name))


def older_than(work_dir: str, folder: str, seconds: float) -> list[str]:
    """The names (`folder/file`) of files that have not been written for so long; none where they cannot be listed."""
    location = locate(absolute(work_dir))
    selector = pafs.FileSelector(join(location.path, folder), allow_not_found=True)
    try:
        infos = location.filesystem.get_file_info(selector)
    except OSError:
        return []
    limit_ns = time.time_ns() - int(seconds * 1e9)
    return [
        f"{folder}/{each.base_name}"
        for each in infos
        if each.type == pafs.FileType.File and each.mtime_ns is not None and 0 < each.mtime_ns < limit_ns
    ]


def get(location: Location, name: str) -> bytes | pa.Buffer:
    """Read a small file whole, without verifying it. Raises as `load`."""
    filesystem, path = location.filesystem, join(location.path, name)

    def read() -> bytes | pa.Buffer:
        with filesystem.open_input_file(path) as source:
            return source.read_buffer() if is_local(filesystem) else read_range(source, 0, source.size())

    return with_retries(read, filesystem, join(redact(location.uri), name))


def has_locks(location: Location) -> bool:
    """Whether `lock_file` keeps other processes out."""
    return is_local(location.filesystem)


@contextlib.contextmanager
def lock_file(location: Location, name: str) -> Iterator[None]:
    """Lock a file below a folder against other processes; has no effect on stores, which have no locks."""
    if not has_locks(location):
        yield
        return
    path = Path(location.path, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


# --------------------------------------------------------------------------------------------------------------------
# Keep the results of a long pass wave by wave, so that an interrupted one resumes. Runs where a snapshot is taken and
# where a plan is made. A wave's results are tables in a file of `work_dir`, whose name covers all that they depend
# on; they are removed when the result of the whole pass is saved.

_ABANDONED_S = 7 * 86_400.0  # waves of a pass that was not resumed, such as over a table that has changed since


class KeptWaves:
    """The results of a pass's finished waves, in `work_dir` (None: nowhere)."""

    def __init__(self, work_dir: str | None) -> None:
        self._work_dir = work_dir
        self._names: set[str] = set()

    def load(self, name: str) -> list[pa.Table] | None:
        """The tables kept under a name (`folder/file`); None where there are none, or they are damaged."""
        if self._work_dir is None:
            return None
        try:
            tables = find(self._work_dir, name).tables()
        except (FileNotFoundError, TableError):
            return None
        self._names.add(name)
        return tables

    def save(self, name: str, tables: Iterable[pa.Table], *, compression: str | None = "zstd") -> None:
        if self._work_dir is not None:
            create(self._work_dir, name, tables, compression=compression)
            self._names.add(name)

    def forget(self, folder: str | None = None) -> None:
        """Remove the results: the whole is saved, or never will be. folder: remove abandoned ones there, too."""
        if self._work_dir is None:
            return
        abandoned = [] if folder is None else older_than(self._work_dir, folder, _ABANDONED_S)
        for name in [*self._names, *abandoned]:
            remove(self._work_dir, name)
