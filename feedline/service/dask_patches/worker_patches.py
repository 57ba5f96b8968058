"""Change Dask's workers: how they start, how they leave, and what they ask.

Runs in: Dask workers, on their event loop; the feeder, for the workers that it starts.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from typing import Any

from distributed import Nanny, Status, Worker

from feedline.service.dask_patches.versions import allow, require

logger = logging.getLogger("feedline.worker")

_EVERY_S = 5.0  # between two echoes
# Rounds are counted, not seconds: a process that was suspended finds its answers waiting when it goes on.
_ROUND_S, _ROUNDS = 2.5, 6
_KEY = "feedline-echo"
_failures: list[tuple[str, float]] = []  # of the last worker, if it did not start, and when


class PagelessWorker(Worker):
    """A worker that opens no port for HTTP. Overrides: `ServerNode.start_http_server`. Why: Dask has no setting."""

    def start_http_server(self, *_: object, **__: object) -> None:
        pass


def worker_class(*, http: bool) -> type[Worker]:
    """Dask's class, or the one without an HTTP server. Raises ClusterError."""
    if not http:
        require("workers open no port for HTTP")
    return Worker if http else PagelessWorker


def worker_failure(for_s: float = 0.0) -> str | None:
    """Why the last worker that this process started did not start; None if it did, if none was started, or if that was
    less than so many seconds ago."""
    return next((text for text, failed_s in _failures if time.monotonic() - failed_s >= for_s), None)


def with_recorded_failure(kind: type[Worker] | type[Nanny]) -> type[Any]:
    """The class of workers or nannies, whose error at the start `worker_failure` returns.

    Overrides: `Worker.start_unsafe` and `Nanny.start_unsafe`. Why: Dask logs the error, which a feeder does not show,
    and goes on without the worker; the feeder then waits for one that nobody starts.
    """
    if not allow("the error of a worker that does not start"):
        return kind

    class RecordedStart(kind):  # type: ignore[misc, valid-type]
        """A worker, or the nanny of one, that this process starts."""

        async def start_unsafe(self) -> Any:
            try:
                started = await super().start_unsafe()
            except Exception as error:
                _failures[:] = [(_text(error), time.monotonic())]
                raise
            _failures.clear()
            return started

    return RecordedStart


def _text(error: Exception) -> str:
    """The innermost error of the system, if there is one: those that follow are errors of cleaning up."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    first = next((each for each in reversed(chain) if isinstance(each, OSError)), chain[-1])
    return f"{type(first).__name__}: {first}"


class ClosingWorker:
    """A worker that leaves: it takes no more tasks, and gives back those that have not started. Raises ClusterError.

    Changes: `Worker.status`, and sends the message `reschedule` for tasks of `Worker.state`. Why: Dask's graceful close
    gives up what runs, which is then computed twice, and waits for what has not started.
    """

    def __init__(self, worker: Worker) -> None:
        require("workers leave without losing work")
        self._worker: Any = worker
        self._returned: set[str] = set()

    def refuse_tasks(self) -> None:
        """Have the scheduler assign nothing more."""
        self._worker.status = Status.closing_gracefully

    def return_tasks(self) -> None:
        """Give tasks that have not started back to the scheduler, which assigns them to others."""
        for key, task in list(self._worker.state.tasks.items()):
            if task.state in ("ready", "constrained", "waiting") and key not in self._returned:
                self._returned.add(key)
                self._worker.batched_send({"op": "reschedule", "key": key, "stimulus_id": f"leave-{time.time()}"})

    def running(self) -> int:
        return int(self._worker.state.executing_count)


class SchedulerWatch:
    """Asks a worker's scheduler for echoes, and closes the worker when there is none. Raises ClusterError.

    Works with any Dask scheduler. Replaces: the worker's handler `free-keys` of its stream of tasks. Why: a worker
    waits for tasks, forever where nothing arrives. So it regularly asks, through the stream, whether a task that was
    never submitted is still needed, which the scheduler answers through it
    (docs/decisions/0025-half-open-connections.md).
    """

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
