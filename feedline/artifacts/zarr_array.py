"""Open a zarr array: its files, its content, and its rows by index.

Runs in processes whose features look embeddings up; importing it loads zarr (0.2 s), so no other process does. zarr
decodes; files come by way of Feedline's own file systems, with their limits and repetitions. The files are listed once,
when the array is opened. The listing is the array's digest, and a chunk is read only from a file that is still as
listed: nothing of another array's content is handed out. Chunks that lie uncompressed in local files are mapped.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs as pafs
import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.codecs import BytesCodec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.metadata import ArrayV3Metadata

from feedline.artifacts.array_rows import Block, StoredArray
from feedline.errors import CorruptFileError, FeedlineError, SpecError, TableChangedError, TableNotFoundError
from feedline.warehouse.parquet.open_file import Stamp, refuse_changed, stamp_in, stamp_of
from feedline.warehouse.storage.faults import explain_errors, safe_message
from feedline.warehouse.storage.locations import Location, absolute, join, list_tree, locate, redact
from feedline.warehouse.storage.ranges import read_range
from feedline.warehouse.storage.retry import is_local, with_retries

_METADATA = ("zarr.json", ".zarray")
_REMEDY = "Start again, so that the array is read as it is now"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZarrArray:
    """An array of numbers that was opened. digest: of its metadata and of names, sizes and times of its files."""

    uri: str
    array: zarr.Array[Any]
    digest: str
    files: Mapping[str, Stamp]
    location: Location

    @property
    def shape(self) -> tuple[int, ...]:
        """Its lengths."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its numbers."""
        return np.dtype(self.array.dtype)

    def read(self) -> Block:
        """All of it."""
        return self._decoded(slice(None))

    def stored(self) -> StoredArray:
        """A two-dimensional one in blocks of the rows of a chunk."""
        rows, width = self.shape
        block_rows = max(1, min(int(self.array.chunks[0]), rows))
        mapped = self._is_mappable(width)
        return StoredArray(
            rows=rows,
            width=width,
            block_rows=block_rows,
            dtype=self.dtype,
            load=self._mapped if mapped else lambda number: self._decoded(_span(number, block_rows)),
            mapped=mapped,
        )

    def _decoded(self, rows: slice) -> Block:
        try:
            return np.asarray(self.array[rows])
        except (FeedlineError, MemoryError):
            raise
        except Exception as error:  # whatever a codec raises
            raise CorruptFileError(f"{self.uri} cannot be decoded: {safe_message(error)}. Write it anew") from error

    def _is_mappable(self, width: int) -> bool:
        """Whether a chunk's file is the very array of its rows, of this machine's byte order."""
        if not is_local(self.location.filesystem) or self.array.chunks[1] < width or not self.dtype.isnative:
            return False
        metadata = self.array.metadata
        if isinstance(metadata, ArrayV3Metadata):
            [codec, *others] = metadata.codecs
            if others or not isinstance(codec, BytesCodec):
                return False
            return codec.endian is None or codec.endian.value == sys.byteorder  # None: of single bytes
        return metadata.compressor is None and not metadata.filters and metadata.order == "C"

    def _mapped(self, number: int) -> Block:
        """A chunk's rows as they lie in its file; those of a chunk that was never written hold the fill value."""
        chunk_rows, chunk_width = self.array.chunks
        rows, width = self.shape
        count = min(chunk_rows, rows - number * chunk_rows)
        key = self.array.metadata.encode_chunk_key((number, 0))
        if key not in self.files:
            fill = np.asarray(self.array.fill_value, dtype=self.dtype)
            return np.broadcast_to(fill, (count, width))
        path, name = join(self.location.path, key), join(self.uri, key)
        expected = chunk_rows * chunk_width * self.dtype.itemsize
        with _there(name):
            now = Path(path).stat()
            _compare(name, self.files[key], Stamp(now.st_size, now.st_mtime_ns))
            if now.st_size != expected:
                raise CorruptFileError(f"{name} is no chunk of its array: got {now.st_size} bytes, expected {expected}")
            whole = np.memmap(path, dtype=self.dtype, mode="r", shape=(chunk_rows, chunk_width))
        return np.asarray(whole)[:count, :width]


