"""The arrays that hold the features of a schema, and the elements of a block in each.

Runs in: the tasks, which compute blocks. `arrays_writer` writes what they return.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.blocks.jobs import compile_job
from feedline.blocks.request import Job
from feedline.dataclass import dataclass
from feedline.errors import SpecError
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.slot import fixed_values
from feedline.materialize.output_folder import NumberedBlock, finished_rows

CHUNK_BYTES = 1 << 20
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
        return 1 << max(0, (CHUNK_BYTES // self.item_bytes).bit_length() - 1)

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
