"""The tensors of a training step: views of a slot's bytes, created on first use.

Runs in: the trainer, and wherever `Pipeline.batches` is iterated. A `Batch` holds a lease on its slot, and each tensor
a reference to the slot's bytes, so a slot is written again only after its batch and all tensors are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from feedline.loader.encoding.encoded_rows import expand
from feedline.loader.encoding.layout import BatchSchema, SlotLayout, SparseFeatures
from feedline.loader.encoding.slot import Buffer, encoded_rows, read_extras, read_header, write_rows
from feedline.loader.ring.pinning import event_on
from feedline.loader.tensors.slot_tensors import DeviceBytes, Features, InverseColumn, copy_pieces, cut_pieces
from feedline.loader.tensors.torchrec_tensors import KeyedTensors, needs_lists_apart, register_pipelineable


class Batch(KeyedTensors):
    """B rows of every feature.

    dense: float32 [B, D], row-major. categorical: int64 [B, K], feature-major in memory: a column is contiguous, the
    matrix is not. labels: float32 [B, L]. sparse[name]: `Sparse`. extra[name]: a tensor for numbers without nulls
    (timestamps are int64, with their unit in the schema), else a pyarrow.Array. valid: bool [B], False for padding
    (tail: pad). `batch["price"]` is any feature by name. epoch, step: the position in the plan.

    Features of deduplicated groups are in `groups`, by the group's name, and not in `dense` and `categorical`, but in
    `all_dense` and `all_categorical`; in `sparse` they are `InverseSparse`. `expanded()` is the batch without groups.
    For torchrec, `sparse_features`, `dense_features` and `labels` are of all rows, whatever the groups.

    Tensors are views of shared memory that is reused once nothing refers to them: to keep a batch for more than a few
    steps, keep `batch.clone()`.

    Examples:
        >>> batch = next(Pipeline.from_yaml("pipeline.yaml", set={"batch.size": 512}).batches())
        >>> batch.dense.dtype, batch.dense.shape
        (torch.float32, torch.Size([512, 2]))
        >>> batch["item"].shape, batch.sparse["history"].offsets.shape
        (torch.Size([512]), torch.Size([513]))
    """

    @classmethod
    def over(cls, layout: SlotLayout, root: Buffer) -> Batch:
        """The batch in a slot with this layout and these bytes, `root`."""
        register_pipelineable(cls)
        header = read_header(layout, root)
        batch = cls(layout, header.epoch, header.step, header.rows, header.nbytes, root)
        batch._header = header
        return batch

    @cached_property
    def extra(self) -> Mapping[str, Any]:
        """Columns passed through: tensors or pyarrow.Arrays."""
        extras: Features[Any] = Features()
        for column, start in zip(self._layout.extra, self._placement.extra, strict=True):
            if start is None:
                extras[column.name] = self._arrow_extras[column.name]
            else:
                extras[column.name] = self._tensor(np.dtype(column.dtype), start, (self.rows,))
        return extras

    def expanded(self) -> Batch:
        """The batch without deduplication: bit for bit that of the same pipeline without `dedup`; a copy in memory of
        its own, or this batch if it has no group."""
        if not self._layout.schema.dedup:
            return self
        here = self.to("cpu")
        rows = expand(encoded_rows(self._layout, pa.py_buffer(here._root)), self._layout.schema)
        layout = SlotLayout(self._layout.schema.expanded, self._layout.sparse_features, self._layout.bounds)
        valid = here.valid.numpy()
        return Batch.over(layout, write_rows(layout, [rows], valid, epoch=self.epoch, step=self.step)).to(self.device)

    def __getitem__(self, name: str) -> Any:
        if name not in self.schema:
            names = ", ".join(column.name for column in self.schema)
            raise KeyError(f"the batch has no feature {name!r}: expected one of {names}")
        column = self.schema[name]
        matrices = self if column.dedup is None else self.groups[column.dedup]
        if column.group in ("dense", "categorical"):
            values = column.of(matrices.dense if column.group == "dense" else matrices.categorical)
            return values if isinstance(matrices, Batch) else InverseColumn(values, matrices.inverse)
        if column.group == "label":
            return column.of(self.labels)
        return self.sparse[name] if column.group == "sparse" else self.extra[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is such a feature; without it, Python would look for batch[0], batch[1], …"""
        return name in self.schema

    def items(self) -> Iterator[tuple[str, Any]]:
        """Every feature with its name."""
        return ((name, self[name]) for name in self.keys())

    def to_dict(self) -> dict[str, Any]:
        """Every feature by name."""
        return dict(self.items())

    def __repr__(self) -> str:
        return f"<Batch of epoch {self.epoch}, step {self.step}: {self.rows} rows, {len(self.schema)} features>"

    def is_pinned(self) -> bool:
        """Whether the memory is pinned, so that copies to a GPU can be asynchronous."""
        if self._root is None:
            return False
        return self._lease.generation.pinned if self._lease is not None else bool(self._bytes().is_pinned())

    # -- moving ---------------------------------------------------------------------------------------------------

    def to(
        self,
        device: torch.device | str | int,
        non_blocking: bool = False,
        data_copy_stream: torch.cuda.Stream | None = None,
    ) -> Batch:
        """The batch on another device, in one copy; with torchrec imported the lists are a copy of their own.

        With non_blocking, the slot is held until the copies' CUDA event. data_copy_stream: they run on this stream, for
        which whoever uses the batch waits, into memory that belongs to the current one.
        """
        target = torch.device(device)
        if target.type == "cuda" and target.index is None:
            target = torch.device("cuda", torch.cuda.current_device())
        if target.type == self.device.type and target.index in (None, self.device.index):
            return self
        if target.type == "cpu":
            return self._over(self._bytes())
        pieces = (
            cut_pieces(self._bytes(), self._ends_of_pieces())
            if self._device_bytes is None
            else self._device_bytes.pieces
        )
        moved = copy_pieces(pieces, target, non_blocking=non_blocking, stream=data_copy_stream)
        if target.type == "cuda" and self._lease is not None and self._lease.generation.pinned:
            copied = event_on(moved.device) if data_copy_stream is None else data_copy_stream.record_event()
            self._lease.fences.append(lambda: [copied])
        return self._over(moved)

    def _ends_of_pieces(self) -> list[int]:
        """Where the lists begin and end, if they must be apart on a device."""
        if not self._layout.sparse or not needs_lists_apart():
            return []
        place = self._placement
        return [place.matrices.lengths, next((each for each in place.extra if each is not None), place.ipc)]

    def clone(self) -> Batch:
        """A copy that does not hold the slot."""
        if self._device_bytes is not None:
            return self._over(self._device_bytes.clone())
        return self._over(self._bytes().clone())

    def __deepcopy__(self, memo: dict[int, Any]) -> Batch:
        return self.clone()

    def __reduce__(self) -> tuple[Any, ...]:
        """As a clone, on the same device."""
        here = self.to("cpu")
        assert here._root is not None
        root = np.frombuffer(here._root, np.uint8, self.nbytes).copy()
        layout = self._layout
        options = layout.sparse_features, dict(layout.bounds)
        return _unpickled, (layout.schema.to_json(), root, str(self.device), *options)

    def pin_memory(self) -> Batch:
        """This batch if the ring is pinned or there is no CUDA, else a copy in pinned memory."""
        if self._root is None or self.is_pinned() or not torch.cuda.is_available():
            return self
        return self._over(self._bytes().pin_memory())

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Hold the batch's GPU memory, that of tensors made of it among it, or the slot, until the work queued on
        another stream is done."""
        if self._device_bytes is not None:
            self._device_bytes.record_stream(stream)
            for tensor in self._made_for_torchrec():
                if tensor.untyped_storage().nbytes():
                    tensor.record_stream(stream)
        elif self._lease is not None:
            self._lease.fences.append(lambda: [stream.record_event()])

    def _over(self, copied: torch.Tensor | DeviceBytes) -> Batch:
        header = self._header
        root = copied.numpy() if isinstance(copied, torch.Tensor) else None
        batch = Batch(self._layout, self.epoch, self.step, self.rows, self.nbytes, root)
        batch._header = header
        batch._device_bytes = None if isinstance(copied, torch.Tensor) else copied
        batch._arrow_extras = {name: _copy_array(array) for name, array in self._arrow_extras.items()}
        return batch

    def _bytes(self) -> torch.Tensor:
        """All bytes on the CPU."""
        if self._device_bytes is not None:
            return self._device_bytes.whole()
        return torch.frombuffer(self._root, dtype=torch.uint8, count=self.nbytes)

    @cached_property
    def _arrow_extras(self) -> dict[str, pa.Array]:
        return read_extras(self._layout, self._header, pa.py_buffer(self._root))


def _unpickled(
    schema: str, root: NDArray[np.uint8], device: str, sparse_features: SparseFeatures, bounds: Mapping[int, int]
) -> Batch:
    return Batch.over(SlotLayout(BatchSchema.from_json(schema), sparse_features, bounds), root).to(device)


def _copy_array(array: pa.Array) -> pa.Array:
    """A copy that does not refer to the slot."""
    return pa.concat_arrays([array, array.slice(0, 0)]) if len(array) else pa.array([], type=array.type)
