"""Dask's configuration, by role: little monitoring, short logs, no spilling."""

from __future__ import annotations

from typing import Any

import dask

NODE_CONFIG: dict[str, Any] = {
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.system-monitor.interval": "2s",
    # Dask keeps its last messages and transitions, with the arguments of tasks, for debugging.
    "distributed.admin.low-level-log-length": 100,
    "distributed.diagnostics.computations.max-history": 10,
}
# Feeders limit the blocks in flight.
WORKER_CONFIG: dict[str, Any] = {
    **NODE_CONFIG,
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}
SCHEDULER_CONFIG: dict[str, Any] = {
    **NODE_CONFIG,
    # The queue orders the blocks of all jobs across workers; "inf" would order them within each worker only.
    "distributed.scheduler.worker-saturation": 1.1,
}
FEEDER_CONFIG: dict[str, Any] = {
    **WORKER_CONFIG,
    "distributed.scheduler.worker-saturation": "inf",  # the feeder itself limits the blocks in flight
    "distributed.comm.timeouts.connect": "10s",
}
# The scheduler of a class of clusters: it ends with its job.
PROVIDER_CONFIG: dict[str, Any] = {
    "distributed.scheduler.idle-timeout": None,
    "distributed.scheduler.no-workers-timeout": None,
}


def private_config() -> dict[str, Any]:
    """Dask's defaults of `distributed`, in place of what the user's files and environment say.

    A scheduler that ends when it is idle, encryption that loopback has no key for, or modules that every process loads
    (`preload`) are meant for clusters that people start: a run's own would end, or never begin. Workers are handed this
    configuration whole.
    """
    return {"distributed": dask.config.merge(*dask.config.defaults)["distributed"]}
