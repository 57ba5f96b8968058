"""Write and read one file of a cache: some computed columns of one row group.

Runs in: every process that computes or reads with a cache. All integers are little-endian:

    magic (8 bytes), version (u32), bytes of the index (u32), bytes of the file (u64), CPU seconds saved (f64),
    CRC-32 of these 32 bytes and the index (u32), zeros (28 bytes);
    the index (JSON): facts of the row group; of each column its facts, and of each array name, dtype, shape, offset
    from the first array, bytes, CRC-32;
    the arrays, each aligned to 64 bytes, in the file and in memory.

Nothing is mapped: a file that is truncated while it is mapped ends the process (SIGBUS). An array is delivered only if
its checksum is right, so nothing is synced to the disk, either: what a power cut tears is found by its checksum. A file
appears by a rename, whole, and does not change; one that is open stays readable when it is removed.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import decimal
import errno
import fcntl
import json
import os
import secrets
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.native import parquet as native
from feedline.warehouse.storage.locations import absolute, join, real_name

VERSION = 1
SUFFIX = ".entry"
TEMPORARY_SUFFIX = ".tmp"

_MAGIC = b"feedline"
_HEADER = struct.Struct("<8sIIQd")
_HEADER_BYTES = 64
_ALIGNMENT = 64
_FIRST_READ_BYTES = 16 * 1024  # header and index of about 80 arrays
_GAP_BYTES = 128 * 1024  # unwanted bytes between two arrays that cost less to read than another system call and buffer
_RANGE_BYTES = 16 * 2**20  # of one buffer, which lives as long as any of its arrays; a feeder's allocator keeps it
_VECTORS = 512  # of one writev; Linux allows 1,024
_KINDS = tuple("biufc")  # dtypes of arrays: booleans and numbers
_ZEROS = bytes(_ALIGNMENT)
_PARTITION_VALUES: dict[str, Callable[[str], Any]] = {
    "timestamp": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "decimal": decimal.Decimal,
    "bytes": base64.b64decode,
    "other": str,
}

checksum: Callable[[Any], int] = native.crc32 if native.COMPILED else zlib.crc32  # one polynomial


@dataclass(frozen=True, slots=True)
class CachedColumn:
    """One feature of the selected rows of one row group. arrays: C-contiguous arrays of booleans or numbers, by name.
    facts: plain JSON values."""

    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True, slots=True)
class EntryGroup:
    """The row group that entries belong to.

    Attributes:
        digest: hex; names the folder of the row group's entries.
        table, path, row_group: for people who list and prune.
        partition: partition keys and their values: JSON values, dates, datetimes, decimals or bytes.
        file: the real name of the file when the entry was written (`real_name`), if it is not that of table and path;
            read back alone.
    """

    digest: str
    table: str
    path: str
    row_group: int
    partition: Mapping[str, Any]
    file: str = ""


class EntryArray(NamedTuple):
    """One array of a file; `start`: its offset from the first array."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class EntryIndex:
    """The index of a file."""

    group: EntryGroup
    created_s: float
    cpu_s: float
    file_bytes: int
    first: int
    columns: Mapping[str, tuple[Mapping[str, Any], tuple[EntryArray, ...]]]


class DamagedEntryError(Exception):
    """A file does not hold the bytes that were written."""


class OtherVersionError(Exception):
    """A file is of another version of the format."""


class EntryFile:
    """An open file of a cache, whose index was read and checked.

    Raises OSError, DamagedEntryError and OtherVersionError. Close it, or use it in a `with` statement.
    """

    __slots__ = ("index", "number")

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.index = _read_index(self.number)
        except BaseException:
            os.close(self.number)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self.number)

    def read(self, wanted: Collection[str]) -> tuple[dict[str, CachedColumn], bool]:
        """Read columns by digest: those that are there and unharmed, as read-only views of the bytes read, and whether
        all of those there are. Neighbouring arrays are read at once."""
        index = self.index
        there = [name for name in wanted if name in index.columns]
        arrays = sorted((array for name in there for array in index.columns[name][1]), key=lambda array: array.start)
        read: dict[int, NDArray[Any]] = {}
        for start, stop, members in _ranges(arrays):
            content = _read(self.number, index.first + start, stop - start)
            content.flags.writeable = False
            for array in members:
                part = content[array.start - start : array.start - start + array.nbytes]
                if part.nbytes == array.nbytes and checksum(part) == array.crc:
                    shaped = part.view(array.dtype)
                    read[id(array)] = shaped if len(array.shape) == 1 else shaped.reshape(array.shape)
        found = {}
        for name in there:
            facts, stored = index.columns[name]
            arrays_read = {array.name: read[id(array)] for array in stored if id(array) in read}
            if len(arrays_read) == len(stored):
                found[name] = CachedColumn(arrays_read, facts)
        return found, len(found) == len(there)


