"""The tensors of a slot's sections: views of its bytes, created on first use.

Runs in: the trainer, and wherever `Pipeline.batches` is iterated. A model's step evicts this code from the caches: each
function called and each view made by torch costs microseconds, so tensors are made from arrays over the slot.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from feedline.errors import FeedlineError
from feedline.loader.encoding.layout import ALIGNMENT_BYTES, BatchSchema, Placement, SlotHeader, SlotLayout
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

FLOAT32, INT32, INT64 = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.int64)


@dataclass(slots=True, eq=False, repr=False)
class Sparse:
    """One ragged feature of a batch: `values` [V], `lengths` int32 [B], `offsets` int64 [B + 1] from 0.

    Row i holds `values[offsets[i]:offsets[i + 1]]`, as `torch.nn.EmbeddingBag(values, offsets[:-1])` expects.
    `weights` float32 [V] of a weighted feature are its `per_sample_weights`; None for other features.
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
        place = torch.arange(max_len, device=self.values.device)
        if not len(self.values):
            return self.values.new_full((len(self), max_len), fill)
        index = (self.offsets[:-1, None] + place).clamp_(max=len(self.values) - 1)
        return torch.where(place < self.lengths[:, None], self.values[index], fill)

    def __repr__(self) -> str:
        weighted = ", weighted" if self.weights is not None else ""
        return f"Sparse(rows={len(self.lengths)}, values={tuple(self.values.shape)} {self.values.dtype}{weighted})"


class Features(dict[str, Sparse]):
    """The ragged features of a batch by name; a name that is missing raises KeyError with the names there are."""

    __slots__ = ()

    def __missing__(self, name: str) -> Sparse:
        raise missing_feature(name, self)


# More ragged features than these are split off one tensor per section: 0.54 ms instead of 0.64 for 46 of them, but 0.13
# instead of 0.09 for 6.
_FEW = 16


