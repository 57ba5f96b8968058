"""Dask's configuration of schedulers and workers, wherever they run: little monitoring, short logs, no spilling."""

from __future__ import annotations

from typing import Any

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
