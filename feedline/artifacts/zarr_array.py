"""Open a zarr array: its files, its content, and its rows by index.

Runs in: processes whose features look up embeddings; no other process imports it, as importing zarr takes 0.2 s. Files
are read through Feedline's file systems, and listed once, when the array is opened: a chunk is read only from a file
that is still as listed. Uncompressed chunks in local files are memory-mapped.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs as pafs
import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.codecs import BytesCodec
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.metadata import ArrayV3Metadata
from zarr.storage import MemoryStore

from feedline.artifacts.array_rows import Block, StoredArray
from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, FeedlineError, SpecError, TableChangedError, TableNotFoundError
from feedline.warehouse.storage.faults import explain_errors, safe_message
from feedline.warehouse.storage.file_identity import Stamp, refuse_changed, stamp_in, stamp_of
from feedline.warehouse.storage.locations import Location, absolute, join, list_tree, locate, redact
from feedline.warehouse.storage.ranges import read_range
from feedline.warehouse.storage.retry import is_local, with_retries

_METADATA = ("zarr.json", ".zarray")
_REMEDY = "Start again, so that the current array is read"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZarrArray:
    """An open array. digest: of its metadata and of the names, sizes and times of its files."""

    uri: str
    array: zarr.Array[Any]
    digest: str
    files: Mapping[str, Stamp]
    location: Location

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.array.dtype)

    def read(self) -> Block:
        """Decode the whole array."""
        return self._decode(slice(None))

    def stored_array(self) -> StoredArray:
        """This two-dimensional array, in blocks of a chunk's rows."""
        rows, width = self.shape
        block_rows = max(1, min(int(self.array.chunks[0]), rows))
        mapped = self._is_mappable(width)
        return StoredArray(
            rows=rows,
            width=width,
            block_rows=block_rows,
            dtype=self.dtype,
            load=self._map_chunk
            if mapped
            else lambda index: self._decode(slice(index * block_rows, (index + 1) * block_rows)),
            mapped=mapped,
        )

    def _decode(self, rows: slice) -> Block:
        try:
            return np.asarray(self.array[rows])
        except (FeedlineError, MemoryError):
            raise
        except Exception as error:  # codecs raise errors of any type
            raise CorruptFileError(f"{self.uri} cannot be decoded: {safe_message(error)}. Write it again") from error

    def _is_mappable(self, width: int) -> bool:
        """Whether a chunk's file holds just its rows, in this machine's byte order."""
        if not is_local(self.location.filesystem) or self.array.chunks[1] < width or not self.dtype.isnative:
            return False
        metadata = self.array.metadata
        if isinstance(metadata, ArrayV3Metadata):
            [codec, *others] = metadata.codecs
            if others or not isinstance(codec, BytesCodec):
                return False
            return codec.endian is None or codec.endian.value == sys.byteorder  # None: single bytes
        return metadata.compressor is None and not metadata.filters and metadata.order == "C"

    def _map_chunk(self, index: int) -> Block:
        """Map a chunk's rows from its file; a chunk that was never written holds the fill value."""
        chunk_rows, chunk_width = self.array.chunks
        rows, width = self.shape
        count = min(chunk_rows, rows - index * chunk_rows)
        key = self.array.metadata.encode_chunk_key((index, 0))
        if key not in self.files:
            fill = np.asarray(self.array.fill_value, dtype=self.dtype)
            return np.broadcast_to(fill, (count, width))
        path, name = join(self.location.path, key), join(self.uri, key)
        expected = chunk_rows * chunk_width * self.dtype.itemsize
        with _explain_missing(name):
            now = Path(path).stat()
            _compare(name, self.files[key], Stamp(now.st_size, now.st_mtime_ns))
            if now.st_size != expected:
                raise CorruptFileError(
                    f"{name} is not a chunk of its array: got {now.st_size} bytes, expected {expected}"
                )
            whole = np.memmap(path, dtype=self.dtype, mode="r", shape=(chunk_rows, chunk_width))
        return np.asarray(whole)[:count, :width]