def read_cost(path: str) -> tuple[float, int]:
    """CPU seconds that a file saves, and its bytes, from its header alone, unchecked. Raises as `EntryFile`."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _, _, file_bytes, cpu_s = _parse_header(os.pread(number, _HEADER_BYTES, 0))
    finally:
        os.close(number)
    return (cpu_s if 0.0 <= cpu_s < 1e12 else 0.0), file_bytes


def entry_buffers(
    group: EntryGroup, columns: Mapping[str, CachedColumn], *, cpu_s: float, created_s: float
) -> list[Any]:
    """The content of a file, as buffers in order; arrays are not copied if they are C-contiguous."""
    arrays: list[Any] = []
    listed: dict[str, Any] = {}
    start = 0
    for digest, column in columns.items():
        stored = []
        for name, given in column.arrays.items():
            array = np.ascontiguousarray(given).reshape(given.shape)
            if array.dtype.kind not in _KINDS:
                raise ValueError(f"arrays of a cache hold booleans or numbers: got {array.dtype} of {name!r}")
            content = array.reshape(-1).view(np.uint8)
            stored.append([name, array.dtype.str, array.shape, start, array.nbytes, checksum(content)])
            padding = -array.nbytes % _ALIGNMENT
            arrays += [content, _ZEROS[:padding]]
            start += array.nbytes + padding
        listed[digest] = [dict(column.facts), stored]
    name = join(group.table, group.path)
    real = real_name(name)  # kept where table and path say another
    facts = {
        "digest": group.digest,
        "table": group.table,
        "path": group.path,
        **({} if real == absolute(name) else {"file": real}),
        "row_group": group.row_group,
        "partition": {key: _to_json(value) for key, value in group.partition.items()},
        "created": created_s,
        "columns": listed,
    }
    index = json.dumps(facts, separators=(",", ":")).encode()
    padding = -len(index) % _ALIGNMENT
    file_bytes = _HEADER_BYTES + len(index) + padding + start
    header = _HEADER.pack(_MAGIC, VERSION, len(index), file_bytes, cpu_s)
    header += struct.pack("<I", checksum(header + index))
    return [header.ljust(_HEADER_BYTES, b"\0"), index, _ZEROS[:padding], *arrays]


def write_entry(path: str, buffers: Sequence[Any], *, mode: int, modified_ns: int) -> None:
    """Write a file: under a temporary name, which is locked meanwhile, then renamed. Raises OSError."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: then its age says whether its writer lives
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(OSError):  # a file system without modes
            os.fchmod(number, mode)  # whatever the umask of this process is
        _write(number, buffers)
        os.utime(number, ns=(modified_ns, modified_ns))
        Path(temporary).rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    finally:
        os.close(number)


def _write(number: int, buffers: Sequence[Any]) -> None:
    views = [view for buffer in buffers if (view := memoryview(buffer)).nbytes]
    first = 0
    while first < len(views):
        written = os.writev(number, views[first : first + _VECTORS])
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        while written:
            size = views[first].nbytes
            if written < size:
                views[first] = views[first][written:]
                break
            written -= size
            first += 1


def _read(number: int, offset: int, nbytes: int) -> NDArray[np.uint8]:
    """Bytes of a file, in aligned memory; fewer where it ends."""
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    shift = -memory.ctypes.data % _ALIGNMENT
    content = memory[shift : shift + nbytes]
    done = 0
    while done < nbytes:
        count = os.preadv(number, [content.data[done:]], offset + done)
        if count == 0:
            break
        done += count
    return content[:done]


def _ranges(arrays: Sequence[EntryArray]) -> Iterator[tuple[int, int, list[EntryArray]]]:
    """Neighbouring arrays, in order, with where they start and stop."""
    members: list[EntryArray] = []
    for array in arrays:
        if members:
            stop = members[-1].start + members[-1].nbytes
            if array.start - stop > _GAP_BYTES or array.start + array.nbytes - members[0].start > _RANGE_BYTES:
                yield members[0].start, stop, members
                members = []
        members.append(array)
    if members:
        yield members[0].start, members[-1].start + members[-1].nbytes, members


def _parse_header(head: bytes) -> tuple[int, int, int, float]:
    if len(head) < _HEADER_BYTES or head[: len(_MAGIC)] != _MAGIC:
        raise DamagedEntryError
    _, version, index_bytes, file_bytes, cpu_s = _HEADER.unpack_from(head)
    return version, index_bytes, file_bytes, cpu_s


def _read_index(number: int) -> EntryIndex:
    head = os.pread(number, _FIRST_READ_BYTES, 0)
    version, index_bytes, file_bytes, cpu_s = _parse_header(head)
    stop = _HEADER_BYTES + index_bytes
    while len(head) < stop:
        more = os.pread(number, stop - len(head), len(head)) if stop <= file_bytes else b""
        if not more:
            raise DamagedEntryError
        head += more
    index = head[_HEADER_BYTES:stop]
    (crc,) = struct.unpack_from("<I", head, _HEADER.size)
    if checksum(head[: _HEADER.size] + index) != crc:
        raise DamagedEntryError
    if version != VERSION:
        raise OtherVersionError
    try:
        return _parse_index(json.loads(index), cpu_s, file_bytes, stop + -stop % _ALIGNMENT)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedEntryError from error


def _parse_index(facts: dict[str, Any], cpu_s: float, file_bytes: int, first: int) -> EntryIndex:
    columns = {}
    for digest, (column_facts, arrays) in facts["columns"].items():
        stored = tuple(map(EntryArray._make, arrays))
        for array in stored:
            if array.dtype[1:2] not in _KINDS or first + array.start + array.nbytes > file_bytes:
                raise DamagedEntryError
        columns[digest] = (column_facts, stored)
    group = EntryGroup(
        digest=facts["digest"],
        table=facts["table"],
        path=facts["path"],
        row_group=facts["row_group"],
        partition={key: _from_json(value) for key, value in facts["partition"].items()},
        file=facts.get("file", ""),
    )
    return EntryIndex(group, facts["created"], cpu_s, file_bytes, first, columns)


def _to_json(value: Any) -> Any:
    """A partition value; those that JSON lacks as an object of one key, their type."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, datetime.datetime):
        return {"timestamp": value.isoformat()}
    if isinstance(value, datetime.date):
        return {"date": value.isoformat()}
    if isinstance(value, decimal.Decimal):
        return {"decimal": str(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.generic):
        return _to_json(value.item())
    return {"other": str(value)}


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    return _PARTITION_VALUES[kind](text)
