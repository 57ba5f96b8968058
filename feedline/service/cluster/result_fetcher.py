"""Fetch the results of tasks from the workers that hold them, unless they come in shared memory.

Runs in: the feeder, on the event loop of Dask's client: a coroutine per block in flight, and no thread. Each fetches
from its own worker, a few at a time per worker, so that an unresponsive worker delays only its own blocks. A fetch that
takes long is repeated over another connection: docs/decisions/0025-half-open-connections.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future as Handle
from typing import Any

from distributed import Client, Future
from distributed.scheduler import KilledWorker
from distributed.utils_comm import gather_from_workers

from feedline.service.cluster.attempts import Arrived, Outcome, Submit, failure_of
from feedline.service.cluster.blame import BlockFailure, host_of
from feedline.service.cluster.recent import Recent
from feedline.service.cluster.shared_results import ExpectedResult, SharedResults

logger = logging.getLogger(__name__)

_PER_WORKER = 2  # one is transferred while the next is requested
# Seconds until a fetch is repeated. Where recent fetches took longer, a multiple of the longest.
_FETCH_S, _TIMES = 8.0, 4
# A worker that leaves moves its results to others: between the question who holds one and the request for it, it may
# have moved.
_TRIES, _MOVED_S = 4, 0.1


class FetchedTask:
    """A task on a Dask cluster, whose outcome is fetched when it has finished."""

    def __init__(
        self, future: Future[Any], fetch: Handle[None], expected: ExpectedResult, shared: SharedResults
    ) -> None:
        self._future, self._fetch = future, fetch
        self._expected, self._shared = expected, shared

    def cancel(self) -> None:
        """Release the task: it is cancelled, unless another client holds it too; its outcome is not fetched. One whose
        result has come in shared memory is released when the scheduler knows that it has ended."""
        self._shared.settle(self._expected)
        if self._expected.handed_over:
            return
        self._future.release()
        if self._future.client.status == "running":
            self._fetch.cancel()


class ResultFetcher:
    """shared: receives results of workers on this host."""

    def __init__(self, shared: SharedResults) -> None:
        self._shared = shared
        self._room: dict[tuple[int, str], asyncio.Semaphore] = {}
        self._durations_s = Recent()  # of fetches that succeeded

    def start(
        self, submit: Submit, function: Callable[..., Any], *arguments: Any, key: str, arrived: Arrived
    ) -> FetchedTask | None:
        """Start a task; None if the scheduler does not answer. arrived: called once with its key and outcome, in any
        thread."""
        expected = self._shared.expect(key, arrived)
        future = submit(function, *arguments, key=key)
        if future is None:
            self._shared.settle(expected)
            return None
        loop: Any = future.client.loop
        fetch = asyncio.run_coroutine_threadsafe(
            self._watch(future.client, future, expected, arrived), loop.asyncio_loop
        )
        return FetchedTask(future, fetch, expected, self._shared)

    async def _watch(self, client: Client, future: Future[Any], expected: ExpectedResult, arrived: Arrived) -> None:
        """Fetch the future's result when it has finished, unless it has come."""
        outcome: Outcome
        try:
            await future.exception()  # awaits the end of the task
            self._shared.advance()
            if expected.handed_over:
                future.release()
                return
            outcome = await self._outcome(client, future)
        except OSError:  # the connection
            outcome = None
        except Exception as error:  # the feeder's thread decides
            outcome = failure_of(error, "", "")
        if self._shared.settle(expected):
            arrived(expected.key, outcome)

    async def _outcome(self, client: Client, future: Future[Any]) -> Outcome:
        scheduler: Any = client.scheduler
        error = await future.exception()
        if error is not None:
            return await _failure(client, future, error)
        if future.status != "finished":
            return None
        key = str(future.key)
        limit_s = max(_FETCH_S, _TIMES * self._durations_s.largest)
        tries = 0
        while tries < _TRIES:
            addresses = (await scheduler.who_has(keys=[key])).get(key, ())
            try:
                fetched = await self._fetch(client, key, addresses, limit_s)
            except TimeoutError:
                logger.warning("fetching a block took more than %.0f s: trying another connection", limit_s)
                limit_s *= 2
                client.rpc.collect()  # connections that wait for use hang most likely, too: the next one is new
                continue
            if fetched is not None or future.status != "finished":  # lost with its worker
                return fetched
            await asyncio.sleep(_MOVED_S)
            tries += 1
        return None

    async def _fetch(self, client: Client, key: str, addresses: Sequence[str], limit_s: float) -> Outcome:
        """The result of a task from one of its workers; None if none has it. Raises TimeoutError."""
        for address in addresses:
            room = self._room.setdefault((id(client), address), asyncio.Semaphore(_PER_WORKER))
            async with room, asyncio.timeout(limit_s):
                start_s = time.monotonic()
                data: dict[Any, Any] = (await gather_from_workers({key: [address]}, rpc=client.rpc))[0]
            if key in data:
                self._durations_s.add(time.monotonic() - start_s)
                outcome: Outcome = data[key]
                return outcome
        return None


async def _failure(client: Client, future: Future[Any], error: BaseException) -> BlockFailure:
    """The failure of a task outside of our function: it could not be loaded, or its workers died repeatedly."""
    if isinstance(error, KilledWorker):
        return BlockFailure(kind="killed", ours=False, name="KilledWorker", message=str(error), worker="", host="")
    worker = ""
    with contextlib.suppress(Exception):  # some schedulers run no functions of their clients
        worker = await _failed_on(client, str(future.key))
    return failure_of(error, worker, host_of(worker))


async def _failed_on(client: Client, key: str) -> str:

    # A nested function is pickled by value, so the scheduler does not need our package.
    def failed_on(dask_scheduler: Any) -> str:
        task = dask_scheduler.tasks.get(key)
        return next(iter(task.erred_on), "") if task is not None else ""

    return str(await client.run_on_scheduler(failed_on))
