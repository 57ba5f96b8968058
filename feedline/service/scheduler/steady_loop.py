"""Let Dask's loops follow a clock that nobody sets.

Runs in: schedulers, workers and feeders. Tornado times heartbeats and Dask's other periodic callbacks by the wall
clock: when that is set back by an hour, they stop for an hour, so that a scheduler takes living workers for dead, or
dead ones for alive. Dask's batched messages compare a deadline with both clocks, the loop's and the wall's: they must
agree, else messages wait as long as the two differ. See docs/decisions/0025-half-open-connections.md.
"""

from __future__ import annotations

import time
from typing import Any

import distributed.batched

_OFFSET_S = time.time() - time.monotonic()


def steady_time() -> float:
    """Seconds since the epoch by the wall clock as it was when this module was loaded, and the monotonic one since."""
    return _OFFSET_S + time.monotonic()


def steady(loop: Any) -> None:
    """Let a tornado loop, and all batched messages of this process, go by `steady_time`."""
    loop.time = steady_time
    setattr(distributed.batched, "time", steady_time)  # noqa: B010 -- Dask's own, replaced
