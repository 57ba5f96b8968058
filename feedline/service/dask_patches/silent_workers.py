"""Remove workers that have been silent for 20 seconds.

Runs in: schedulers of `feedline scheduler` and `dask scheduler`. Replaces: `Scheduler.worker_ttl`, and the time of its
periodic callback `worker-ttl`, unless Dask's configuration says another time than its default. Why: a preload comes too
late for the configuration, by which Dask would wait for five to ten minutes: it looks once in that time.
Not for a feeder's own workers, its nannies' care: docs/decisions/0025-half-open-connections.md.
"""

from __future__ import annotations

from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import Scheduler

from feedline.service.dask_patches.versions import allow

_SILENCE_S, _DASKS_SILENCE_S = 20.0, 300.0


def remove_silent_workers(scheduler: Scheduler) -> None:
    """Look for silent workers from now on."""
    node: Any = scheduler
    configured_s = parse_timedelta(dask.config.get("distributed.scheduler.worker-ttl"))
    look = node.periodic_callbacks.get("worker-ttl")
    if look is None or not node.worker_ttl == configured_s == _DASKS_SILENCE_S:
        return
    if not allow("removing silent workers early"):
        return
    node.worker_ttl = _SILENCE_S
    look.callback_time = 1000 * _SILENCE_S / 8
    if look.is_running():  # with its first look five minutes from now
        look.stop()
        look.start()
