"""Where a Dask scheduler's process finds the statuses of its feeders: the one source of the live page and of metrics.

Runs in: the scheduler: of `feedline scheduler`, where feeders send their statuses, or of a feeder that started it.

    source = statuses_of(scheduler)
    statuses = [] if source is None else source()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from distributed import Scheduler

from feedline.loader.wire.run_status import FeederStatus

# Call it as often as needed, in any thread: it returns the last status of each feeder that is alive, by job and feeder.
StatusSource: TypeAlias = Callable[[], Sequence[FeederStatus]]


def offer_statuses(scheduler: Scheduler, source: StatusSource) -> None:
    """Make the statuses of a scheduler's feeders available in its process, among its extensions. Replaces an earlier
    source."""
    scheduler.extensions["feedline-status"] = source


def statuses_of(scheduler: Scheduler) -> StatusSource | None:
    """The source of a scheduler; None before its first feeder has begun, where it is one of threads."""
    source: StatusSource | None = scheduler.extensions.get("feedline-status")
    return source
