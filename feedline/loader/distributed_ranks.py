"""The ranks that torch.distributed connects, and the plan that they open together.

Runs in: the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch.distributed

from feedline.loader.rank_agreement import Store, agree_on_plan
from feedline.loader.ranks import RankInfo
from feedline.loader.ring.client import FeederClient
from feedline.loader.ring.feeder_connection import Answer
from feedline.loader.wire.facts import Hello

# MPI connects its ranks by its own runtime; "fake" is PyTorch's stand-in for tests, without other ranks.
_BACKENDS_WITHOUT_STORE = ("mpi", "fake")


def hello_of(ranks: RankInfo) -> Hello:
    """A rank's request for a new plan."""
    return Hello(rank=ranks.rank, world_size=ranks.world_size, trainer=ranks.trainer, trainers=ranks.trainers)


def open_plan(feed: FeederClient, ranks: RankInfo, hello: Hello, resume: Mapping[str, Any] | None) -> Answer:
    """This rank's answer. Ranks connected by torch.distributed agree on a plan, on the snapshot of rank 0, and on the
    state to resume."""
    connected = ranks.global_size > 1 and connected_rank() == (ranks.global_rank, ranks.global_size)
    store = _store() if connected else None
    if store is None:
        return feed.open(hello)
    hello = replace(hello, connected=True)
    return agree_on_plan(store, feed.open, hello, rank=ranks.global_rank, world_size=ranks.global_size, state=resume)


def connected_rank() -> tuple[int, int] | None:
    """Rank and world size of torch.distributed; None before its start."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None


def _store() -> Store | None:
    """The store of torch.distributed; None for a backend that does not use it: its `Store` is empty."""
    if torch.distributed.get_backend() in _BACKENDS_WITHOUT_STORE:
        return None
    store: Store = torch.distributed.distributed_c10d._get_default_store()
    return store
