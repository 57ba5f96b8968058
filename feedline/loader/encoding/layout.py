"""The layout of a slot: the offset of each tensor of a batch among its bytes.

Runs in: feeder, workers and trainer. Pure: sizes in, offsets out, so that writer and reader agree without sending
offsets. A slot begins with a header of int64 words (epoch, step, rows, counts); `SlotLayout.place` turns the counts
into offsets. Sections, each aligned to 64 bytes (a cache line, and the alignment Arrow asks for):

    header | dense [B, D] f32 | categorical [K, B] i64 | labels [B, L] f32 | valid [B] u8
    | lengths [F, B] i32 | offsets [F, B + 1] i64 | values of all sparse features, back to back per dtype
    | weights f32 of all weighted sparse features, back to back
    | fixed-width extras, one array each | other extras as one Arrow IPC stream
    | for each deduplicated group of U unique rows: inverse [B] i32 | dense [U, D] f32 | categorical [K, U] i64

Of a feature in a deduplicated group, lengths, offsets and values are of the U unique rows. The sparse features of one
dtype are neighbours in `lengths` and `values`, and among them those with weights, so that a KeyedJaggedTensor is a
view.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from feedline.dataclass import dataclass
from feedline.errors import SpecError

# --------------------------------------------------------------------------------------------------------------------
# Choose what `batch.sparse_features` holds: which features, in which order, with values of which type. torchrec's
# train pipelines read a batch's properties while they trace a model, and cannot follow a call with arguments, so the
# choice is made once, for the dataset.


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseFeatures:
    """What `batch.sparse_features` and `batch.weighted_sparse_features` hold, for `FeedlineDataset(sparse_features=)`.

    features: the keys, in their order (default: all lists of ids, then all categorical features, as lists of one id).
    dtype: of the values. "int32" is a copy, and halves what an all-to-all of ids sends; every id must be below 2**31.
    expand: all rows of deduplicated features, a copy, instead of unique rows with inverse indices (default: in host
    memory; there unique rows save no time, and torchrec 1.8 misreads them in tables that are not sharded table-wise).

    Raises SpecError for another dtype, and for features that are none or not different.

    Examples:
        >>> SparseFeatures(features=["history", "item"], dtype="int32").features
        ('history', 'item')
    """

    features: Sequence[str] | None = None
    dtype: Literal["int64", "int32"] = "int64"
    expand: bool | None = None

    def __post_init__(self) -> None:
        if self.dtype not in ("int64", "int32"):
            raise SpecError(f'sparse_features.dtype is unknown: got {self.dtype!r}, expected "int64" or "int32"')
        if self.features is None:
            return
        if isinstance(self.features, str):
            raise SpecError(f"sparse_features.features must be a sequence of names: got {self.features!r}")
        names = tuple(self.features)
        if not names or len(set(names)) < len(names):
            raise SpecError(f"sparse_features.features must be different names: got {', '.join(names) or 'none'}")
        object.__setattr__(self, "features", names)


# --------------------------------------------------------------------------------------------------------------------

ALIGNMENT_BYTES = 64
MAGIC = 0x31454E494C444545  # "EEDLINE1", little-endian: a slot of another layout is refused, not misread
GROUPS = ("dense", "categorical", "sparse", "label", "extra")

_HEADER = ("magic", "epoch", "step", "rows", "nbytes", "ipc_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotColumn:
    """One feature of the batch: `dtype` as numpy names it ("" for extras without one), `arrow` the Arrow type's name.

    offset, width: its columns in its group's matrix; a vector has `width` columns. unit: of timestamps and durations
    ("s", "ms", "us", "ns") and dates ("D"). weighted: whether a sparse feature has weights. chain: the feature's ops,
    for messages. on_nonfinite: the treatment of NaN and infinities. looks_up: whether an op counts unknown
    values; lookups: how many do.
    num_embeddings: ids are in [0, num_embeddings), the rows that an embedding table needs; None if no op bounds them.
    dedup: the deduplicated group that it belongs to, whose matrices have columns of their own; None if to none.

    Examples:
        >>> hour = Pipeline.from_yaml("pipeline.yaml").schema["hour"]
        >>> hour.group, hour.dtype, hour.offset, hour.width
        ('dense', 'float32', 1, 1)
    """

    name: str
    group: str
    dtype: str
    arrow: str
    offset: int
    width: int = 1
    unit: str | None = None
    weighted: bool = False
    chain: str = ""
    on_nonfinite: str = "keep"
    looks_up: bool = False
    num_embeddings: int | None = None
    dedup: str | None = None
    lookups: int = 0

    def of(self, matrix: Any) -> Any:
        """The feature's column [rows] of its group's matrix, or its columns [rows, width] if it is a vector."""
        return matrix[:, self.offset if self.width == 1 else slice(self.offset, self.offset + self.width)]


@dataclass(frozen=True)
class BatchSchema:
    """Every column of a batch, in the order of pipeline.yaml: `columns`, by name (`schema["price"]`), or by group.

    Examples:
        >>> schema = Pipeline.from_yaml("pipeline.yaml").schema
        >>> [column.name for column in schema.group("dense")]
        ['price', 'hour']
        >>> schema["history"].dtype, schema["history"].num_embeddings
        ('int64', 10000)
    """

    columns: tuple[SlotColumn, ...]

    def __iter__(self) -> Iterator[SlotColumn]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, name: str) -> SlotColumn:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @cached_property
    def _by_name(self) -> dict[str, SlotColumn]:
        return {column.name: column for column in self.columns}

    def group(self, group: str) -> tuple[SlotColumn, ...]:
        """The columns of a group (dense, categorical, sparse, label, extra), in the order of pipeline.yaml."""
        return self._groups.get(group, ())

    @cached_property
    def _groups(self) -> dict[str, tuple[SlotColumn, ...]]:
        groups: dict[str, list[SlotColumn]] = {}
        for column in self.columns:
            groups.setdefault(column.group, []).append(column)
        return {group: tuple(columns) for group, columns in groups.items()}

    @cached_property
    def sparse(self) -> tuple[SlotColumn, ...]:
        """The sparse features in memory order: by dtype, within a dtype the weighted ones last, then by dedup."""
        columns = self.group("sparse")
        dtypes = list(dict.fromkeys(column.dtype for column in columns))
        parts = (None, *self.dedup)
        return tuple(
            sorted(
                columns,
                key=lambda column: (dtypes.index(column.dtype), column.weighted, parts.index(column.dedup)),
            )
        )

    @cached_property
    def dedup(self) -> tuple[str, ...]:
        """The deduplicated groups, in the order of their first columns."""
        return tuple(dict.fromkeys(column.dedup for column in self.columns if column.dedup is not None))

    @cached_property
    def parts(self) -> tuple[BatchSchema, ...]:
        """The columns of no deduplicated group, then those of each, each as columns of plain rows."""
        if not self.dedup:
            return (self,)
        return tuple(
            BatchSchema(tuple(replace(column, dedup=None) for column in self.columns if column.dedup == name))
            for name in (None, *self.dedup)
        )

    @cached_property
    def expanded(self) -> BatchSchema:
        """The schema of the same features without deduplication."""
        if not self.dedup:
            return self
        widths: dict[str, int] = {}
        columns = []
        for column in self.columns:
            offset = widths.get(column.group, 0)
            widths[column.group] = offset + column.width
            columns.append(replace(column, offset=offset, dedup=None))
        return BatchSchema(tuple(columns))

    def to_json(self) -> str:
        """The columns as `from_json` reads them, without `dedup` where there is none, and `lookups` below two."""
        facts = [asdict(column) for column in self.columns]
        omitted = {"dedup": (None,), "lookups": (0, 1)}
        return json.dumps(
            [{key: value for key, value in each.items() if value not in omitted.get(key, ())} for each in facts]
        )

    @classmethod
    def from_json(cls, content: str) -> BatchSchema:
        """The schema whose `to_json` is this content."""
        columns = json.loads(content)
        return cls(tuple(SlotColumn(**{"lookups": int(column["looks_up"]), **column}) for column in columns))


class SlotHeader(NamedTuple):
    """The integers at a slot's start."""

    epoch: int
    step: int
    rows: int
    nbytes: int
    ipc_bytes: int
    values: tuple[int, ...]  # per sparse feature, in memory order
    fixed: tuple[bool, ...]  # per extra: a fixed-width array here (else in the IPC stream)
    unique: tuple[int, ...] = ()  # unique rows of each deduplicated group


