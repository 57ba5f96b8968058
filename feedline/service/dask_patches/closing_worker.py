"""Let a worker take no more tasks, and give back those that have not started.

Runs in: Dask workers, on their event loop. Changes: `Worker.status`, and sends the message `reschedule` for tasks of
`Worker.state`. Why: Dask's graceful close gives up what runs, which is then computed twice, and waits for what has not
started.
"""

from __future__ import annotations

import time
from typing import Any

from distributed import Status, Worker

from feedline.service.dask_patches.versions import require


class ClosingWorker:
    """A worker that leaves. Raises ClusterError."""

    def __init__(self, worker: Worker) -> None:
        require("workers leave without losing work")
        self._worker: Any = worker
        self._returned: set[str] = set()

    def refuse_tasks(self) -> None:
        """Have the scheduler assign nothing more."""
        self._worker.status = Status.closing_gracefully

    def return_tasks(self) -> None:
        """Give tasks that have not started back to the scheduler, which assigns them to others."""
        for key, task in list(self._worker.state.tasks.items()):
            if task.state in ("ready", "constrained", "waiting") and key not in self._returned:
                self._returned.add(key)
                self._worker.batched_send({"op": "reschedule", "key": key, "stimulus_id": f"leave-{time.time()}"})

    def running(self) -> int:
        return int(self._worker.state.executing_count)
