"""Close a worker whose connection to the scheduler carries nothing (docs/decisions/0025-half-open-connections.md).

Runs in: Dask workers, on their event loop; works with any Dask scheduler. Replaces: the worker's handler `free-keys` of
its stream of tasks. Why: a worker waits for tasks, forever where nothing arrives. So it regularly asks, through the
stream, whether a task that was never submitted is still needed, which the scheduler answers through it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

from distributed import Worker

from feedline.service.dask_patches.versions import require

logger = logging.getLogger("feedline.worker")

_EVERY_S = 5.0
# Rounds are counted, not seconds: a process that was suspended finds its answers waiting when it goes on.
_ROUND_S, _ROUNDS = 2.5, 6
_KEY = "feedline-echo"


class SchedulerWatch:
    """Asks a worker's scheduler for echoes, and closes the worker when there is none. Raises ClusterError."""

    def __init__(self, worker: Worker) -> None:
        require("workers notice a scheduler that does not answer")
        self._worker: Any = worker
        self._numbers = itertools.count()
        self._awaited = ""
        self._heard = asyncio.Event()
        self._free_keys = self._worker.stream_handlers["free-keys"]
        self._worker.stream_handlers["free-keys"] = self._hear
        # Ends with the worker. No periodic callback of tornado's: those stop when the wall clock is set back.
        worker._ongoing_background_tasks.call_soon(self._watch)

    def _hear(self, **message: Any) -> None:
        if message["stimulus_id"] == self._awaited:
            self._heard.set()
        self._free_keys(**message)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            stream = self._worker.batched_stream
            if stream is None or stream.comm is None:  # not registered yet
                continue
            if stream.closed() or await self._is_heard() or stream.closed():
                continue
            logger.warning(
                "the scheduler has not answered worker %s for %.0f s, although their connection is open: the worker "
                "closes",
                self._worker.address_safe,
                _ROUND_S * _ROUNDS,
            )
            self._worker.rpc.remove(self._worker.scheduler.address)
            stream.comm.abort()  # which closes the worker

    async def _is_heard(self) -> bool:
        self._heard.clear()
        self._awaited = f"{_KEY}-{next(self._numbers)}"
        question = {"op": "request-refresh-who-has", "keys": [_KEY], "stimulus_id": self._awaited}
        self._worker.batched_send(question)
        for _ in range(_ROUNDS):
            try:
                async with asyncio.timeout(_ROUND_S):
                    await self._heard.wait()
                    return True
            except TimeoutError:
                continue
        return False
