"""Write features as zarr arrays (version 3 of the format), in one pass.

Runs in: the tasks, which compute blocks, and the process that materializes, which appends their elements in the table's
order, one whole shard at a time: no shard is written twice, or by two processes. Each array has a buffer of one shard,
all together at most `_BUFFER_BYTES` (a chunk each where there are more arrays than chunks in it), beside the blocks
that wait for their turn. An array is created with its first shard, so that a small one has a small shard; how many
values a list has in all need not be known before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore

from feedline.blocks.jobs import compile_job
from feedline.blocks.request import Job
from feedline.dataclass import dataclass
from feedline.errors import SpecError
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.slot import fixed_values
from feedline.materialize.output_folder import ROOT_GROUP, NumberedBlock, OutputRef, explain_writes, finished_rows
from feedline.warehouse.storage.content_store import put
from feedline.warehouse.storage.locations import Location

_CHUNK_BYTES = 1 << 20
_SHARD_CHUNKS = 16
_BUFFER_BYTES = 512 << 20
_STRINGS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
_MATRICES = {"dense": ("dense", "float32"), "categorical": ("categorical", "int64"), "label": ("labels", "float32")}

Elements = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureArray:
    """One array: an element per row or value, of `width` numbers (0: a number), or the offsets of lists, one more than
    rows. fill: what elements are that need not be stored (None: all are)."""

    path: str
    dtype: str
    width: int = 0
    offsets: bool = False
    unit: str | None = None
    fill: bool | None = None

    @property
    def item_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize * max(self.width, 1)

    @property
    def chunk_elements(self) -> int:
        """Elements of a chunk, a power of two."""
        # of 8 bytes 131,072; of 12 bytes 87,381, so 65,536
        return 1 << max(0, (_CHUNK_BYTES // self.item_bytes).bit_length() - 1)

    def shape(self, elements: int) -> tuple[int, ...]:
        return (elements, self.width) if self.width else (elements,)


def feature_path(column: SlotColumn) -> str:
    """The path of the group or array that holds a feature of its own: characters of paths are escaped."""
    name = column.name.replace("%", "%25").replace("/", "%2F").replace("\\", "%5C")
    if name.startswith((".", "__", "_")):  # "." and ".." are folders, "__" is zarr's, "_" and "." hide files
        name = f"%{ord(name[0]):02X}{name[1:]}"
    return f"{column.group}/{name}"


def arrays_of(schema: BatchSchema) -> list[FeatureArray]:
    """The arrays of a schema without deduplicated groups, in the order of `block_elements`.

    Raises SpecError for extras that are neither of a fixed width nor strings.
    """
    arrays = [
        FeatureArray(path=path, dtype=dtype, width=sum(column.width for column in schema.group(group)))
        for group, (path, dtype) in _MATRICES.items()
        if schema.group(group)
    ]
    for column in schema.sparse:
        path = feature_path(column)
        arrays.append(FeatureArray(path=f"{path}/offsets", dtype="int64", offsets=True))
        arrays.append(FeatureArray(path=f"{path}/values", dtype=column.dtype))
        if column.weighted:
            arrays.append(FeatureArray(path=f"{path}/weights", dtype="float32"))
    for column in schema.group("extra"):
        path = feature_path(column)
        if column.dtype:
            arrays.append(FeatureArray(path=f"{path}/values", dtype=column.dtype, unit=column.unit))
        elif column.arrow in _STRINGS:
            arrays.append(FeatureArray(path=f"{path}/offsets", dtype="int64", offsets=True))
            arrays.append(FeatureArray(path=f"{path}/values", dtype="uint8"))
        else:
            raise SpecError(
                f"extra {column.name!r} cannot be an array: got {column.arrow}, expected numbers, times or strings. "
                "Leave it out of the pipeline, or write --format parquet"
            )
        arrays.append(FeatureArray(path=f"{path}/valid", dtype="bool", fill=True))
    return arrays


def feature_facts(column: SlotColumn) -> dict[str, Any]:
    """What files say of a feature."""
    return {key: value for key, value in asdict(column).items() if key not in ("dedup", "looks_up", "lookups")}


def array_columns(schema: BatchSchema) -> list[dict[str, Any]]:
    """For each feature, its facts, the path of its array or group, and its columns in a matrix."""
    return [
        {
            **feature_facts(column),
            "path": _MATRICES[column.group][0] if column.group in _MATRICES else feature_path(column),
        }
        for column in schema
    ]


def block_elements(job: Job, block: NumberedBlock) -> tuple[list[tuple[Elements, ...]], Quality]:
    """Compute a block; returns what it adds to each array of `arrays_of`, in pieces, and its rows' quality."""
    parts, quality = finished_rows(job, block)
    schema = compile_job(job).layout.schema.expanded
    return list(zip(*(_elements(rows, schema) for rows in parts), strict=True)), quality


def _elements(rows: EncodedRows, schema: BatchSchema) -> Iterator[Elements]:
    if schema.group("dense"):
        yield rows.dense
    if schema.group("categorical"):
        yield np.column_stack(rows.categorical)
    if schema.group("label"):
        yield rows.labels
    for values, weights, offsets in zip(rows.values, rows.weights, rows.offsets, strict=True):
        yield offsets
        yield np.asarray(values)
        if weights is not None:
            yield weights
    for column, extra in zip(schema.group("extra"), rows.extra, strict=True):
        yield from _extra(extra, column)


def _extra(extra: pa.Array, column: SlotColumn) -> Iterator[Elements]:
    """An extra's values, of strings after their offsets, and which are not null; nulls are zeros or empty."""
    valid = np.asarray(extra.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    if column.dtype == "bool":
        yield fixed_values(extra.fill_null(False), column)
    elif column.dtype:
        values = fixed_values(extra, column)
        yield values if valid.all() else np.where(valid, values, np.zeros(1, values.dtype))
    else:
        # ["ab", null, "c"] -> offsets [0, 2, 2, 3], values b"abc"; a slice's offsets begin where it does
        content = extra.cast(pa.large_binary()).fill_null(b"")
        _, offset_buffer, value_buffer = content.buffers()
        offsets = np.frombuffer(offset_buffer, np.int64, len(content) + 1, content.offset * 8)
        yield offsets - offsets[0]
        first, last = int(offsets[0]), int(offsets[-1])
        yield (
            np.empty(0, np.uint8)
            if value_buffer is None
            else np.frombuffer(value_buffer, np.uint8, last - first, first)
        )
    yield valid


class ArraysWriter:
    """Appends blocks to the arrays of a schema, below the folder of a run."""

    def __init__(self, schema: BatchSchema, output: OutputRef) -> None:
        arrays = arrays_of(schema)
        chunks = _BUFFER_BYTES // (_CHUNK_BYTES * len(arrays))
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