class SlotTensors:
    """The matrices and ragged features of a batch, over a slot's bytes in this process or a copy on another device."""

    # Created on first use.
    _header: SlotHeader | None = None
    _placement: Placement | None = None
    _dense: torch.Tensor | None = None
    _categorical: torch.Tensor | None = None
    _labels: torch.Tensor | None = None
    _valid: torch.Tensor | None = None
    _sparse: Features | None = None
    _exposed = True  # whether tensors over the slot need no fence, or have one
    # Of a batch on another device, without a root.
    _device_bytes: DeviceBytes | None = None

    def __init__(
        self,
        layout: SlotLayout,
        epoch: int,
        step: int,
        rows: int,
        nbytes: int,
        root: Buffer | None = None,
        lease: Lease | None = None,
    ) -> None:
        """The batch in the slot with these bytes, whose header is read when it is needed.

        root: an array, or the lease of the slot, which is then given as lease, too.
        nbytes: bytes of the slot, including padding between sections.
        """
        self._layout = layout
        self.epoch = epoch
        self.step = step
        self.rows = rows
        self.nbytes = nbytes
        self._root = root
        self._lease = lease
        if lease is not None and lease.generation.pinned:
            self._exposed = False

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

    def __repr__(self) -> str:
        return (
            f"Batch(epoch={self.epoch}, step={self.step}, rows={self.rows}, bytes={self.nbytes}, device={self.device})"
        )

    @property
    def dense(self) -> torch.Tensor:
        """float32 [B, D]."""
        tensor = self._dense
        if tensor is None:
            layout, rows = self._layout, self.rows
            places = layout.last_matrices
            if places.rows != rows:
                places = layout.place_matrices(rows)
            self._dense = tensor = self._tensor(FLOAT32, places.dense, (rows, layout.width["dense"]))
        return tensor

    @property
    def labels(self) -> torch.Tensor:
        """float32 [B, L]."""
        tensor = self._labels
        if tensor is None:
            layout, rows = self._layout, self.rows
            places = layout.last_matrices
            if places.rows != rows:
                places = layout.place_matrices(rows)
            self._labels = tensor = self._tensor(FLOAT32, places.labels, (rows, layout.width["label"]))
        return tensor

    @property
    def categorical(self) -> torch.Tensor:
        """int64 [B, K]; each column is contiguous."""
        tensor = self._categorical
        if tensor is None:
            layout, rows = self._layout, self.rows
            places = layout.last_matrices
            if places.rows != rows:
                places = layout.place_matrices(rows)
            shape = rows, layout.width["categorical"]
            self._categorical = tensor = self._tensor(INT64, places.categorical, shape, (8, 8 * rows))
        return tensor

    @property
    def valid(self) -> torch.Tensor:
        """bool [B]: False for padding."""
        tensor = self._valid
        if tensor is None:
            start = self._layout.place_matrices(self.rows).valid
            self._valid = tensor = self._tensor(np.dtype(np.bool_), start, (self.rows,))
        return tensor

    @property
    def sparse(self) -> Mapping[str, Sparse]:
        """The ragged features by name, in the order of pipeline.yaml."""
        if self._sparse is None:
            self._sparse = self._sparse_features()
        return self._sparse

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self._device_bytes is None else self._device_bytes.device

    # -- making tensors -------------------------------------------------------------------------------------------

    def _read_header(self) -> SlotHeader:
        if self._header is None:
            self._header = read_header(self._layout, self._root)
        return self._header

    def _place(self) -> Placement:
        """The offsets of all sections."""
        if self._placement is None:
            self._placement = self._layout.place_header(self._read_header())
        return self._placement

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

    def _split(self, dtype: np.dtype[Any], start: int, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        """1-D tensors of these sizes that lie back to back."""
        root = self._root
        if root is None or len(sizes) > _FEW:  # one call for all; their version counters are not shared either
            split: Sequence[torch.Tensor]
            split = torch.unsafe_split_with_sizes(self._tensor(dtype, start, (sum(sizes),)), list(sizes))
            return split
        if not self._exposed:
            self._expose()
        tensors, array, of_array, itemsize = [], np.ndarray, torch.from_numpy, dtype.itemsize
        for size in sizes:
            tensors.append(of_array(array(size, dtype, root, start)))
            start += size * itemsize
        return tensors

    def _sparse_features(self) -> Features:
        """All ragged features."""
        layout, root, rows = self._layout, self._root, self.rows
        if root is None or not layout.has_plain_lists or len(layout.sparse) > _FEW:
            lists = self._lists()
            return Features({name: Sparse(*lists[index]) for name, index in layout.sparse_names})
        # As `_lists`, without header and placement: those take as long as the tensors.
        if not self._exposed:
            self._expose()
        sizes = layout.header_struct.unpack_from(root)[layout.header_values]
        matrices = layout.last_matrices
        if matrices.rows != rows:
            matrices = layout.place_matrices(rows)
        lengths, offsets, end = matrices.lengths, matrices.offsets, matrices.end
        features, array, of_array = Features(layout.no_sparse), np.ndarray, torch.from_numpy
        for dtype, run in layout.sparse_runs:
            end = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            for column, size in zip(layout.sparse[run], sizes[run], strict=True):
                values = of_array(array(size, dtype, root, end))
                of_rows = of_array(array(rows, INT32, root, lengths))
                features[column.name] = Sparse(values, of_rows, of_array(array(rows + 1, INT64, root, offsets)))
                end, lengths, offsets = end + size * dtype.itemsize, lengths + 4 * rows, offsets + 8 * rows + 8
        return features

    def _lists(self) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]]:
        """Values, lengths, offsets and weights of each ragged feature, in memory order."""
        layout = self._layout
        count = len(layout.sparse)
        if not count:
            return []
        header, placement = self._read_header(), self._place()
        sizes, rows = header.values, layout.list_rows(self.rows, header.unique)
        lengths = self._split(INT32, placement.matrices.lengths, rows)
        offsets = self._split(INT64, placement.matrices.offsets, [each + 1 for each in rows])
        values: list[torch.Tensor] = []
        for dtype, run in layout.sparse_runs:
            values += self._split(dtype, placement.values[run.start], sizes[run])
        weights: list[torch.Tensor | None] = [None] * count
        if layout.weighted:
            start = placement.weights[layout.weighted[0]] or 0
            parts = self._split(FLOAT32, start, [sizes[index] for index in layout.weighted])
            for index, part in zip(layout.weighted, parts, strict=True):
                weights[index] = part
        return list(zip(values, lengths, offsets, weights, strict=True))


def missing_feature(name: str, names: Iterable[str]) -> KeyError:
    """The error for a name that is none of these."""
    return KeyError(f"there is no feature {name!r} here: expected one of {', '.join(names) or '(none)'}")
