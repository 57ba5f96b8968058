"""Let Dask's periodic callbacks follow a clock that nobody sets.

Runs in: schedulers, workers and feeders. Tornado times heartbeats and Dask's other periodic callbacks by the wall
clock: when that is set back by an hour, they stop for an hour, so that a scheduler takes living workers for dead, or
dead ones for alive. See docs/decisions/0025-half-open-connections.md.
"""

from __future__ import annotations

import time
from typing import Any


def steady(loop: Any) -> None:
    """Let a tornado loop's clock go on from now by the monotonic one, whatever the wall clock does."""
    if "time" not in vars(loop):
        offset_s = time.time() - time.monotonic()
        loop.time = lambda: offset_s + time.monotonic()
