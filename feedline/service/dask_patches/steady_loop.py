"""Let Dask's loops follow a clock that is never set.

Runs in: schedulers, workers and feeders. Replaces: `IOLoop.time`, `time` of the module `distributed.batched`, and in
schedulers that of `distributed.scheduler`. Why: Tornado times heartbeats and Dask's other periodic callbacks by the
wall clock: when that is set back by an hour, they stop for an hour, so that a scheduler takes living workers for dead,
or dead ones for alive. Dask's batched messages compare a deadline with both clocks, the loop's and the wall's: they
must agree, else messages wait as long as the two differ. See docs/decisions/0025-half-open-connections.md.

Each clock goes on from what its users have counted by so far, when it replaces the wall clock: a process may have been
suspended, or its clock set, since it has loaded this module.
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
