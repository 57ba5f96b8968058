"""Assign all tasks to workers at once, although the scheduler has a queue.

Runs in: the scheduler. Replaces: the value of `SchedulerState.WORKER_SATURATION`, which Dask reads from its
configuration when the scheduler starts. Why: Dask never queues tasks that are restricted to workers. They would keep
all workers full, and those of feeders without a route, of counts and of fits would wait in the queue for ever; on a
worker, priorities order them.
"""

from __future__ import annotations

import math
from typing import Any

from distributed import Scheduler

from feedline.service.dask_patches.versions import require

# A `worker-saturation` with which no task waits in the queue. Dask reads infinity only when it starts.
_NO_QUEUE = 1e6


class TaskQueue:
    """A scheduler's queue of tasks. Raises ClusterError."""

    def __init__(self, scheduler: Scheduler) -> None:
        require("routes share workers with other tasks")
        self._scheduler: Any = scheduler
        self._saturation = float(self._scheduler.WORKER_SATURATION)

    def bypass(self, wanted: bool, stimulus_id: str) -> None:
        """Use the queue no more, or again. Called with each report."""
        scheduler, saturation = self._scheduler, self._saturation
        if math.isinf(saturation) or wanted == (saturation != scheduler.WORKER_SATURATION):
            return
        scheduler.WORKER_SATURATION = _NO_QUEUE if wanted else saturation
        for worker in scheduler.workers.values():
            scheduler.check_idle_saturated(worker)
        scheduler.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)
