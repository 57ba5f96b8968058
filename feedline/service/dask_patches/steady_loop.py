"""Let Dask's loops follow a clock that is never set (docs/decisions/0025-half-open-connections.md).

Runs in: schedulers, workers and feeders. Replaces: `IOLoop.time`, `time` of the module `distributed.batched`, and in
schedulers that of `distributed.scheduler`. Why: Dask's periodic callbacks follow the wall clock, and stop for an hour
when it is set back by one; batched messages compare a deadline with both clocks, which must agree. Each clock goes on
from its present reading: a process may have been suspended, or its clock set, since it has loaded this module.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import distributed.batched
import distributed.scheduler
from distributed import Scheduler
from tornado.ioloop import IOLoop

from feedline.service.dask_patches.versions import require


def steady_clock(now_s: float | None = None) -> Callable[[], float]:
    """A clock that is never set. now_s: its present reading (default: seconds since 1970, by the wall clock)."""
    offset_s = (time.time() if now_s is None else now_s) - time.monotonic()
    return lambda: offset_s + time.monotonic()


def steady(loop: Any) -> None:
    """Let a tornado loop go on by a steady clock, and batched messages by the clock of the loop that sends them. Raises
    ClusterError."""
    require("periodic callbacks go on when the clock is set")
    loop.time = steady_clock(loop.time())
    setattr(distributed.batched, "time", _time_of_loop)  # noqa: B010 -- a module's


def steady_scheduler(scheduler: Scheduler) -> None:
    """The same for a scheduler's loop, and for `worker-ttl`, by which it finds silent workers: all of them, when the
    wall clock jumps ahead. Raises ClusterError."""
    steady(scheduler.io_loop)
    setattr(distributed.scheduler, "time", _scheduler_clock())  # noqa: B010 -- a module's


@functools.cache
def _scheduler_clock() -> Callable[[], float]:
    """The clock of all schedulers of this process, which share a module's: it begins when the first one is extended."""
    return steady_clock()


def _time_of_loop() -> float:
    return IOLoop.current().time()
