"""Read what Dask's clients and deployments say of themselves only in private.

Runs in: every process that computes on a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distributed import Client, SpecCluster, Status

from feedline.service.dask_patches.versions import allow


def worker_totals(client: Client) -> Mapping[str, Any] | None:
    """`n_workers` and `total_threads`, as of a few seconds ago; empty without a scheduler. None: ask the scheduler.

    Reads: `Client._scheduler_identity`, which Dask's client fetches every two seconds anyway. Why:
    `Client.scheduler_info` asks the scheduler each time, and waits for the answer.
    """
    if not allow("totals of workers that a client has already fetched, which saves time"):
        return None
    totals: Mapping[str, Any] = client._scheduler_identity
    return totals


def has_fixed_workers(deployment: Any) -> bool:
    """Whether the number of workers is fixed. Reads: `Cluster._supports_scaling`. Why: nothing else says so."""
    return allow("looking whether a deployment scales") and not getattr(deployment, "_supports_scaling", True)


def forget_unstarted(deployment: Any) -> None:
    """Let a deployment close although some of its workers could not start. Changes: `SpecCluster._created`. Why:
    closing asserts that all workers in it are closed, and leaves the rest of the deployment open."""
    if isinstance(deployment, SpecCluster) and allow("closing deployments whose workers could not start"):
        for worker in [each for each in deployment._created if each.status is Status.created]:
            deployment._created.discard(worker)
