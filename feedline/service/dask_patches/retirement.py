"""Let the workers that a scheduler retires end their running tasks first.

Runs in: the scheduler's process. Replaces: the scheduler's handler `retire_workers`, which every kind of scale-in
calls. Why: it gives up what a worker runs, which is then computed twice. With this, workers that know how
(`service/worker/departure.py`) first finish.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from distributed import Scheduler

from feedline.service.dask_patches.versions import allow


def finish_before_retirement(scheduler: Scheduler) -> None:
    """Replace the scheduler's handler of `retire_workers`."""
    if not allow("the ends of running tasks when workers are retired: they are computed twice"):
        return
    node: Any = scheduler
    retire = node.handlers["retire_workers"]

    async def retire_workers(workers: list[Any] | None = None, names: list[Any] | None = None, **options: Any) -> Any:
        removal = {name: options.pop(name) for name in ("close_workers", "remove", "stimulus_id") if name in options}
        addresses = _chosen(node, workers, names, options)
        await asyncio.gather(*(_finish(node, address) for address in addresses))
        return await retire(workers=addresses, **removal)

    node.handlers["retire_workers"] = retire_workers


def _chosen(scheduler: Any, workers: list[Any] | None, names: list[Any] | None, options: dict[str, Any]) -> list[str]:
    """The addresses of the workers to retire. Dask's own clusters give the names of workers as their addresses."""
    if workers is None and names is None:
        return list(scheduler.workers_to_close(**options))
    asked = {str(name) for name in [*(workers or ()), *(names or ())]}
    return [address for address, worker in scheduler.workers.items() if {address, str(worker.name)} & asked]


async def _finish(scheduler: Any, address: str) -> None:
    with contextlib.suppress(Exception):  # a worker that does not know how, or is gone
        await scheduler.rpc(address).feedline_finish()
