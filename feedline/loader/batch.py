"""The tensors of a training step: views of a slot's bytes, created on first use.

Runs in: the trainer, and wherever `Pipeline.batches` is iterated. A `Batch` holds a lease on its slot, and each tensor
a reference to the slot's bytes, so a slot is written again only after its batch and all tensors are gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from feedline.loader.encoding.layout import BatchSchema, Placement, SlotColumn, SlotHeader, SlotLayout
from feedline.loader.encoding.row_digests import batch_digest, row_digests
from feedline.loader.encoding.slot import SlotArrays, encoded_rows, read_extras, read_header
from feedline.loader.ring.pinning import event_on, events_on_all
from feedline.loader.ring.slots import Lease

_TORCH = {
    "float32": torch.float32,
    "float64": torch.float64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "bool": torch.bool,
}
_FLOAT32, _INT32, _INT64 = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.int64)


class Sparse:
    """One ragged feature of a batch: `values` [V], `lengths` int32 [B], `offsets` int64 [B + 1] from 0.

    Row i holds `values[offsets[i]:offsets[i + 1]]`, as `torch.nn.EmbeddingBag(values, offsets[:-1])` expects.
    `weights` float32 [V] of a weighted feature are its `per_sample_weights`; None for other features.
    """

    __slots__ = ("lengths", "offsets", "values", "weights")

    def __init__(
        self,
        values: torch.Tensor,
        lengths: torch.Tensor,
        offsets: torch.Tensor,
        weights: torch.Tensor | None = None,
    ) -> None:
        self.values = values
        self.lengths = lengths
        self.offsets = offsets
        self.weights = weights

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        weighted = ", weighted" if self.weights is not None else ""
        return f"Sparse(rows={len(self.lengths)}, values={tuple(self.values.shape)} {self.values.dtype}{weighted})"


class _Features(dict[str, Sparse]):
    """The ragged features of a batch by name; a name that is missing raises KeyError with the names there are."""

    __slots__ = ()

    def __missing__(self, name: str) -> Sparse:
        raise _missing_feature(name, self)


class _Extras(Mapping[str, Any]):
    """A mapping whose values are created on first use, and cached in a dict of the batch.

    It refers to its batch, so the batch must not refer to it: a cycle would hold the batch and its slot until the next
    garbage collection.
    """

    __slots__ = ("_cache", "_make", "_names")

    def __init__(self, names: Mapping[str, int], make: Callable[[str], Any], cache: dict[str, Any]) -> None:
        self._names = names
        self._make = make
        self._cache = cache

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise _missing_feature(name, self._names)
        if name not in self._cache:
            self._cache[name] = self._make(name)
        return self._cache[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _missing_feature(name: str, names: Iterable[str]) -> KeyError:
    return KeyError(f"there is no feature {name!r} here: expected one of {', '.join(names) or '(none)'}")


class Batch:
    """B rows of every feature.

    dense: float32 [B, D], row-major. categorical: int64 [B, K], feature-major in memory: a column is contiguous, the
    matrix is not. labels: float32 [B, L]. sparse[name]: `Sparse`. extra[name]: a tensor for numbers without nulls
    (timestamps are int64, with their unit in the schema), else a pyarrow.Array. valid: bool [B], False for padding
    (tail: pad). `batch["price"]` is any feature by name. epoch, step: the position in the plan.

    Tensors are views of shared memory that is reused once nothing refers to them: to keep a batch for more than a few
    steps, keep `batch.clone()`.
    """

    # Created on first use.
    _header: SlotHeader | None = None
    _placement: Placement | None = None
    _dense: torch.Tensor | None = None
    _categorical: torch.Tensor | None = None
    _labels: torch.Tensor | None = None
    _valid: torch.Tensor | None = None
    _sparse: _Features | None = None
    _fixed_extras: dict[str, torch.Tensor] | None = None
    _arrow_extras: dict[str, pa.Array] | None = None
    _exposed = False  # whether there are tensors over the slot
    # Of a batch on another device, without a root.
    _device_bytes: torch.Tensor | None = None

    def __init__(
        self,
        layout: SlotLayout,
        epoch: int,
        step: int,
        rows: int,
        nbytes: int,
        root: NDArray[np.uint8] | None = None,
        lease: Lease | None = None,
    ) -> None:
        """The batch in the slot with these bytes, whose header is read when it is needed.

        nbytes: bytes of the slot, including padding between sections.
        """
        self._layout = layout
        self.epoch = epoch
        self.step = step
        self.rows = rows
        self.nbytes = nbytes
        self._root = root
        self._lease = lease

    @classmethod
    def over(cls, layout: SlotLayout, root: NDArray[np.uint8], lease: Lease | None = None) -> Batch:
        """The batch whose slot's bytes are `root`."""
        header = read_header(layout, root)
        batch = cls(layout, header.epoch, header.step, header.rows, header.nbytes, root, lease)
        batch._header = header
        return batch

    # -- tensors --------------------------------------------------------------------------------------------------

    @property
    def dense(self) -> torch.Tensor:
        """float32 [B, D]."""
        tensor = self._dense
        if tensor is None:
            layout, rows = self._layout, self.rows
            start = layout.place_matrices(rows).dense
            self._dense = tensor = self._tensor(_FLOAT32, start, (rows, layout.width["dense"]))
        return tensor

    @property
    def labels(self) -> torch.Tensor:
        """float32 [B, L]."""
        tensor = self._labels
        if tensor is None:
            layout, rows = self._layout, self.rows
            start = layout.place_matrices(rows).labels
            self._labels = tensor = self._tensor(_FLOAT32, start, (rows, layout.width["label"]))
        return tensor

    @property
    def categorical(self) -> torch.Tensor:
        """int64 [B, K]; each column is contiguous."""
        tensor = self._categorical
        if tensor is None:
            layout, rows = self._layout, self.rows
            start = layout.place_matrices(rows).categorical
            shape = rows, layout.width["categorical"]
            self._categorical = tensor = self._tensor(_INT64, start, shape, (8, 8 * rows))
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
    def extra(self) -> Mapping[str, Any]:
        """Columns passed through: tensors or pyarrow.Arrays."""
        if self._fixed_extras is None:
            self._fixed_extras = {}
        return _Extras(self._layout.extra_index, self._extra, self._fixed_extras)

    def keyed_jagged(self, dtype: str = "int64") -> tuple[list[str], torch.Tensor, torch.Tensor]:
        """(keys, values, lengths) of the sparse features of one dtype, without a copy and without weights.

        The arguments of `torchrec.KeyedJaggedTensor(keys=, values=, lengths=)`: values by feature, lengths [F * B].
        """
        return self._key_by([index for index, column in enumerate(self._layout.sparse) if column.dtype == dtype], dtype)

    def weighted_keyed_jagged(self) -> tuple[list[str], torch.Tensor, torch.Tensor, torch.Tensor]:
        """(keys, values, weights, lengths) of the weighted sparse features, without a copy, for torchrec."""
        indices = [index for index, column in enumerate(self._layout.sparse) if column.weighted]
        keys, values, lengths = self._key_by(indices, "int64")
        start = self._place().weights[indices[0]] if indices else 0
        return keys, values, self._tensor(_FLOAT32, start or 0, (len(values),)), lengths

    def _key_by(self, indices: list[int], dtype: str) -> tuple[list[str], torch.Tensor, torch.Tensor]:
        """(keys, values, lengths) of sparse features that are neighbours in memory."""
        first = indices[0] if indices else 0
        placement = self._place()
        counts = self._read_header().values
        count = sum(counts[index] for index in indices)
        values = self._tensor(np.dtype(dtype), placement.values[first] if indices else 0, (count,))
        start = placement.matrices.lengths + 4 * self.rows * first
        lengths = self._tensor(_INT32, start, (self.rows * len(indices),))
        return [self._layout.sparse[index].name for index in indices], values, lengths

    def __getitem__(self, name: str) -> Any:
        if name not in self.schema:
            names = ", ".join(column.name for column in self.schema)
            raise KeyError(f"the batch has no feature {name!r}: expected one of {names}")
        column = self.schema[name]
        if column.group == "dense":
            return _columns(self.dense, column)
        if column.group == "categorical":
            return self.categorical[:, column.offset]
        if column.group == "label":
            return _columns(self.labels, column)
        return self.sparse[name] if column.group == "sparse" else self.extra[name]

    def to_dict(self) -> dict[str, Any]:
        """Every feature by name."""
        return {column.name: self[column.name] for column in self.schema}

    # -- facts ----------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> BatchSchema:
        return self._layout.schema

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self._device_bytes is None else self._device_bytes.device

    def is_pinned(self) -> bool:
        """Whether the memory is pinned, so that copies to a GPU can be asynchronous."""
        if self._root is None:
            return False
        return self._lease.pinned if self._lease is not None else bool(self._bytes().is_pinned())

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return (
            f"Batch(epoch={self.epoch}, step={self.step}, rows={self.rows}, bytes={self.nbytes}, device={self.device})"
        )

    # -- moving ---------------------------------------------------------------------------------------------------

    def to(self, device: torch.device | str | int, *, non_blocking: bool = False) -> Batch:
        """The batch on another device, in one copy. With non_blocking, the slot is held until the copy's CUDA event."""
        target = torch.device(device)
        if target.type == "cuda" and target.index is None:
            target = torch.device("cuda", torch.cuda.current_device())
        if target.type == self.device.type and target.index in (None, self.device.index):
            return self
        tensor = self._bytes().to(target, non_blocking=non_blocking)
        if target.type == "cuda" and self._lease is not None and self._lease.pinned:
            copied = event_on(tensor.device)
            self._lease.fences.append(lambda: [copied])
        return self._over(tensor)

    def clone(self) -> Batch:
        """A copy that does not hold the slot."""
        return self._over(self._bytes().clone())

    def pin_memory(self) -> Batch:
        """This batch if the ring is pinned or there is no CUDA, else a copy in pinned memory."""
        if self._root is None or self.is_pinned() or not torch.cuda.is_available():
            return self
        return self._over(self._bytes().pin_memory())

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Hold the batch's GPU memory or slot until the work queued on another stream is done."""
        if self._device_bytes is not None:
            self._device_bytes.record_stream(stream)
        elif self._lease is not None:
            self._lease.fences.append(lambda: [stream.record_event()])

    def _over(self, tensor: torch.Tensor) -> Batch:
        header = self._read_header()
        on_cpu = tensor.device.type == "cpu"
        batch = Batch(self._layout, self.epoch, self.step, self.rows, self.nbytes, tensor.numpy() if on_cpu else None)
        batch._header = header
        batch._device_bytes = None if on_cpu else tensor
        batch._arrow_extras = {name: _copy_array(array) for name, array in self._read_arrow_extras().items()}
        return batch

    def _bytes(self) -> torch.Tensor:
        if self._device_bytes is not None:
            return self._device_bytes
        return torch.frombuffer(self._root, dtype=torch.uint8, count=self.nbytes)

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
        count, kind = math.prod(shape), _TORCH[dtype.name]
        if not count:
            return torch.empty(shape, dtype=kind, device=self.device)
        flat = self._device_bytes[start : start + count * dtype.itemsize].view(kind)
        tensor = flat.view(shape) if strides is None else flat.view(shape[::-1]).t()
        return tensor.data  # its own version counter

    def _expose(self) -> None:
        """Fence the slot: the user may copy host tensors to any GPU without our knowledge."""
        self._exposed = True
        if self._lease is not None and self._lease.pinned:
            self._lease.fences.append(events_on_all)

    def _split(self, dtype: np.dtype[Any], start: int, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        """1-D tensors of these sizes that lie back to back."""
        root = self._root
        if root is None:  # one call costs a third of as many views; version counters are not shared either
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

    def _sparse_features(self) -> _Features:
        """All ragged features."""
        layout, rows = self._layout, self.rows
        count = len(layout.sparse)
        if not count:
            return _Features()
        placement, sizes = self._place(), self._read_header().values
        lengths = self._split(_INT32, placement.matrices.lengths, (rows,) * count)
        offsets = self._split(_INT64, placement.matrices.offsets, (rows + 1,) * count)
        values: list[torch.Tensor] = []
        for dtype, run in layout.sparse_runs:
            values += self._split(dtype, placement.values[run.start], sizes[run])
        weights: list[torch.Tensor | None] = [None] * count
        if layout.weighted:
            start = placement.weights[layout.weighted[0]] or 0
            parts = self._split(_FLOAT32, start, [sizes[index] for index in layout.weighted])
            for index, part in zip(layout.weighted, parts, strict=True):
                weights[index] = part
        return _Features(
            {name: Sparse(values[i], lengths[i], offsets[i], weights[i]) for name, i in layout.sparse_names}
        )

    def _extra(self, name: str) -> Any:
        start = self._place().extra[self._layout.extra_index[name]]
        if start is None:
            return self._read_arrow_extras()[name]
        return self._tensor(np.dtype(self.schema[name].dtype), start, (self.rows,))

    def _read_arrow_extras(self) -> dict[str, pa.Array]:
        if self._arrow_extras is None:
            self._arrow_extras = read_extras(self._layout, self._read_header(), pa.py_buffer(self._root))
        return self._arrow_extras


def _columns(matrix: torch.Tensor, column: SlotColumn) -> torch.Tensor:
    """A feature's column [B] of a matrix, or its columns [B, width] if it is a vector."""
    if column.width == 1:
        return matrix[:, column.offset]
    return matrix[:, column.offset : column.offset + column.width]


def _copy_array(array: pa.Array) -> pa.Array:
    """A copy that does not refer to the slot."""
    return pa.concat_arrays([array, array.slice(0, 0)]) if len(array) else pa.array([], type=array.type)


def digest_of(batch: Batch) -> str:
    """A digest of all features of all rows in their order, and of which are padding: 16 hexadecimal digits.

    The same on any device and for equal rows of any epoch and step; it reads the whole batch.
    """
    here = batch.to("cpu")
    root, layout = here._root, here._layout
    assert root is not None
    slot = SlotArrays(layout, here._read_header(), root)
    return batch_digest(row_digests(encoded_rows(layout, pa.py_buffer(root))), slot.valid.astype(np.bool_))
