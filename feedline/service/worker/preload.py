"""Let the workers of a deployment leave gracefully: `dask worker --preload feedline.service.worker.preload`.

Runs in: Dask workers and nannies. SIGTERM (scale-in, spot warning) lets the worker leave as in `departure.py`, and end
with status 0; a second SIGTERM gives up what runs. The time for running tasks is `feedline.worker.drain` in Dask's
configuration: in the environment, DASK_FEEDLINE__WORKER__DRAIN=25s (the default).

`feedline.worker.metrics` there is what `metrics` is in pipeline.yaml: where the worker serves its metrics.

A nanny gets the signals of its deployment, so it needs the module, too: `--preload-nanny` with the same name. Workers
of nannies have no handler of their own: those of a feeder end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import Nanny, Status, Worker

from feedline.service.dask_patches.steady_loop import steady
from feedline.service.dask_patches.worker_patches import SchedulerWatch
from feedline.service.log_lines import drop_echoes
from feedline.service.worker.departure import DRAIN_S, Departure
from feedline.service.worker.watched_worker import leave_worker, watch_worker
from feedline.service.worker_cores import report_cores

# A nanny learns its worker's address a moment after the worker may have got its first task.
_START_S = 5.0
_POLL_S = 0.02


async def dask_setup(node: Worker | Nanny) -> None:
    """Let this worker, or the worker of this nanny, leave gracefully on SIGTERM, or when its scheduler retires it; a
    worker closes when its scheduler no longer answers."""
    if isinstance(node, Nanny):
        _on_signal(lambda: _ask_to_leave(node))
        return
    drop_echoes()
    limit_s = float(parse_timedelta(dask.config.get("feedline.worker.drain", DRAIN_S)))
    report_cores(node)
    SchedulerWatch(node)
    steady(node.io_loop)
    departure = Departure(node, limit_s=limit_s)
    watch_worker(node)
    if not node.nanny:
        _on_signal(departure.leave, departure.hurry)


async def dask_teardown(node: Worker | Nanny) -> None:
    """End what this worker's `dask_setup` has opened."""
    if isinstance(node, Worker):
        await asyncio.to_thread(leave_worker)


def _on_signal(leave: Callable[[], Any], hurry: Callable[[], None] | None = None) -> None:
    """Call `leave` on this loop at the first SIGTERM, and `hurry` (None: the former handler) at the next ones."""
    if threading.current_thread() is not threading.main_thread():  # a worker in somebody else's process
        return
    loop = asyncio.get_running_loop()
    before: Any = signal.getsignal(signal.SIGTERM)
    leaving: list[asyncio.Task[Any]] = []

    def begin() -> None:
        leaving.append(asyncio.ensure_future(leave()))

    def end(number: int, frame: Any) -> None:
        if not leaving:
            loop.call_soon_threadsafe(begin)
        elif hurry is not None:
            loop.call_soon_threadsafe(hurry)
        elif callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, end)


async def _ask_to_leave(nanny: Any) -> None:
    address = await _worker_address(nanny)
    with contextlib.suppress(OSError):
        if address is not None:
            await nanny.rpc(address).feedline_leave()
            return
    await nanny.close(reason="feedline-leave")


async def _worker_address(nanny: Any) -> str | None:
    """The address of a nanny's worker. None: it has no worker, or one that does not start in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_START_S):
            while nanny.process is not None and nanny.process.status in (Status.init, Status.starting):
                await asyncio.sleep(_POLL_S)
    return nanny.worker_address  # type: ignore[no-any-return]