class MatrixOffsets(NamedTuple):
    """Byte offsets of the sections whose sizes follow from the number of rows, and the end of the last of them."""

    rows: int
    dense: int
    categorical: int
    labels: int
    valid: int
    lengths: int
    offsets: int
    end: int
    gaps: tuple[tuple[int, int], ...]


class GroupPlacement(NamedTuple):
    """Byte offsets of a deduplicated group's matrices from the slot's start."""

    inverse: int
    dense: int
    categorical: int


class Placement(NamedTuple):
    """Byte offsets of each section from the slot's start; in `extra`, None for columns in the IPC stream."""

    matrices: MatrixOffsets
    values: tuple[int, ...]
    weights: tuple[int | None, ...]  # per sparse feature
    extra: tuple[int | None, ...]
    ipc: int
    nbytes: int
    gaps: tuple[tuple[int, int], ...]  # bytes between sections
    groups: tuple[GroupPlacement, ...] = ()


_NO_BOUNDS: Mapping[int, int] = {}


class SlotLayout:
    """The offsets of one schema's slots.

    parts: the rows of a batch, and the unique rows of each deduplicated group. width: of the matrices of plain rows.
    sparse_features: the trainer's choice for torchrec, which changes no offset. bounds: of buckets, by the rows of
    their batches; empty without buckets.
    """

    def __init__(
        self,
        schema: BatchSchema,
        sparse_features: SparseFeatures | None = None,
        bounds: Mapping[int, int] = _NO_BOUNDS,
    ) -> None:
        self.schema = schema
        self.sparse_features = sparse_features or SparseFeatures()
        self.bounds = bounds
        self.sparse = schema.sparse
        places = {column.name: index for index, column in enumerate(self.sparse)}
        self.parts = tuple(SlotPart(part, places) for part in schema.parts)
        self.part_of = tuple(
            0 if column.dedup is None else 1 + schema.dedup.index(column.dedup) for column in self.sparse
        )
        self.width = self.parts[0].width
        self.extra = schema.group("extra")
        # Names in the order of pipeline.yaml, each with its index in memory order.
        self.sparse_index = places
        self.sparse_names = tuple((column.name, places[column.name]) for column in schema.group("sparse"))
        self.sparse_bytes = tuple(np.dtype(column.dtype).itemsize for column in self.sparse)  # of a value
        self.sparse_runs = _runs([column.dtype for column in self.sparse])
        self.weighted = tuple(index for index, column in enumerate(self.sparse) if column.weighted)
        self.header_words = len(_HEADER) + len(self.sparse) + len(self.extra) + len(schema.dedup)
        self.header_struct = struct.Struct(f"<{self.header_words}q")
        self._extra_bytes = tuple(np.dtype(column.dtype).itemsize if column.dtype else 0 for column in self.extra)
        # Of the last number of rows: nearly always that of the next batch.
        self._last_matrices = self._place_matrices(0)

    def place_matrices(self, rows: int) -> MatrixOffsets:
        """Offsets of the sections before the values: the same for every batch of that many rows, unless features are
        deduplicated; then only those up to `lengths` are right."""
        offsets = self._last_matrices
        if offsets.rows != rows:
            self._last_matrices = offsets = self._place_matrices(rows)
        return offsets

    def list_rows(self, rows: int, unique: Sequence[int]) -> list[int]:
        """The rows of each sparse feature: those of the batch, or the unique ones of its group."""
        of_part = (rows, *unique)
        return [of_part[part] for part in self.part_of]

    def _place_matrices(self, rows: int, list_rows: int | None = None) -> MatrixOffsets:
        if list_rows is None:
            list_rows = rows * len(self.sparse)
        sections = _Sections(8 * self.header_words)
        return MatrixOffsets(
            rows=rows,
            dense=sections.add(4 * rows * self.width["dense"]),
            categorical=sections.add(8 * rows * self.width["categorical"]),
            labels=sections.add(4 * rows * self.width["label"]),
            valid=sections.add(rows),
            lengths=sections.add(4 * list_rows),
            offsets=sections.add(8 * (list_rows + len(self.sparse))),
            end=sections.end,
            gaps=tuple(sections.gaps),
        )

    def place(
        self, rows: int, values: Sequence[int], fixed: Sequence[bool], ipc_bytes: int, unique: Sequence[int] = ()
    ) -> Placement:
        """Offsets for a batch of `rows` rows, and unique rows per group, with that many values per sparse feature."""
        if unique:
            matrices = self._place_matrices(rows, sum(self.list_rows(rows, unique)))
        else:
            matrices = self.place_matrices(rows)
        sections = _Sections(matrices.end, matrices.gaps)
        starts: list[int] = []
        for dtype, run in self.sparse_runs:
            end, size = sections.add(0), dtype.itemsize
            for count in values[run]:
                starts.append(end)
                end += count * size
            sections.end = end
        weights: list[int | None] = [None] * len(self.sparse)
        if self.weighted:
            end = sections.add(0)
            for index in self.weighted:
                weights[index] = end
                end += 4 * values[index]
            sections.end = end
        extra: tuple[int | None, ...] = ()
        if self.extra:
            sizes = zip(self._extra_bytes, fixed, strict=True)
            extra = tuple(sections.add(rows * size) if is_fixed else None for size, is_fixed in sizes)
        ipc = sections.add(ipc_bytes)
        groups = tuple(
            GroupPlacement(
                inverse=sections.add(4 * rows),
                dense=sections.add(4 * count * part.width["dense"]),
                categorical=sections.add(8 * count * part.width["categorical"]),
            )
            for part, count in zip(self.parts[1:], unique, strict=True)
        )
        sections.add(0)
        return Placement(
            matrices, tuple(starts), tuple(weights), extra, ipc, sections.end, tuple(sections.gaps), groups
        )

    def place_header(self, header: SlotHeader) -> Placement:
        return self.place(header.rows, header.values, header.fixed, header.ipc_bytes, header.unique)

    def header_to_words(self, header: SlotHeader) -> list[int]:
        words = [MAGIC, header.epoch, header.step, header.rows, header.nbytes, header.ipc_bytes]
        return [*words, *header.values, *(int(fixed) for fixed in header.fixed), *header.unique]

    def header_from_words(self, words: Sequence[int]) -> SlotHeader:
        if words[0] != MAGIC:
            raise AssertionError(f"not a slot of this layout: got {words[0]:#x}, expected {MAGIC:#x}")
        _, epoch, step, rows, nbytes, ipc_bytes = words[: len(_HEADER)]
        features = len(_HEADER) + len(self.sparse)
        extras = features + len(self.extra)
        fixed = tuple(map(bool, words[features:extras]))
        values, unique = tuple(words[len(_HEADER) : features]), tuple(words[extras : self.header_words])
        return SlotHeader(epoch, step, rows, nbytes, ipc_bytes, values, fixed, unique)