def open_array(uri: str) -> ZarrArray:
    """The zarr array of that path or URI, version 2 or 3 of the format.

    Raises SpecError where there is none, StoreError where the store kept failing.
    """
    location = locate(absolute(uri))
    name = redact(location.uri)
    with explain_errors(name):
        info = with_retries(lambda: location.filesystem.get_file_info(location.path), location.filesystem, name)
    if info.type != pafs.FileType.Directory:
        raise SpecError(f"{name} is no zarr array: got {_met(info.type)}, expected a folder with zarr.json or .zarray")
    start = len(location.path.rstrip("/")) + 1
    files = {info.path[start:]: stamp_in(info) for info in list_tree(location) if info.type == pafs.FileType.File}
    found = next((file for file in _METADATA if file in files), None)
    if found is None:
        raise SpecError(f"{name} is no zarr array: got a folder without zarr.json or .zarray. Name the array's folder")
    store = _Listed(location, files)
    content = store.content(found, None)
    kind = "array"
    try:
        kind = json.loads(content).get("node_type", "array")
        array = zarr.open_array(store=store, mode="r", zarr_format=3 if found == "zarr.json" else 2)
    except FeedlineError:
        raise
    except Exception as error:
        if kind != "array":
            raise SpecError(f"{name} is a zarr {kind}, expected an array. Name one of the arrays in it") from None
        raise SpecError(f"{name} is no zarr array that can be read: {safe_message(error)}") from error
    return ZarrArray(uri=name, array=array, digest=_digest(content, files), files=files, location=location)


def is_array(uri: str) -> bool:
    """Whether a folder is a zarr array's, rather than a table's. Raises StoreError where the store kept failing."""
    location = locate(uri)
    paths = [join(location.path, name) for name in _METADATA]
    with explain_errors(redact(uri)):
        infos = with_retries(lambda: location.filesystem.get_file_info(paths), location.filesystem, redact(uri))
    return any(info.type == pafs.FileType.File for info in infos)


def _digest(metadata: bytes, files: Mapping[str, Stamp]) -> str:
    """Times count as whole seconds: some stores tell no more."""
    digest = hashlib.sha256(metadata)
    facts = sorted((name, stamp.size_bytes, stamp.mtime_ns // 10**9) for name, stamp in files.items())
    digest.update(json.dumps(facts, separators=(",", ":")).encode())
    return digest.hexdigest()


class _Listed(Store):
    """The files of a listing, for zarr to read."""

    def __init__(self, location: Location, files: Mapping[str, Stamp]) -> None:
        super().__init__(read_only=True)
        self._location = location
        self._files = files

    def content(self, key: str, wanted: ByteRequest | None) -> bytes:
        """A file's bytes, or some of them. Raises TableChangedError where it is not as listed any more."""
        filesystem, path = self._location.filesystem, join(self._location.path, key)
        name, seen = join(redact(self._location.uri), key), self._files[key]
        start, stop = _bounds(wanted, seen.size_bytes)

        def read() -> bytes:
            with filesystem.open_input_file(path) as source:
                _compare(name, seen, stamp_of(filesystem, path, source))
                if is_local(filesystem):
                    content: bytes = source.read_at(stop - start, start)
                    return content
                return read_range(source, start, stop - start)

        with _there(name):
            return with_retries(read, filesystem, name)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """As zarr asks for it; other requests go on meanwhile."""
        if key not in self._files:
            return None
        return prototype.buffer.from_bytes(await asyncio.to_thread(self.content, key, byte_range))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """As zarr asks for it."""
        return [await self.get(key, prototype, wanted) for key, wanted in key_ranges]

    async def exists(self, key: str) -> bool:
        """As zarr asks for it."""
        return key in self._files

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def supports_writes(self) -> bool:
        """It is read only."""
        return False

    @property
    def supports_deletes(self) -> bool:
        """It is read only."""
        return False

    @property
    def supports_listing(self) -> bool:
        """The listing is at hand."""
        return True

    async def set(self, key: str, value: Buffer) -> None:
        """It is read only."""
        raise NotImplementedError

    async def delete(self, key: str) -> None:
        """It is read only."""
        raise NotImplementedError

    async def list(self) -> AsyncIterator[str]:
        """All files."""
        for name in self._files:
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Those whose names begin so."""
        for name in self._files:
            if name.startswith(prefix):
                yield name

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """What lies in a folder."""
        start = f"{prefix.rstrip('/')}/" if prefix else ""
        below = (name[len(start) :] for name in self._files if name.startswith(start))
        for name in dict.fromkeys(name.partition("/")[0] for name in below):
            yield name


@contextmanager
def _there(name: str) -> Iterator[None]:
    """Errors of a file that was listed."""
    try:
        with explain_errors(name, fetching=True):
            yield
    except TableNotFoundError as error:
        raise TableChangedError(f"{name} is gone: it was there when the array was opened. {_REMEDY}") from error


def _compare(name: str, seen: Stamp, now: Stamp) -> None:
    refuse_changed(name, seen, now, "after the array was opened", _REMEDY)


def _bounds(wanted: ByteRequest | None, size: int) -> tuple[int, int]:
    if isinstance(wanted, RangeByteRequest):
        return wanted.start, min(wanted.end, size)
    if isinstance(wanted, OffsetByteRequest):
        return min(wanted.offset, size), size
    return (max(size - wanted.suffix, 0), size) if isinstance(wanted, SuffixByteRequest) else (0, size)


def _span(number: int, rows: int) -> slice:
    return slice(number * rows, (number + 1) * rows)


def _met(kind: pafs.FileType) -> str:
    return "a file" if kind == pafs.FileType.File else "nothing there"
