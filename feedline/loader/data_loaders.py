"""Refuse what a torch DataLoader must not do with a dataset: join its batches, or use it in worker processes.

Runs in: the trainer. A dataset learns of its DataLoader only by who calls `iter(dataset)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.fetch import _IterableDatasetFetcher

from feedline.errors import FeedlineError
from feedline.loader.batch import Batch

NO_WORKERS = (
    "a FeedlineDataset cannot be used in another process: got a DataLoader worker or a forked child, expected the "
    "process that made it. Use DataLoader(dataset, batch_size=None) with num_workers=0: the feeder and its Dask "
    "cluster read and transform"
)


def refuse_workers() -> None:
    """Refuse a worker process of a DataLoader."""
    if get_worker_info() is not None:
        raise FeedlineError(NO_WORKERS)


def refuse_batching(caller: FrameType) -> None:
    """Refuse a DataLoader with a batch size, whatever its collate_fn. caller: of `iter(dataset)`."""
    if caller.f_code is not _IterableDatasetFetcher.__init__.__code__:
        return  # reading another frame's `f_locals` would keep its variables alive
    if caller.f_locals["auto_collation"]:
        raise FeedlineError(
            "a DataLoader must not join batches: got one with a batch_size, expected None. Use "
            "DataLoader(dataset, batch_size=None), and set the rows of a batch in pipeline.yaml (batch.size)"
        )


def _refuse_to_collate(batches: Sequence[Batch], *, collate_fn_map: object = None) -> NoReturn:
    """Called by `default_collate`, which a DataLoader uses whose dataset wraps this one."""
    raise FeedlineError(
        f"a Batch cannot be batched again: got {len(batches)} of them to join, expected one. Use "
        f"DataLoader(dataset, batch_size=None), and set the rows of a batch in pipeline.yaml (batch.size)"
    )


default_collate_fn_map[Batch] = _refuse_to_collate
