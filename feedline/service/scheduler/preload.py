"""Extend a scheduler that Dask starts: `dask scheduler --preload feedline.service.scheduler.preload`.

Runs in: the scheduler.
"""

from __future__ import annotations

from distributed import Scheduler

from feedline.service.scheduler.extension import install


def dask_setup(scheduler: Scheduler) -> None:
    """Install the extension. Dask calls this when the scheduler has started."""
    install(scheduler)
