"""A DataLoader's dataset: every n-th row group, read, encoded and divided into batches in a worker process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from numpy_workload import numpy_pieces
from shapes import Shape
from torch.utils.data import IterableDataset, get_worker_info
from workload import Batch, Jagged, batches, row_groups


class ShardedRows(IterableDataset[dict[str, torch.Tensor]]):
    """The batches of a worker's row groups, each a dict of tensors."""

    def __init__(self, files: Sequence[str], size: int, shape: Shape) -> None:
        self._files, self._size, self._shape = files, size, shape

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        start = 0
        groups = []
        for group in row_groups(self._files)[worker.id :: worker.num_workers] if worker else row_groups(self._files):
            groups.append(replace(group, start=start))  # its index among the worker's own rows
            start += group.rows
        pieces = (piece for group in groups for piece in numpy_pieces(group, self._shape, self._size))
        for batch in batches(pieces, self._size, self._shape):
            # A view would be sent with all of the piece's ids between its columns.
            ids = batch.categorical.T.contiguous().T
            tensors = {"dense": batch.dense, "categorical": ids, "labels": batch.labels}
            for name, jagged in batch.sparse.items():
                tensors[f"{name}.values"], tensors[f"{name}.lengths"] = jagged.values, jagged.lengths
            yield tensors


def batch_of(tensors: dict[str, torch.Tensor], shape: Shape) -> Batch:
    """Build the batch that a DataLoader's worker sent."""
    sparse = {name: Jagged(tensors[f"{name}.values"], tensors[f"{name}.lengths"]) for name in shape.lists}
    return Batch(tensors["dense"], tensors["categorical"], tensors["labels"], sparse)
