"""Read the totals of all workers that a client has fetched.

Runs in: every process that computes on a cluster. Reads: `Client._scheduler_identity`, which Dask's client fetches
every two seconds anyway. Why: `Client.scheduler_info` asks the scheduler each time, and waits for the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distributed import Client

from feedline.service.dask_patches.versions import allow


def worker_totals(client: Client) -> Mapping[str, Any] | None:
    """`n_workers` and `total_threads`, as of a few seconds ago; empty without a scheduler. None: ask the scheduler."""
    if not allow("totals of workers that a client has already fetched, which saves time"):
        return None
    totals: Mapping[str, Any] = client._scheduler_identity
    return totals
