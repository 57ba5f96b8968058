"""Let a worker leave without losing work: it takes no new tasks, ends the running ones, hands over the finished ones.

Runs in: Dask workers, on their event loop; works with any Dask scheduler. States: running -> finishing (the scheduler
assigns nothing more; tasks that have not started go back to it; feeders fetch finished blocks, as always) -> moving
(what nobody fetched is copied to other workers; what still runs is computed elsewhere, without counting as the task's
fault) -> closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

from distributed import Worker

from feedline.service.dask_patches.worker_patches import ClosingWorker

logger = logging.getLogger("feedline.worker")

# How long a departure may wait for running tasks, and for feeders: less than the 30 s that Kubernetes and Slurm give.
DRAIN_S = 25.0
# Time for feeders to fetch finished blocks, which takes milliseconds unless their host is stopped.
_FETCH_S = 2.0
_MOVE_S = 10.0
_CLOSE_S = 5.0
_POLL_S = 0.02


class Departure:
    """The departure of one worker. limit_s: for its running tasks to end.

    `finish` ends in the second state: the scheduler may remove the worker then. `leave` goes on to the end. Both may be
    called repeatedly. `hurry` ends the waiting for running tasks.
    """

    def __init__(self, worker: Worker, *, limit_s: float = DRAIN_S) -> None:
        self._worker: Any = worker
        self._closing = ClosingWorker(worker)
        self._limit_s = limit_s
        self._finish: asyncio.Task[None] | None = None
        self._leave: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._end_s = 0.0
        worker.handlers["feedline_finish"] = self.finish
        worker.handlers["feedline_leave"] = self.leave

    @property
    def begun(self) -> bool:
        return self._finish is not None

    def hurry(self) -> None:
        """Give up running tasks: they are computed elsewhere."""
        self._hurry.set()

    async def finish(self) -> None:
        """Take no new tasks, and wait until the running ones have ended and the results are fetched, or time is up."""
        if self._finish is None:
            self._finish = asyncio.create_task(self._finish_tasks())
        await asyncio.shield(self._finish)

    async def leave(self) -> None:
        """Finish, leave the cluster, and close the worker, and its nanny if it has one."""
        if self._leave is None:
            self._leave = asyncio.create_task(self._leave_cluster())
        await asyncio.shield(self._leave)

    async def _finish_tasks(self) -> None:
        worker = self._worker
        logger.info("worker %s leaves: it takes no new tasks", worker.address)
        self._closing.refuse_tasks()
        self._end_s = time.monotonic() + self._limit_s
        fetched_s = time.monotonic() + _FETCH_S
        while not self._hurry.is_set():
            self._closing.return_tasks()
            now_s = time.monotonic()
            if self._closing.running():
                if now_s >= self._end_s:
                    break
                fetched_s = now_s + _FETCH_S
            elif not worker.data or now_s >= fetched_s:
                break
            await asyncio.sleep(_POLL_S)
        self._closing.return_tasks()
        running = self._closing.running()
        if running:
            logger.warning("%d tasks did not end in %.0f s: they are computed elsewhere", running, self._limit_s)

    async def _leave_cluster(self) -> None:
        worker = self._worker
        await self.finish()
        with contextlib.suppress(OSError, TimeoutError):
            # Moves the remaining results to other workers, if there are any, and removes this one as expected.
            removal = worker.scheduler.retire_workers(workers=[worker.address], close_workers=False, remove=True)
            removed = await asyncio.wait_for(removal, _MOVE_S)
            await self._await_fetch(bool(removed))
        idle = not self._closing.running()
        await worker.close(timeout=_CLOSE_S, executor_wait=idle, nanny=True, reason="feedline-leave")
        logger.info("worker %s has left", worker.address_safe)

    async def _await_fetch(self, removed: bool) -> None:
        """Keep the results of a last worker, which nobody else can hold, until they are fetched or time is up."""
        while not removed and self._worker.data and time.monotonic() < self._end_s and not self._hurry.is_set():
            await asyncio.sleep(_POLL_S)
