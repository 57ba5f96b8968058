"""Extend a scheduler that Dask starts: `dask scheduler --preload feedline.service.scheduler.preload`.

Runs in: the scheduler.
"""

from __future__ import annotations

from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import Scheduler
from distributed.spans import SpansSchedulerExtension

from feedline.service.scheduler.extension import install

# Workers elsewhere that are silent for this long are gone, or behind a connection that carries nothing: they send a
# heartbeat every half second to few seconds, also while they compute. Workers of a feeder's own are its nannies' care:
# on a busy machine, they may well be silent for that long.
_SILENCE_S, _DASKS_SILENCE_S = 20.0, 300.0


def dask_setup(scheduler: Scheduler) -> None:
    """Install the extension, keep nothing of tasks that are over, and remove workers that are silent. Dask calls this
    when the scheduler has started."""
    install(scheduler)
    scheduler.extensions["spans"] = _WithoutSpans(scheduler)
    _remove_silent_workers(scheduler)


class _WithoutSpans(SpansSchedulerExtension):
    """Dask's record of spans, always empty. Dask's own keeps the groups of all tasks that there ever were, and has each
    worker keep counters for them: a few kB per block here, and 1 kB there."""

    def observe_tasks(self, *_: object, **__: object) -> dict[Any, Any]:
        return {}

    def heartbeat(self, *_: object) -> None:
        """Ignore the counters of a worker."""


def _remove_silent_workers(scheduler: Any) -> None:
    """Remove workers that were silent for `_SILENCE_S`, unless Dask's configuration says another time than its default.

    Dask would wait for five to ten minutes: it looks once in that time.
    """
    own_s = parse_timedelta(dask.config.get("distributed.scheduler.worker-ttl"))
    look = scheduler.periodic_callbacks.get("worker-ttl")
    if look is not None and scheduler.worker_ttl == own_s == _DASKS_SILENCE_S:
        scheduler.worker_ttl = _SILENCE_S
        look.callback_time = 1000 * _SILENCE_S / 8
        if look.is_running():  # with its first look five minutes from now
            look.stop()
            look.start()
