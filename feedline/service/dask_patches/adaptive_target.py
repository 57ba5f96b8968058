"""Answer Dask's question how many workers there should be from the reports of jobs.

Runs in: the scheduler. Replaces: `Scheduler.adaptive_target`, which dask-kubernetes' and other handlers call, and the
handler of that name, which `Adaptive` asks through its connection. Why: Dask's answer is about the tasks that it holds,
which a feeder limits to a window. A subclass of `Adaptive` would serve clusters of this process only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed import Scheduler

from feedline.service.dask_patches.versions import require


def replace_adaptive_target(scheduler: Scheduler, own: Callable[..., int], remote: Callable[..., int]) -> None:
    """Answer with `own` in this process, and with `remote` to others. Raises ClusterError."""
    require("clusters follow the demand of jobs")
    node: Any = scheduler
    node.adaptive_target = own
    node.handlers["adaptive_target"] = remote
