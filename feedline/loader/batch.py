"""The tensors of a training step: views of a slot's bytes, made when they are first used.

Runs in: the trainer, and wherever `Pipeline.batches` is iterated. A `Batch` holds a lease on its slot; each tensor
holds the slot's bytes, so the slot is written again only after the batch and all its tensors are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from feedline.loader.encoding.layout import BatchSchema, Placement, SlotColumn, SlotHeader, SlotLayout
from feedline.loader.encoding.slot import read_extras, read_header
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


class Sparse:
    """One ragged feature of a batch: `values` [V], `lengths` int32 [B], `offsets` int64 [B + 1] from 0.

    Row i holds `values[offsets[i]:offsets[i + 1]]`, so that `torch.nn.EmbeddingBag(values, offsets[:-1])` fits. Of a
    weighted feature, `weights` float32 [V] is what `per_sample_weights` takes; else it is None.
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


class _ByName(Mapping[str, Any]):
    """A mapping whose values are made on first use, and kept in `made`, which belongs to the batch.

    It refers to its batch, so the batch must not refer to it: in a cycle, a batch and its slot would be held until the
    garbage collector comes.
    """

    __slots__ = ("_made", "_make", "_names")

    def __init__(self, names: tuple[str, ...], make: Callable[[str], Any], made: dict[str, Any]) -> None:
        self._names = names
        self._make = make
        self._made = made

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(f"no feature {name!r} here: expected one of {', '.join(self._names) or '(none)'}")
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Batch:
    """B rows of every feature.

    dense: float32 [B, D], row-major. categorical: int64 [B, K], feature-major in memory: a column is contiguous, the
    matrix is not. labels: float32 [B, L]. sparse[name]: `Sparse`. extra[name]: a tensor for numbers without nulls
    (timestamps are int64, their unit is in the schema), else a pyarrow.Array. valid: bool [B], False where a row only
    fills the batch up (tail: pad). `batch["price"]` gives any feature. epoch, step: the place in the plan.

    Tensors are views of shared memory that is reused once nothing refers to them: keep `batch.clone()`, not the batch,
    where it shall outlive a few steps.
    """

    def __init__(
        self,
        layout: SlotLayout,
        header: SlotHeader,
        *,
        root: NDArray[np.uint8] | None = None,
        moved: torch.Tensor | None = None,
        lease: Lease | None = None,
        streamed: dict[str, pa.Array] | None = None,
    ) -> None:
        self._layout = layout
        self._header = header
        self._placement: Placement = layout.place_header(header)
        self._root = root
        self._moved = moved
        self._lease = lease
        self._streamed = streamed
        self._made: dict[str, Any] = {}
        self._named: dict[str, Any] = {}  # of sparse and extra: no two features have the same name
        self._exposed = False

    @classmethod
    def over(cls, layout: SlotLayout, root: NDArray[np.uint8], lease: Lease | None = None) -> Batch:
        """The batch whose slot's bytes are `root`."""
        return cls(layout, read_header(layout, root), root=root, lease=lease)

    # -- tensors --------------------------------------------------------------------------------------------------

    @property
    def dense(self) -> torch.Tensor:
        """float32 [B, D]."""
        return self._matrix("dense", torch.float32, self._placement.dense, self._layout.width["dense"])

    @property
    def labels(self) -> torch.Tensor:
        """float32 [B, L]."""
        return self._matrix("labels", torch.float32, self._placement.labels, self._layout.width["label"])

    @property
    def categorical(self) -> torch.Tensor:
        """int64 [B, K]; each column is contiguous."""
        if "categorical" not in self._made:
            width = self._layout.width["categorical"]
            flat = self._section(torch.int64, self._placement.categorical, width * self.rows)
            self._made["categorical"] = flat.view(width, self.rows).t()
        tensor: torch.Tensor = self._made["categorical"]
        return tensor

    @property
    def valid(self) -> torch.Tensor:
        """bool [B]: False for padding."""
        return self._matrix("valid", torch.bool, self._placement.valid, 1).view(self.rows)

    @property
    def sparse(self) -> Mapping[str, Sparse]:
        """The ragged features by name, in the order of pipeline.yaml."""
        return self._by_name("sparse", self._sparse)

    @property
    def extra(self) -> Mapping[str, Any]:
        """Columns handed through: tensors or pyarrow.Arrays."""
        return self._by_name("extra", self._extra)

    def keyed_jagged(self, dtype: str = "int64") -> tuple[list[str], torch.Tensor, torch.Tensor]:
        """(keys, values, lengths) of the sparse features of one dtype, without a copy; weights are left out.

        What `torchrec.KeyedJaggedTensor(keys=, values=, lengths=)` takes: values feature by feature, lengths [F * B].
        """
        return self._key_by([place for place, column in enumerate(self._layout.sparse) if column.dtype == dtype], dtype)

    def weighted_keyed_jagged(self) -> tuple[list[str], torch.Tensor, torch.Tensor, torch.Tensor]:
        """(keys, values, weights, lengths) of the weighted sparse features, without a copy, for torchrec as well."""
        places = [place for place, column in enumerate(self._layout.sparse) if column.weighted]
        keys, values, lengths = self._key_by(places, "int64")
        start = self._placement.weights[places[0]] if places else 0
        return keys, values, self._section(torch.float32, start or 0, len(values)), lengths

    def _key_by(self, places: list[int], dtype: str) -> tuple[list[str], torch.Tensor, torch.Tensor]:
        """Neighbours among the sparse features as one."""
        first = places[0] if places else 0
        count = sum(self._header.values[place] for place in places)
        values = self._section(_TORCH[dtype], self._placement.values[first] if places else 0, count)
        start = self._placement.lengths + 4 * self.rows * first
        lengths = self._section(torch.int32, start, self.rows * len(places))
        return [self._layout.sparse[place].name for place in places], values, lengths

    def __getitem__(self, name: str) -> Any:
        if name not in self.schema:
            known = ", ".join(column.name for column in self.schema)
            raise KeyError(f"the batch has no feature {name!r}: expected one of {known}")
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
    def rows(self) -> int:
        return self._header.rows

    @property
    def epoch(self) -> int:
        return self._header.epoch

    @property
    def step(self) -> int:
        return self._header.step

    @property
    def nbytes(self) -> int:
        """Bytes of the slot, padding between sections included."""
        return self._header.nbytes

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self._moved is None else self._moved.device

    def is_pinned(self) -> bool:
        """Whether copies to a GPU can be asynchronous."""
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
        """The batch on another device, in one copy. With non_blocking, the slot waits for the copy's CUDA event."""
        target = torch.device(device)
        if target.type == "cuda" and target.index is None:
            target = torch.device("cuda", torch.cuda.current_device())
        if target.type == self.device.type and target.index in (None, self.device.index):
            return self
        moved = self._bytes().to(target, non_blocking=non_blocking)
        if target.type == "cuda" and self._lease is not None and self._lease.pinned:
            copied = event_on(moved.device)
            self._lease.fences.append(lambda: [copied])
        return self._over(moved)

    def clone(self) -> Batch:
        """A copy in memory of its own: the slot is free as soon as the original is gone."""
        return self._over(self._bytes().clone())

    def pin_memory(self) -> Batch:
        """Self where the ring is pinned (or there is no CUDA to pin for), else a copy in pinned memory."""
        if self._root is None or self.is_pinned() or not torch.cuda.is_available():
            return self
        return self._over(self._bytes().pin_memory())

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Say that another stream uses this batch: its GPU memory or slot is not reused before that is done."""
        if self._moved is not None:
            self._moved.record_stream(stream)
        elif self._lease is not None:
            self._lease.fences.append(lambda: [stream.record_event()])

    def _over(self, tensor: torch.Tensor) -> Batch:
        streamed = {name: _own(array) for name, array in self._streamed_extras().items()}
        if tensor.device.type == "cpu":
            return Batch(self._layout, self._header, root=tensor.numpy(), streamed=streamed)
        return Batch(self._layout, self._header, moved=tensor, streamed=streamed)

    def _bytes(self) -> torch.Tensor:
        if self._moved is not None:
            return self._moved
        return torch.frombuffer(self._root, dtype=torch.uint8, count=self.nbytes)

    # -- making tensors -------------------------------------------------------------------------------------------

    def _section(self, dtype: torch.dtype, start: int, count: int) -> torch.Tensor:
        if count == 0:
            return torch.empty(0, dtype=dtype, device=self.device)
        if self._moved is not None:
            return self._moved[start : start + count * dtype.itemsize].view(dtype)
        if not self._exposed:
            self._expose()
        return torch.frombuffer(self._root, dtype=dtype, count=count, offset=start)

    def _expose(self) -> None:
        """From now on the user has host tensors, which may be copied to any GPU behind our back: fence the slot."""
        self._exposed = True
        if self._lease is not None and self._lease.pinned:
            self._lease.fences.append(events_on_all)

    def _matrix(self, name: str, dtype: torch.dtype, start: int, width: int) -> torch.Tensor:
        if name not in self._made:
            self._made[name] = self._section(dtype, start, self.rows * width).view(self.rows, width)
        tensor: torch.Tensor = self._made[name]
        return tensor

    def _by_name(self, group: str, make: Callable[[str], Any]) -> Mapping[str, Any]:
        if group not in self._made:
            self._made[group] = tuple(column.name for column in self.schema.group(group))
        return _ByName(self._made[group], make, self._named)

    def _sparse(self, name: str) -> Sparse:
        column = self.schema[name]
        place = self._layout.sparse.index(column)
        rows, start = self.rows, self._placement.weights[place]
        return Sparse(
            values=self._section(_TORCH[column.dtype], self._placement.values[place], self._header.values[place]),
            lengths=self._section(torch.int32, self._placement.lengths + 4 * rows * place, rows),
            offsets=self._section(torch.int64, self._placement.offsets + 8 * (rows + 1) * place, rows + 1),
            weights=None if start is None else self._section(torch.float32, start, self._header.values[place]),
        )

    def _extra(self, name: str) -> Any:
        column = self.schema[name]
        start = self._placement.extra[self._layout.extra.index(column)]
        if start is None:
            return self._streamed_extras()[name]
        return self._section(_TORCH[column.dtype], start, self.rows)

    def _streamed_extras(self) -> dict[str, pa.Array]:
        if self._streamed is None:
            self._streamed = read_extras(self._layout, self._header, pa.py_buffer(self._root))
        return self._streamed


def _columns(matrix: torch.Tensor, column: SlotColumn) -> torch.Tensor:
    """A feature's column [B] of a matrix, or the columns [B, width] of a vector."""
    if column.width == 1:
        return matrix[:, column.offset]
    return matrix[:, column.offset : column.offset + column.width]


def _own(array: pa.Array) -> pa.Array:
    """A copy that does not refer to the slot."""
    return pa.concat_arrays([array, array.slice(0, 0)]) if len(array) else pa.array([], type=array.type)