class SlotPart:
    """The columns whose rows are those of a batch, or the unique ones of a deduplicated group.

    width: of each matrix. sparse: for each of its sparse features, in its own memory order, the slot's index of it.
    """

    def __init__(self, schema: BatchSchema, places: Mapping[str, int]) -> None:
        self.width = {group: sum(column.width for column in schema.group(group)) for group in GROUPS}
        self.sparse = tuple(places[column.name] for column in schema.sparse)


def _runs(dtypes: Sequence[str]) -> tuple[tuple[np.dtype[Any], slice], ...]:
    """Runs of equal neighbours: the sparse features whose values lie back to back."""
    # int64, int64, float32 -> (int64, [0, 2)), (float32, [2, 3))
    starts = [index for index, dtype in enumerate(dtypes) if index == 0 or dtype != dtypes[index - 1]]
    return tuple((np.dtype(dtypes[first]), slice(first, stop)) for first, stop in pairwise([*starts, len(dtypes)]))


class _Sections:
    """Aligned sections one after the other: the end of the last, and the gaps between them."""

    def __init__(self, end: int, gaps: Iterable[tuple[int, int]] = ()) -> None:
        self.end = end
        self.gaps = [*gaps]

    def add(self, nbytes: int) -> int:
        """The start of another section."""
        # After 70 bytes, 8 more begin at 128: they end at 136, and (70, 128) is a gap.
        start = -(-self.end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if start > self.end:
            self.gaps.append((self.end, start))
        self.end = start + nbytes
        return start
