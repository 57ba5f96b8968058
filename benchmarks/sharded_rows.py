"""A DataLoader's dataset: every n-th row group, read, encoded and divided into batches in a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from contenders import Job
from numpy_workload import numpy_pieces
from shapes import Shape
from torch.utils.data import IterableDataset, get_worker_info
from workload import Batch, Jagged, batches, groups_of


class ShardedRows(IterableDataset[dict[str, torch.Tensor]]):
    """The batches of a worker's row groups, each a dict of tensors."""

    def __init__(self, job: Job, shape: Shape) -> None:
        self._job, self._size, self._shape = job, job.batch_size, shape

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        job = self._job
        if worker:
            rank, ranks = job.rank + worker.id * job.ranks, job.ranks * worker.num_workers
            job = replace(job, rank=rank, ranks=ranks)
        pieces = (piece for group in groups_of(job) for piece in numpy_pieces(group, self._shape, self._size))
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
