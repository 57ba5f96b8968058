"""Keep no spans: Dask's record of the groups of tasks that there were.

Runs in: schedulers that Dask starts; those of a feeder are started without the extension. Replaces: the scheduler's
extension `spans`, by one that stays empty; without any, heartbeats of workers would fail. Why: the groups of all tasks
that there ever were are kept, and each worker keeps counters for them: a few kB per block here, and 1 kB there.
"""

from __future__ import annotations

from typing import Any

from distributed import Scheduler
from distributed.spans import SpansSchedulerExtension

from feedline.service.dask_patches.versions import allow


class _EmptySpans(SpansSchedulerExtension):
    """Dask's record of spans, always empty."""

    def observe_tasks(self, *_: object, **__: object) -> dict[Any, Any]:
        return {}

    def heartbeat(self, *_: object) -> None:
        """Ignore the counters of a worker."""


def drop_spans(scheduler: Scheduler) -> None:
    """Keep no spans from now on."""
    if allow("dropping spans, which saves memory"):
        scheduler.extensions["spans"] = _EmptySpans(scheduler)
