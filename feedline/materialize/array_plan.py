"""The arrays that hold a schema's features, and which bytes of which parts make each of their shards.

Pure. Tasks of the first pass write the rows of one block into one part: the elements of all arrays, one array after the
other, in the order of `arrays_of`. Tasks of the second pass copy shards out of the parts. Where a list's values begin
is known only after the first pass, as the sum of the counts that its tasks return.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from feedline.errors import SpecError
from feedline.loader.encoding.layout import BatchSchema, SlotColumn

_CHUNK_BYTES = 1 << 20
_SHARD_CHUNKS = 16
_STRINGS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureArray:
    """One array: `rows` has an element per row, of `width` numbers (0: a number); `offsets` has one more than rows;
    `values` one per value of the lists with this index. feature: the name of the one that it holds, or none. fill: of
    elements that need not be stored."""

    path: str
    dtype: str
    kind: Literal["rows", "offsets", "values"]
    width: int = 0
    list_index: int = -1
    feature: str = ""
    unit: str | None = None
    fill: bool | None = None

    @property
    def item_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize * max(self.width, 1)

    def shape(self, elements: int) -> tuple[int, ...]:
        return (elements, self.width) if self.width else (elements,)

    def chunk_elements(self, elements: int) -> tuple[int, int]:
        """Elements of a chunk, a power of two, and of a shard."""
        chunk = 1 << max(0, (_CHUNK_BYTES // self.item_bytes).bit_length() - 1)
        return chunk, chunk * max(1, min(_SHARD_CHUNKS, -(-elements // chunk)))


@dataclass(frozen=True, slots=True)
class PartBytes:
    """`nbytes` of a part, from `start` on. add: what is added to its elements, the values of the parts before."""

    part: int
    start: int
    nbytes: int
    add: int


@dataclass(frozen=True, slots=True)
class ShardBytes:
    """Elements [first, stop) of an array, and the parts that hold them."""

    array: int
    first: int
    stop: int
    pieces: tuple[PartBytes, ...]


def feature_path(column: SlotColumn) -> str:
    """The path of the group or array that holds a feature of its own: characters of paths are escaped."""
    name = column.name.replace("%", "%25").replace("/", "%2F").replace("\\", "%5C")
    if name.startswith((".", "__", "_")):  # "." and ".." are folders, "__" is zarr's, "_" and "." hide files
        name = f"%{ord(name[0]):02X}{name[1:]}"
    return f"{column.group}/{name}"


def arrays_of(schema: BatchSchema) -> tuple[FeatureArray, ...]:
    """The arrays of a schema without deduplicated groups, in the order in which parts hold them.

    Raises SpecError for extras that are neither of a fixed width nor strings.
    """
    arrays = [
        FeatureArray(path=path, dtype=dtype, kind="rows", width=sum(column.width for column in schema.group(group)))
        for path, group, dtype in (
            ("dense", "dense", "float32"),
            ("categorical", "categorical", "int64"),
            ("labels", "label", "float32"),
        )
        if schema.group(group)
    ]
    lists = 0
    for column in schema.sparse:
        path = feature_path(column)
        arrays.append(_array(column, f"{path}/offsets", "int64", "offsets", lists))
        arrays.append(_array(column, f"{path}/values", column.dtype, "values", lists))
        if column.weighted:
            arrays.append(_array(column, f"{path}/weights", "float32", "values", lists))
        lists += 1
    for column in schema.group("extra"):
        path = feature_path(column)
        if column.dtype:
            arrays.append(_array(column, f"{path}/values", column.dtype, "rows", unit=column.unit))
        elif is_string(column):
            arrays.append(_array(column, f"{path}/offsets", "int64", "offsets", lists))
            arrays.append(_array(column, f"{path}/values", "uint8", "values", lists))
            lists += 1
        else:
            raise SpecError(
                f"extra {column.name!r} cannot be an array: got {column.arrow}, expected numbers, times or strings. "
                "Leave it out of the pipeline, or write --format parquet"
            )
        arrays.append(_array(column, f"{path}/valid", "bool", "rows", fill=True))
    return tuple(arrays)


def shown_facts(column: SlotColumn) -> dict[str, Any]:
    """What files say of a feature."""
    return {key: value for key, value in asdict(column).items() if key not in ("dedup", "looks_up", "lookups")}


def is_string(column: SlotColumn) -> bool:
    """Whether an extra holds strings or bytes."""
    return column.arrow in _STRINGS


def lists_in(arrays: Sequence[FeatureArray]) -> int:
    """How many features have offsets."""
    return sum(array.kind == "offsets" for array in arrays)


@dataclass(frozen=True)
class PartSizes:
    """What the parts hold. rows: int64 [parts]. lists: int64 [parts, lists], the values of each list."""

    arrays: tuple[FeatureArray, ...]
    rows: NDArray[np.int64]
    lists: NDArray[np.int64]

    def elements(self, array: int) -> NDArray[np.int64]:
        """int64 [parts]: the elements of an array that each part holds."""
        found = self.arrays[array]
        if found.kind == "values":
            return self.lists[:, found.list_index]
        return self.rows + 1 if found.kind == "offsets" else self.rows

    def total(self, array: int) -> int:
        """The elements of a whole array."""
        found = self.arrays[array]
        if found.kind == "values":
            return int(self.lists[:, found.list_index].sum())
        return int(self.rows.sum()) + (found.kind == "offsets")

    def shards(self) -> Iterator[ShardBytes]:
        """All shards of all arrays."""
        begins = np.zeros(len(self.rows), np.int64)  # of the array, in each part
        for index, array in enumerate(self.arrays):
            here = self.elements(index)
            yield from self._shards(index, array, here, begins)
            begins = begins + here * array.item_bytes

    def _shards(
        self, index: int, array: FeatureArray, stored: NDArray[np.int64], begins: NDArray[np.int64]
    ) -> Iterator[ShardBytes]:
        bases = np.zeros(len(self.rows), np.int64)
        used = stored
        if array.kind == "offsets":
            counts = self.lists[:, array.list_index]
            bases = np.cumsum(counts) - counts
            used = self.rows.copy()
            used[-1] += 1  # the end of each other part's last list is the begin of the next part's first
        ends = np.cumsum(used)
        total = int(ends[-1])
        _, shard = array.chunk_elements(total)
        for first in range(0, total, shard):
            stop = min(first + shard, total)
            low, high = np.searchsorted(ends, first, side="right"), np.searchsorted(ends, stop, side="left")
            pieces = []
            for part in range(int(low), int(high) + 1):
                start = int(ends[part] - used[part])
                begin, end = max(first - start, 0), min(stop, int(ends[part])) - start
                if begin < end:
                    place = int(begins[part]) + begin * array.item_bytes
                    pieces.append(PartBytes(part, place, (end - begin) * array.item_bytes, int(bases[part])))
            yield ShardBytes(index, first, stop, tuple(pieces))


def batches_of(shards: Sequence[ShardBytes], nbytes: int) -> Iterator[tuple[ShardBytes, ...]]:
    """Shards, in order, in runs of about so many bytes, at least one each."""
    batch: list[ShardBytes] = []
    size = 0
    for shard in shards:
        batch.append(shard)
        size += sum(piece.nbytes for piece in shard.pieces)
        if size >= nbytes:
            yield tuple(batch)
            batch, size = [], 0
    if batch:
        yield tuple(batch)


def _array(
    column: SlotColumn,
    path: str,
    dtype: str,
    kind: Literal["rows", "offsets", "values"],
    list_index: int = -1,
    *,
    unit: str | None = None,
    fill: bool | None = None,
) -> FeatureArray:
    return FeatureArray(
        path=path, dtype=dtype, kind=kind, list_index=list_index, feature=column.name, unit=unit, fill=fill
    )
