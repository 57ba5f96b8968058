"""Write features as zarr arrays (version 3 of the format): parts first, then shards out of the parts.

Runs in: the process that materializes, which makes the arrays, and the workers. Each shard is written whole by one
task, so that workers need no locks; a task that runs twice writes the same bytes, each time under a name of its own
that is then renamed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, Store
from zarr.codecs import BloscCodec
from zarr.core.buffer import Buffer, BufferPrototype

from feedline.blocks.jobs import compile_job
from feedline.errors import TableError, TableNotFoundError
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.slot import fixed_values
from feedline.materialize.array_plan import (
    FeatureArray,
    PartSizes,
    ShardBytes,
    arrays_of,
    batches_of,
    feature_path,
    lists_in,
    shown_facts,
)
from feedline.materialize.output_folder import (
    ROOT_GROUP,
    FilesJob,
    NumberedBlock,
    OutputRef,
    explain_writes,
    finished_rows,
)
from feedline.warehouse.storage.content_store import get, put
from feedline.warehouse.storage.faults import explain_errors
from feedline.warehouse.storage.locations import Location, join
from feedline.warehouse.storage.ranges import read_range
from feedline.warehouse.storage.retry import is_local, with_retries

_BATCH_BYTES = 64 << 20  # of the shards of one task


def write_part(files: FilesJob, block: NumberedBlock) -> tuple[NDArray[np.int64], Quality]:
    """Compute a block, and write the elements of all its arrays into one part.

    Returns how many values each list of the part's rows has in all, int64 [lists], and the rows' quality.
    """
    files.output.check()
    parts, quality = finished_rows(files.job, block)
    schema = compile_job(files.job).layout.schema.expanded
    counts = np.zeros(lists_in(arrays_of(schema)), np.int64)
    streams = [_elements(rows, schema) for rows in parts]

    def elements() -> Iterator[pa.Buffer]:
        for each in zip(*streams, strict=True):
            array = each[0][0]
            for number, (_, values) in enumerate(each):
                if array.kind == "offsets":
                    shown = (values if number == 0 else values[1:]) + counts[array.list_index]
                    counts[array.list_index] += values[-1]
                else:
                    shown = values
                yield pa.py_buffer(np.ascontiguousarray(shown, dtype=array.dtype))

    with explain_writes(files.output.name):
        files.output.check()  # a run that began meanwhile has the folder
        put(files.output.parts, _part_name(block.number), elements())
    return counts, quality


def write_shards(files: FilesJob, shards: tuple[ShardBytes, ...]) -> int:
    """Copy shards out of parts; returns their bytes before compression."""
    files.output.check()
    arrays = arrays_of(compile_job(files.job).layout.schema.expanded)
    nbytes = 0
    with explain_writes(files.output.name):
        store = _PutStore(files.output.files)
        opened: dict[int, zarr.Array[Any]] = {}
        for shard in shards:
            array = arrays[shard.array]
            if shard.array not in opened:
                found = zarr.open_array(store=store, path=array.path, mode="r+", zarr_format=3)
                opened[shard.array] = found.with_config({"write_empty_chunks": array.fill is None})
            values = _read_shard(files.output.parts, array, shard)
            opened[shard.array][shard.first : shard.stop] = values
            nbytes += values.nbytes
    return nbytes


def create_arrays(output: OutputRef, sizes: PartSizes) -> tuple[tuple[ShardBytes, ...], ...]:
    """Make all arrays, without their elements; returns the tasks that write these."""
    store = _PutStore(output.files)
    with explain_writes(output.name):
        for index, array in enumerate(sizes.arrays):
            elements = sizes.total(index)
            chunk, shard = array.chunk_elements(elements)
            item = np.dtype(array.dtype).itemsize
            zarr.create_array(
                store=store,
                name=array.path,
                shape=array.shape(elements),
                dtype=array.dtype,
                chunks=array.shape(chunk),
                shards=array.shape(shard),
                compressors=[BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=item)],
                fill_value=0 if array.fill is None else array.fill,
                attributes={} if array.unit is None else {"unit": array.unit},
            )
    return tuple(batches_of(list(sizes.shards()), _BATCH_BYTES))


def array_columns(schema: BatchSchema) -> list[dict[str, Any]]:
    """For each feature, its facts, the path of its array or group, and its columns in a matrix."""
    matrices = {"dense": "dense", "categorical": "categorical", "label": "labels"}
    found = []
    for column in schema:
        path = matrices.get(column.group)
        found.append({**shown_facts(column), "path": feature_path(column) if path is None else path})
    return found


def _part_name(number: int) -> str:
    return f"{number:08d}"


def _elements(rows: EncodedRows, schema: BatchSchema) -> Iterator[tuple[FeatureArray, NDArray[Any]]]:
    """The arrays of `arrays_of` with their elements of these rows, one after the other."""
    arrays = iter(arrays_of(schema))
    if schema.group("dense"):
        yield next(arrays), rows.dense
    if schema.group("categorical"):
        yield next(arrays), np.column_stack(rows.categorical)
    if schema.group("label"):
        yield next(arrays), rows.labels
    for values, weights, offsets in zip(rows.values, rows.weights, rows.offsets, strict=True):
        yield next(arrays), offsets
        yield next(arrays), np.asarray(values)
        if weights is not None:
            yield next(arrays), weights
    for column, extra in zip(schema.group("extra"), rows.extra, strict=True):
        for values in _extra(extra, column):
            yield next(arrays), values


def _extra(extra: pa.Array, column: SlotColumn) -> Iterator[NDArray[Any]]:
    """An extra's values, of strings after their offsets, and which are not null; nulls are zeros or empty."""
    valid = np.asarray(extra.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    if column.dtype == "bool":
        yield fixed_values(extra.fill_null(False), column)
    elif column.dtype:
        values = fixed_values(extra, column)
        yield values if valid.all() else np.where(valid, values, np.zeros(1, values.dtype))
    else:
        content = extra.cast(pa.large_binary()).fill_null(b"")
        _, offset_buffer, value_buffer = content.buffers()
        borders = np.frombuffer(offset_buffer, np.int64, len(content) + 1, content.offset * 8)
        yield borders - borders[0]
        if value_buffer is None:
            yield np.empty(0, np.uint8)
        else:
            yield np.frombuffer(value_buffer, np.uint8, int(borders[-1] - borders[0]), int(borders[0]))
    yield valid


def _read_shard(parts: Location, array: FeatureArray, shard: ShardBytes) -> NDArray[Any]:
    """The elements of a shard, out of its parts."""
    values = np.empty(array.shape(shard.stop - shard.first), array.dtype)
    flat, filled = values.reshape(-1), 0
    for piece in shard.pieces:
        content = np.frombuffer(_read_part(parts, piece.part, piece.start, piece.nbytes), array.dtype)
        target = flat[filled : filled + len(content)]
        target[:] = content
        if piece.add:
            target += piece.add
        filled += len(content)
    assert filled == len(flat)
    return values


def _read_part(parts: Location, part: int, start: int, nbytes: int) -> bytes:
    filesystem, path = parts.filesystem, join(parts.path, _part_name(part))

    def read() -> bytes:
        with filesystem.open_input_file(path) as source:
            content: bytes = (
                source.read_at(nbytes, start) if is_local(filesystem) else read_range(source, start, nbytes)
            )
            return content

    with explain_errors(path, fetching=True):
        return with_retries(read, filesystem, path)


class _PutStore(Store):
    """A zarr store that writes whole files of a folder; the root's metadata is written at the end, with the facts."""

    def __init__(self, location: Location) -> None:
        super().__init__(read_only=False)
        self._location = location

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Metadata, whole; shards are never read."""
        if byte_range is not None or not key.endswith(ROOT_GROUP):
            return None
        try:
            content = await asyncio.to_thread(get, self._location, key)
        except (FileNotFoundError, TableNotFoundError):
            return None
        return prototype.buffer.from_bytes(bytes(memoryview(content)))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Several files."""
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    async def exists(self, key: str) -> bool:
        """Whether there is such a file, of metadata."""
        with contextlib.suppress(FileNotFoundError, TableError):
            return await asyncio.to_thread(get, self._location, key) is not None
        return False

    async def set(self, key: str, value: Buffer) -> None:
        """Write a file, atomically."""
        if key != ROOT_GROUP:
            content = [pa.py_buffer(value.as_numpy_array().tobytes())]
            await asyncio.to_thread(put, self._location, key, content)

    async def delete(self, key: str) -> None:
        """Nothing: arrays are made in an empty folder, and shards are written once."""

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def supports_writes(self) -> bool:
        """Yes."""
        return True

    @property
    def supports_deletes(self) -> bool:
        """No."""
        return False

    @property
    def supports_listing(self) -> bool:
        """No."""
        return False

    async def list(self) -> AsyncIterator[str]:
        """Nothing."""
        return
        yield ""

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Nothing."""
        return
        yield ""

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Nothing."""
        return
        yield ""
