"""Fetch the results of tasks from the workers that hold them.

Runs in: the feeder, on the event loop of Dask's client: a coroutine per block in flight, and no thread. Each fetches
from its own worker, a few at a time per worker, so that an unresponsive worker delays only its own blocks. Results of
a worker in this process are passed by reference.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from concurrent.futures import Future as Handle
from typing import Any

from distributed import Client, Future
from distributed.scheduler import KilledWorker
from distributed.utils_comm import gather_from_workers

from feedline.service.dispatch.attempts import Arrived, Outcome, failure_of
from feedline.service.dispatch.blame import BlockFailure, host_of

_PER_WORKER = 2  # one is transferred while the next is requested
# A worker that leaves moves its results to others: between the question who holds one and the request for it, it may
# have moved.
_TRIES, _MOVED_S = 4, 0.1


class ResultFetcher:
    """Fetches the results of futures."""

    def __init__(self) -> None:
        self._room: dict[tuple[int, str], asyncio.Semaphore] = {}

    def watch(
        self, client: Client, future: Future[Any], local: Mapping[str, Outcome], arrived: Arrived
    ) -> Handle[None]:
        """Fetch the future's result when it has finished. local: results of the worker in this process. `arrived` is
        called on the loop once, with the key and the outcome."""
        loop: Any = client.loop
        return asyncio.run_coroutine_threadsafe(self._watch(client, future, local, arrived), loop.asyncio_loop)

    async def _watch(self, client: Client, future: Future[Any], local: Mapping[str, Outcome], arrived: Arrived) -> None:
        outcome: Outcome
        try:
            outcome = await self._outcome(client, future, local)
        except OSError:  # the connection
            outcome = None
        except Exception as error:  # the feeder's thread decides
            outcome = failure_of(error, "", "")
        arrived(str(future.key), outcome)

    async def _outcome(self, client: Client, future: Future[Any], local: Mapping[str, Outcome]) -> Outcome:
        state: Any = future._state
        scheduler: Any = client.scheduler
        await state.wait()
        if future.status == "error":
            return await _failure(client, future)
        if future.status != "finished":
            return None
        key = str(future.key)
        if key in local:
            return local[key]
        for _ in range(_TRIES):
            for address in (await scheduler.who_has(keys=[key])).get(key, ()):
                room = self._room.setdefault((id(client), address), asyncio.Semaphore(_PER_WORKER))
                async with room:
                    data: dict[Any, Any] = (await gather_from_workers({key: [address]}, rpc=client.rpc))[0]
                if key in data:
                    fetched: Outcome = data[key]
                    return fetched
            if future.status != "finished":  # lost with its worker
                return None
            await asyncio.sleep(_MOVED_S)
        return None


async def _failure(client: Client, future: Future[Any]) -> BlockFailure:
    """The failure of a task outside of our function: it could not be loaded, or its workers died repeatedly."""
    state: Any = future._state
    error = state.exception
    if isinstance(error, KilledWorker):
        return BlockFailure(kind="killed", ours=False, name="KilledWorker", message=str(error), worker="", host="")
    worker = ""
    with contextlib.suppress(Exception):  # some schedulers run no functions of their clients
        worker = await _failed_on(client, str(future.key))
    return failure_of(error, worker, host_of(worker))


async def _failed_on(client: Client, key: str) -> str:
    """The address of the worker on which a task failed, "" if the scheduler has forgotten it."""

    # A nested function is pickled by value, so the scheduler does not need our package.
    def failed_on(dask_scheduler: Any) -> str:
        task = dask_scheduler.tasks.get(key)
        return next(iter(task.erred_on), "") if task is not None else ""

    return str(await client._run_on_scheduler(failed_on))
