"""Read what Dask's deployments say of themselves only in private.

Runs in: the feeder. Reads: `Cluster._supports_scaling`, by which a deployment whose number of workers is fixed says so.
Changes: `SpecCluster._created`. Why: closing asserts that all workers in it are closed, also those that could not
start, and leaves the rest of the deployment open.
"""

from __future__ import annotations

from typing import Any

from distributed import SpecCluster, Status

from feedline.service.dask_patches.versions import allow


def has_fixed_workers(deployment: Any) -> bool:
    """Whether the number of workers cannot be changed."""
    return allow("looking whether a deployment scales") and not getattr(deployment, "_supports_scaling", True)


def forget_unstarted(deployment: Any) -> None:
    """Let a deployment close although some of its workers could not start."""
    if isinstance(deployment, SpecCluster) and allow("closing deployments whose workers could not start"):
        for worker in [each for each in deployment._created if each.status is Status.created]:
            deployment._created.discard(worker)
