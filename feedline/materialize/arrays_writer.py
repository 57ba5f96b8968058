"""Write features as zarr arrays (version 3 of the format), in one pass.

Runs in: the process that materializes, which appends the elements of blocks in the table's order, one whole shard at a
time: no shard is written twice, or by two processes. Each array has a buffer of one shard, all together at most
`_BUFFER_BYTES` (a chunk each where there are more arrays than chunks in it), beside the blocks that wait for their
turn. An array is created with its first shard, so that a small one has a small shard; how many values a list has in all
need not be known before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from zarr.codecs import BloscCodec
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore

from feedline.loader.encoding.layout import BatchSchema
from feedline.materialize import feature_arrays
from feedline.materialize.feature_arrays import Elements, FeatureArray, arrays_of
from feedline.materialize.output_folder import ROOT_GROUP, OutputRef, explain_writes
from feedline.warehouse.storage.content_store import put
from feedline.warehouse.storage.locations import Location

_SHARD_CHUNKS = 16
_BUFFER_BYTES = 512 << 20


class ArraysWriter:
    """Appends blocks to the arrays of a schema, below the folder of a run."""

    def __init__(self, schema: BatchSchema, output: OutputRef) -> None:
        arrays = arrays_of(schema)
        chunks = _BUFFER_BYTES // (feature_arrays.CHUNK_BYTES * len(arrays))
        self._output = output
        self._store = _ShardStore(output.files)
        self._arrays = [_GrowingArray(array, self._store, max(1, min(_SHARD_CHUNKS, chunks))) for array in arrays]

    def append(self, block: Sequence[tuple[Elements, ...]]) -> None:
        """Append what `block_elements` returned."""
        with explain_writes(self._output.name):
            self._output.check()  # a run that began meanwhile has the folder
            for array, pieces in zip(self._arrays, block, strict=True):
                for elements in pieces:
                    array.append(elements)

    def finish(self) -> int:
        """Write what is left, and all metadata but the root's; returns the arrays' bytes before compression."""
        with explain_writes(self._output.name):
            nbytes = sum(array.finish() for array in self._arrays)
            self._store.write_metadata()
        return nbytes


class _GrowingArray:
    """An array with all its shards but the last one, and the elements of this."""

    def __init__(self, array: FeatureArray, store: MemoryStore, shard_chunks: int) -> None:
        self._array, self._store, self._shard_chunks = array, store, shard_chunks
        self._shard = np.empty(array.shape(array.chunk_elements * shard_chunks), array.dtype)
        self._filled = 0  # elements of the last shard
        self._stored: zarr.Array[Any] | None = None
        self._last_offset: int | None = None

    def append(self, elements: Elements) -> None:
        if self._array.offsets:
            # offsets [0, 2, 3] of the first rows, then [0, 4, 4]: appends [0, 2, 3], then [7, 7]
            if self._last_offset is not None:
                elements = elements[1:] + self._last_offset
            self._last_offset = int(elements[-1])
        while len(elements):
            room = self._shard[self._filled : self._filled + len(elements)]
            room[:] = elements[: len(room)]
            self._filled, elements = self._filled + len(room), elements[len(room) :]
            if self._filled == len(self._shard):
                self._write()

    def finish(self) -> int:
        """Write the last shard; returns the array's bytes."""
        if self._filled or self._stored is None:
            self._write()
        assert self._stored is not None
        return self._stored.nbytes

    def _write(self) -> None:
        if self._stored is None:
            self._stored = self._create()
        self._stored.append(self._shard[: self._filled])
        self._filled = 0

    def _create(self) -> zarr.Array[Any]:
        """The empty array, with shards of as many chunks as its first one fills."""
        array, chunk = self._array, self._array.chunk_elements
        return zarr.create_array(
            store=self._store,
            name=array.path,
            shape=array.shape(0),
            dtype=array.dtype,
            chunks=array.shape(chunk),
            shards=array.shape(chunk * max(1, -(-self._filled // chunk))),
            compressors=[BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=np.dtype(array.dtype).itemsize)],
            fill_value=0 if array.fill is None else array.fill,
            attributes={} if array.unit is None else {"unit": array.unit},
            config={"write_empty_chunks": array.fill is None},
        )


class _ShardStore(MemoryStore):
    """A zarr store that writes shards to files, and keeps metadata in memory: they change with each shard."""

    def __init__(self, location: Location) -> None:
        super().__init__()
        self._location = location

    async def set(self, key: str, value: Buffer, byte_range: tuple[int, int] | None = None) -> None:
        if key.endswith(ROOT_GROUP):
            await super().set(key, value, byte_range)
        else:
            await asyncio.to_thread(put, self._location, key, [pa.py_buffer(value.as_numpy_array())])

    def write_metadata(self) -> None:
        """Write the metadata of all groups and arrays, but for the root, whose attributes are the marker's facts."""
        for key, value in self._store_dict.items():
            if key != ROOT_GROUP:
                put(self._location, key, [value.to_bytes()])
