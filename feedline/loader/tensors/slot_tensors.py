"""The tensors of a slot's sections: views of its bytes, created on first use.

Runs in: the trainer, and wherever `Pipeline.batches` is iterated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from feedline.dataclass import dataclass
from feedline.errors import FeedlineError
from feedline.loader.encoding.layout import BatchSchema, MatrixOffsets, Placement, SlotHeader, SlotLayout
from feedline.loader.encoding.slot import Buffer, read_header
from feedline.loader.ring.pinning import events_on_all
from feedline.native.ring import Lease

# --------------------------------------------------------------------------------------------------------------------
# The bytes of a slot on another device, in one piece, or with the lists in memory of their own. torchrec's train
# pipelines can free the memory of a KeyedJaggedTensor as soon as its values are on their way to other ranks, by
# resizing the storage of its tensors. Whatever shares the storage is freed, too. So where torchrec is imported,
# lengths, offsets, values and weights of all lists are a piece of their own.


class DeviceBytes:
    """A slot's bytes as pieces that follow each other, each in a storage of its own."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: Sequence[torch.Tensor]) -> None:
        self.pieces = tuple(pieces)

    @property
    def device(self) -> torch.device:
        return self.pieces[0].device

    @property
    def lists_apart(self) -> bool:
        """Whether the lists are a piece of their own."""
        return len(self.pieces) > 1

    def at(self, start: int, nbytes: int) -> torch.Tensor:
        """The bytes of a section, which lies within one piece: uint8 [nbytes], a view."""
        for piece in self.pieces:
            if start + nbytes <= len(piece):
                _refuse_freed(piece)
                return piece[start : start + nbytes]
            start -= len(piece)
        raise AssertionError("a section lies beyond the slot")

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory until the work queued on a stream is done."""
        for piece in self.pieces:
            if piece.untyped_storage().nbytes():
                piece.record_stream(stream)

    def clone(self) -> DeviceBytes:
        """A copy on the same device."""
        for piece in self.pieces:
            _refuse_freed(piece)
        return DeviceBytes([piece.clone() for piece in self.pieces])

    def whole(self) -> torch.Tensor:
        """All bytes in one tensor on the CPU: a copy."""
        for piece in self.pieces:
            _refuse_freed(piece)
        copies = [piece.cpu() for piece in self.pieces]
        return copies[0] if len(copies) == 1 else torch.cat(copies)


def cut_pieces(whole: torch.Tensor, ends: Sequence[int]) -> list[torch.Tensor]:
    """Pieces of a slot's bytes, as views, up to each of these ends and to the slot's; empty ones are left out."""
    starts, stops = (0, *ends), (*ends, len(whole))
    return [whole[start:stop] for start, stop in zip(starts, stops, strict=True) if start < stop]


def copy_pieces(
    pieces: Sequence[torch.Tensor], device: torch.device, *, non_blocking: bool, stream: torch.cuda.Stream | None
) -> DeviceBytes:
    """Copies on a device. stream: the copies run on it, into memory that belongs to the current stream."""
    for piece in pieces:
        _refuse_freed(piece)
    if stream is None:
        return DeviceBytes([piece.to(device, non_blocking=non_blocking) for piece in pieces])
    module = torch.get_device_module(device)
    copies = [torch.empty_like(piece, device=device) for piece in pieces]
    current = module.current_stream(device)
    with module.stream(stream):
        stream.wait_stream(current)  # earlier work there may still use the memory
        for copy, piece in zip(copies, pieces, strict=True):
            copy.copy_(piece, non_blocking=non_blocking)
    return DeviceBytes(copies)


def _refuse_freed(piece: torch.Tensor) -> None:
    if len(piece) and not piece.is_meta and not piece.untyped_storage().nbytes():
        raise FeedlineError(
            "the batch's lists are gone: torchrec's train pipeline has freed their memory, as it does with "
            "free_features_storage_early or clear_data_dist_inputs. Read lists in the sharded modules only, or leave "
            "both options off"
        )


# --------------------------------------------------------------------------------------------------------------------

T = TypeVar("T")

FLOAT32, INT32, INT64 = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.int64)


@dataclass(slots=True, eq=False, repr=False)
class Sparse:
    """One ragged feature of a batch: `values` [V], `lengths` int32 [B], `offsets` int64 [B + 1] from 0.

    Row i holds `values[offsets[i]:offsets[i + 1]]`, as `torch.nn.EmbeddingBag(values, offsets[:-1])` expects.
    `weights` float32 [V] of a weighted feature are its `per_sample_weights`; None for other features.

    Examples:
        >>> lists = Sparse(torch.tensor([7, 8, 9]), torch.tensor([2, 0, 1]), torch.tensor([0, 2, 2, 3]))
        >>> lists.to_padded(2)
        tensor([[7, 8],
                [0, 0],
                [9, 0]])
    """

    values: torch.Tensor
    lengths: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def to_padded(self, max_len: int, fill: float = 0) -> torch.Tensor:
        """[B, max_len]: a row's values, then `fill`. Longer lists are cut. With `batch.buckets`, `batch.bound` is the
        length that all ranks need."""
        # values [7, 8, 9], offsets [0, 2, 2, 3], max_len 2: index [[0, 1], [2, 2], [2, 2]] -> [[7, 8], [0, 0], [9, 0]]
        place = torch.arange(max_len, device=self.values.device)
        if not len(self.values):
            return self.values.new_full((len(self), max_len), fill)
        index = (self.offsets[:-1, None] + place).clamp_(max=len(self.values) - 1)
        return torch.where(place < self.lengths[:, None], self.values[index], fill)

    def __repr__(self) -> str:
        weighted = ", weighted" if self.weights is not None else ""
        return f"Sparse(rows={len(self.lengths)}, values={tuple(self.values.shape)} {self.values.dtype}{weighted})"


class Features(dict[str, T]):
    """Features of a batch by name; a name that is missing raises KeyError with the names there are."""

    __slots__ = ()

    def __missing__(self, name: str) -> T:
        raise KeyError(f"there is no feature {name!r} here: expected one of {', '.join(self) or '(none)'}")


# --------------------------------------------------------------------------------------------------------------------
# Deduplicated groups: the values of unique rows, and the unique row of each row of the batch. The rows of a batch that
# repeat the row above them in all features of a group share one unique row. A model computes what depends on the group
# alone for the U unique rows, and expands the result: `result.index_select(0, group.inverse)`.


class InverseSparse(Sparse):
    """One ragged feature of a deduplicated group: `values`, `lengths` int32 [U], `offsets` int64 [U + 1] and `weights`
    as of `Sparse`, of unique rows; `inverse` int32 [B]: row i of the batch holds the list of unique row `inverse[i]`.

    Examples:
        >>> offsets, inverse = torch.tensor([0, 2, 3]), torch.tensor([0, 0, 1])
        >>> lists = InverseSparse(torch.tensor([7, 8, 9]), torch.tensor([2, 1]), offsets, None, inverse)
        >>> lists.expand().values
        tensor([7, 8, 7, 8, 9])
    """

    __slots__ = ("inverse",)

    def __init__(
        self,
        values: torch.Tensor,
        lengths: torch.Tensor,
        offsets: torch.Tensor,
        weights: torch.Tensor | None,
        inverse: torch.Tensor,
    ) -> None:
        super().__init__(values, lengths, offsets, weights)
        self.inverse = inverse

    @property
    def unique_rows(self) -> int:
        """U."""
        return len(self.lengths)

    def expand(self) -> Sparse:
        """The feature of all B rows: a jagged index select, without padding."""
        # values [7, 8, 9], offsets [0, 2, 3], inverse [0, 0, 1]: all rows have the offsets [0, 2, 4, 5], and with the
        # shifts [0, -2, -2] the index [0, 1, 0, 1, 2] and the values [7, 8, 7, 8, 9].
        inverse = self.inverse.long()
        lengths = self.lengths.index_select(0, inverse)
        offsets = torch.zeros(len(inverse) + 1, dtype=torch.int64, device=lengths.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        shifts = self.offsets.index_select(0, inverse) - offsets[:-1]
        index = torch.repeat_interleave(shifts, lengths.long(), output_size=int(offsets[-1]))
        index += torch.arange(len(index), device=index.device)
        weights = None if self.weights is None else self.weights.index_select(0, index)
        return Sparse(self.values.index_select(0, index), lengths, offsets, weights)

    def __len__(self) -> int:
        return len(self.inverse)

    def __repr__(self) -> str:
        weighted = ", weighted" if self.weights is not None else ""
        return (
            f"InverseSparse(rows={len(self.inverse)}, unique_rows={self.unique_rows}, "
            f"values={tuple(self.values.shape)} {self.values.dtype}{weighted})"
        )


@dataclass(frozen=True, slots=True)
class InverseColumn:
    """One scalar or vector feature of a deduplicated group: `values` [U] or [U, width], `inverse` int32 [B].

    Examples:
        >>> InverseColumn(torch.tensor([5.0, 6.0]), torch.tensor([0, 0, 1])).expand()
        tensor([5., 5., 6.])
    """

    values: torch.Tensor
    inverse: torch.Tensor

    @property
    def unique_rows(self) -> int:
        """U."""
        return len(self.values)

    def expand(self) -> torch.Tensor:
        """The feature of all B rows."""
        return self.values.index_select(0, self.inverse.long())

    def __len__(self) -> int:
        return len(self.inverse)


@dataclass(frozen=True, slots=True, eq=False)
class DedupGroup:
    """A deduplicated group of a batch: the features that repeat together.

    inverse: int32 [B], which never falls: row i of the batch holds unique row `inverse[i]`. dense: float32 [U, D] and
    categorical: int64 [U, K], of the group's own columns in the order of pipeline.yaml. sparse[name]: `InverseSparse`.

    Examples:
        >>> inverse, none = torch.tensor([0, 0, 1]), torch.empty(2, 0)
        >>> group = DedupGroup(name="user", inverse=inverse, dense=none, categorical=none.long(), sparse={})
        >>> group.unique_rows, group.expand(torch.tensor([[1.0], [2.0]])).shape
        (2, torch.Size([3, 1]))
    """

    name: str
    inverse: torch.Tensor
    dense: torch.Tensor
    categorical: torch.Tensor
    sparse: Mapping[str, InverseSparse]

    @property
    def unique_rows(self) -> int:
        """U."""
        return len(self.dense)

    def expand(self, unique: torch.Tensor) -> torch.Tensor:
        """What was computed for the unique rows, [U, ...], for all rows, [B, ...]."""
        return unique.index_select(0, self.inverse.long())

    def __repr__(self) -> str:
        return f"DedupGroup({self.name!r}, rows={len(self.inverse)}, unique_rows={self.unique_rows})"


def whole_matrix(
    own: torch.Tensor, groups: Mapping[str, DedupGroup], schema: BatchSchema, kind: Literal["dense", "categorical"]
) -> torch.Tensor:
    """The matrix [B, columns] of all features of a kind in the order of pipeline.yaml, in memory as it is without
    groups. own: that of the features in no group, returned where there is no other."""
    if not groups:
        return own
    matrices = {None: own} | {name: group.expand(getattr(group, kind)) for name, group in groups.items()}
    columns = [matrices[column.dedup][:, column.offset : column.offset + column.width] for column in schema.group(kind)]
    if not columns:
        return own
    return torch.cat(columns, 1) if kind == "dense" else torch.cat([column.t() for column in columns]).t()


# --------------------------------------------------------------------------------------------------------------------


class SlotTensors:
    """The matrices and ragged features of a batch, over a slot's bytes in this process or a copy on another device."""

    _device_bytes: DeviceBytes | None = None  # of a batch on another device, which has no root

    def __init__(
        self, layout: SlotLayout, epoch: int, step: int, rows: int, nbytes: int, root: Buffer | None = None
    ) -> None:
        """The batch in the slot with these bytes, whose header is read when it is needed.

        root: an array, or the lease of the slot. nbytes: bytes of the slot, including padding between sections.
        """
        self._layout = layout
        self.epoch = epoch
        self.step = step
        self.rows = rows
        self.nbytes = nbytes
        self._root = root
        self._lease: Lease | None = root if hasattr(root, "fences") else None
        # Whether tensors over the slot need no fence, or have one.
        self._exposed = self._lease is None or not self._lease.generation.pinned

    @property
    def bound(self) -> int | None:
        """The greatest length of the rows' bucket (`batch.buckets`), the same on all ranks; None without buckets."""
        return self._layout.bounds.get(self.rows)

    @property
    def schema(self) -> BatchSchema:
        """Every column of the batch."""
        return self._layout.schema

    def keys(self) -> tuple[str, ...]:
        """The names of all features, in the order of pipeline.yaml."""
        return tuple(column.name for column in self.schema)

    def __len__(self) -> int:
        return self.rows

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return torch.device("cpu") if self._device_bytes is None else self._device_bytes.device

    @cached_property
    def dense(self) -> torch.Tensor:
        """float32 [B, D]."""
        return self._tensor(FLOAT32, self._matrices.dense, (self.rows, self._layout.width["dense"]))

    @cached_property
    def labels(self) -> torch.Tensor:
        """float32 [B, L]."""
        return self._tensor(FLOAT32, self._matrices.labels, (self.rows, self._layout.width["label"]))

    @cached_property
    def categorical(self) -> torch.Tensor:
        """int64 [B, K]; each column is contiguous."""
        shape = self.rows, self._layout.width["categorical"]
        return self._tensor(INT64, self._matrices.categorical, shape, (8, 8 * self.rows))

    @cached_property
    def valid(self) -> torch.Tensor:
        """bool [B]: False for padding."""
        return self._tensor(np.dtype(np.bool_), self._matrices.valid, (self.rows,))

    @cached_property
    def sparse(self) -> Mapping[str, Sparse]:
        """The ragged features by name, in the order of pipeline.yaml."""
        lists = self._lists()
        features = Features({name: Sparse(*lists[index]) for name, index in self._layout.sparse_names})
        for group in self.groups.values():
            features.update(group.sparse)
        return features

    @cached_property
    def groups(self) -> Mapping[str, DedupGroup]:
        """The deduplicated groups by name."""
        layout = self._layout
        if not layout.schema.dedup:
            return {}
        lists, groups = self._lists(), {}
        for name, part, place, unique in zip(
            layout.schema.dedup, layout.parts[1:], self._placement.groups, self._header.unique, strict=True
        ):
            inverse = self._tensor(INT32, place.inverse, (self.rows,))
            ids = unique, part.width["categorical"]
            groups[name] = DedupGroup(
                name=name,
                inverse=inverse,
                dense=self._tensor(FLOAT32, place.dense, (unique, part.width["dense"])),
                categorical=self._tensor(INT64, place.categorical, ids, (8, 8 * unique)),
                sparse={layout.sparse[index].name: InverseSparse(*lists[index], inverse) for index in part.sparse},
            )
        return groups

    @property
    def all_dense(self) -> torch.Tensor:
        """float32 [B, D]: `dense` with the columns of groups, as without deduplication; a copy if there are groups."""
        return whole_matrix(self.dense, self.groups, self.schema, "dense")

    @property
    def all_categorical(self) -> torch.Tensor:
        """int64 [B, K]: `categorical` with the columns of groups, as without deduplication."""
        return whole_matrix(self.categorical, self.groups, self.schema, "categorical")

    # -- making tensors -------------------------------------------------------------------------------------------

    @cached_property
    def _header(self) -> SlotHeader:
        return read_header(self._layout, self._root)

    @cached_property
    def _placement(self) -> Placement:
        """The offsets of all sections."""
        return self._layout.place_header(self._header)

    @property
    def _matrices(self) -> MatrixOffsets:
        """The offsets of the sections before the lists, for which the header is not needed."""
        return self._layout.place_matrices(self.rows)

    def _tensor(
        self, dtype: np.dtype[Any], start: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None
    ) -> torch.Tensor:
        """A tensor over the slot's bytes, with its own version counter: no view of another tensor.

        strides: in bytes. Made from an array, whose base is the root: a view made by torch costs several times as much.
        """
        if self._root is None:
            return self._tensor_on_device(dtype, start, shape, strides)
        if not self._exposed:
            self._expose()
        return torch.from_numpy(np.ndarray(shape, dtype, self._root, start, strides))

    def _tensor_on_device(
        self, dtype: np.dtype[Any], start: int, shape: tuple[int, ...], strides: tuple[int, ...] | None
    ) -> torch.Tensor:
        assert self._device_bytes is not None
        count, kind = math.prod(shape), getattr(torch, dtype.name)
        if not count:
            return torch.empty(shape, dtype=kind, device=self.device)
        flat = self._device_bytes.at(start, count * dtype.itemsize).view(kind)
        tensor = flat.view(shape) if strides is None else flat.view(shape[::-1]).t()
        return tensor.data  # its own version counter

    def _expose(self) -> None:
        """Fence the slot: the user may copy host tensors to any GPU without our knowledge."""
        self._exposed = True
        assert self._lease is not None
        self._lease.fences.append(events_on_all)

    def _lists(self) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]]:
        """Values, lengths, offsets and weights of each ragged feature, in memory order."""
        layout, sizes, placement = self._layout, self._header.values, self._placement
        if not layout.sparse:
            return []

        def split(dtype: np.dtype[Any], start: int, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
            """1-D tensors of these sizes that lie back to back; their version counters are not shared."""
            parts: Sequence[torch.Tensor]
            parts = torch.unsafe_split_with_sizes(self._tensor(dtype, start, (sum(sizes),)), list(sizes))
            return parts

        rows = layout.list_rows(self.rows, self._header.unique)
        lengths = split(INT32, placement.matrices.lengths, rows)
        offsets = split(INT64, placement.matrices.offsets, [count + 1 for count in rows])
        values = [
            part for dtype, run in layout.sparse_runs for part in split(dtype, placement.values[run.start], sizes[run])
        ]
        weights: list[torch.Tensor | None] = [None] * len(rows)
        if layout.weighted:
            start = placement.weights[layout.weighted[0]] or 0
            parts = split(FLOAT32, start, [sizes[index] for index in layout.weighted])
            for index, part in zip(layout.weighted, parts, strict=True):
                weights[index] = part
        return list(zip(values, lengths, offsets, weights, strict=True))
