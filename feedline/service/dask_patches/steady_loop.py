"""Let Dask's loops follow a clock that nobody sets.

Runs in: schedulers, workers and feeders. Tornado times heartbeats and Dask's other periodic callbacks by the wall
clock: when that is set back by an hour, they stop for an hour, so that a scheduler takes living workers for dead, or
dead ones for alive. Dask's batched messages compare a deadline with both clocks, the loop's and the wall's: they must
agree, else messages wait as long as the two differ. See docs/decisions/0025-half-open-connections.md.

Each clock goes on from what its users have counted by so far, when it replaces the wall clock: a process may have been
suspended, or its clock set, since it has loaded this module.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import distributed.batched
from tornado.ioloop import IOLoop


def steady_clock(now_s: float | None = None) -> Callable[[], float]:
    """A clock that is never set. now_s: its present reading (default: seconds since 1970, by the wall clock)."""
    offset_s = (time.time() if now_s is None else now_s) - time.monotonic()
    return lambda: offset_s + time.monotonic()


@functools.cache
def scheduler_clock() -> Callable[[], float]:
    """The clock of all schedulers of this process, which share a module's: it begins when the first one is extended."""
    return steady_clock()


def steady(loop: Any) -> None:
    """Let a tornado loop go on by a steady clock, and batched messages by the clock of the loop that sends them."""
    loop.time = steady_clock(loop.time())
    setattr(distributed.batched, "time", _time_of_loop)  # noqa: B010 -- Dask's own, replaced


def _time_of_loop() -> float:
    return IOLoop.current().time()
