"""Send the heartbeats of a worker in its scheduler's process rarely.

Runs in: the feeder. Overrides: `Worker.heartbeat`, after which Dask sets the time of its periodic callback `heartbeat`
to what the scheduler asks for (0.5 s). Why: the two end together, so heartbeats only serve the dashboard.
"""

from __future__ import annotations

from typing import Any

from distributed import Worker

from feedline.service.dask_patches.versions import allow

_HEARTBEAT_MS = 10_000


def with_rare_heartbeat(worker: type[Worker]) -> type[Worker]:
    """A class of workers whose heartbeats are ten seconds apart."""
    if not allow("rare heartbeats of a feeder's own worker, which save time"):
        return worker

    class BesideWorker(worker):  # type: ignore[misc, valid-type]
        """A worker in its scheduler's process."""

        async def heartbeat(self) -> None:
            await super().heartbeat()
            callbacks: dict[str, Any] = self.periodic_callbacks
            callbacks["heartbeat"].callback_time = _HEARTBEAT_MS

    return BesideWorker
