"""Extend a scheduler that Dask starts: `dask scheduler --preload feedline.service.scheduler.preload`.

Runs in: the scheduler.
"""

from __future__ import annotations

from distributed import Scheduler

from feedline.service.dask_patches.scheduler_patches import drop_spans, remove_silent_workers
from feedline.service.scheduler.extension import install


def dask_setup(scheduler: Scheduler) -> None:
    """Install the extension, keep nothing of tasks that are over, and remove workers that are silent. Dask calls this
    when the scheduler has started."""
    install(scheduler)
    drop_spans(scheduler)
    remove_silent_workers(scheduler)