def open_array(uri: str) -> ZarrArray:
    """Open the zarr array at a path or URI, version 2 or 3 of the format.

    Raises SpecError if there is none, StoreError if the store keeps failing.
    """
    location = locate(absolute(uri))
    name = redact(location.uri)
    with explain_errors(name):
        info = with_retries(lambda: location.filesystem.get_file_info(location.path), location.filesystem, name)
    if info.type != pafs.FileType.Directory:
        got = "a file" if info.type == pafs.FileType.File else "nothing there"
        raise SpecError(f"{name} is not a zarr array: got {got}, expected a folder with zarr.json or .zarray")
    start = len(location.path.rstrip("/")) + 1
    files = {info.path[start:]: stamp_in(info) for info in list_tree(location) if info.type == pafs.FileType.File}
    metadata = next((file for file in _METADATA if file in files), None)
    if metadata is None:
        raise SpecError(
            f"{name} is not a zarr array: got a folder without zarr.json or .zarray. Name the array's folder"
        )
    store = _ListedStore(location, files)
    content = store.content(metadata, None)
    kind = "array"
    try:
        kind = json.loads(content).get("node_type", "array")
        array = zarr.open_array(store=store, mode="r", zarr_format=3 if metadata == "zarr.json" else 2)
    except FeedlineError:
        raise
    except Exception as error:
        if kind != "array":
            raise SpecError(f"{name} is a zarr {kind}, expected an array. Name one of the arrays in it") from None
        raise SpecError(f"{name} is not a readable zarr array: {safe_message(error)}") from error
    return ZarrArray(uri=name, array=array, digest=_digest(content, files), files=files, location=location)


def is_array(uri: str) -> bool:
    """Whether a folder holds a zarr array rather than a table. Raises StoreError if the store keeps failing."""
    location = locate(uri)
    paths = [join(location.path, name) for name in _METADATA]
    with explain_errors(redact(uri)):
        infos = with_retries(lambda: location.filesystem.get_file_info(paths), location.filesystem, redact(uri))
    return any(info.type == pafs.FileType.File for info in infos)


def _digest(metadata: bytes, files: Mapping[str, Stamp]) -> str:
    """Times are rounded down to seconds, the resolution of some stores."""
    digest = hashlib.sha256(metadata)
    facts = sorted((name, stamp.size_bytes, stamp.mtime_ns // 10**9) for name, stamp in files.items())
    digest.update(json.dumps(facts, separators=(",", ":")).encode())
    return digest.hexdigest()


class _ListedStore(MemoryStore):
    """A read-only zarr store over the files of a listing: it has their names, and reads their content when asked."""

    def __init__(self, location: Location, files: Mapping[str, Stamp]) -> None:
        super().__init__(dict.fromkeys(files, default_buffer_prototype().buffer.create_zero_length()), read_only=True)
        self._location = location
        self._files = files

    def content(self, key: str, part: ByteRequest | None) -> bytes:
        """Read a file, or part of it. Raises TableChangedError if it is no longer as listed."""
        filesystem, path = self._location.filesystem, join(self._location.path, key)
        name, listed = join(redact(self._location.uri), key), self._files[key]
        start, stop = _bounds(part, listed.size_bytes)

        def read() -> bytes:
            with filesystem.open_input_file(path) as source:
                _compare(name, listed, stamp_of(filesystem, path, source))
                if is_local(filesystem):
                    content: bytes = source.read_at(stop - start, start)
                    return content
                return read_range(source, start, stop - start)

        with _explain_missing(name):
            return with_retries(read, filesystem, name)

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        if key not in self._files:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(self.content(key, byte_range))

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read in a thread, so that zarr's requests overlap."""
        return await asyncio.to_thread(self.get_sync, key, prototype=prototype, byte_range=byte_range)


@contextmanager
def _explain_missing(name: str) -> Iterator[None]:
    try:
        with explain_errors(name, fetching=True):
            yield
    except TableNotFoundError as error:
        raise TableChangedError(f"{name} is gone: it existed when the array was opened. {_REMEDY}") from error


def _compare(name: str, listed: Stamp, now: Stamp) -> None:
    refuse_changed(name, listed, now, "after the array was opened", _REMEDY)


def _bounds(part: ByteRequest | None, size: int) -> tuple[int, int]:
    # of 100 bytes: the last 8 -> (92, 100), all from 40 on -> (40, 100), 90 to 120 -> (90, 100)
    if isinstance(part, RangeByteRequest):
        return part.start, min(part.end, size)
    if isinstance(part, OffsetByteRequest):
        return min(part.offset, size), size
    return (max(size - part.suffix, 0), size) if isinstance(part, SuffixByteRequest) else (0, size)
