"""Change the workers that a feeder starts itself: heartbeats are rare, and the error of a failed start is kept.

Runs in: the feeder. Overrides: `Worker.heartbeat`, after which Dask sets the time of its periodic callback `heartbeat`
to what the scheduler asks for (0.5 s). Why: the two end together, so heartbeats only serve the dashboard. Overrides:
`Worker.start_unsafe` and `Nanny.start_unsafe`. Why: Dask logs the error, which a feeder does not show, and goes on
without the worker; the feeder then waits for one that nobody starts.
"""

from __future__ import annotations

import time
from typing import Any

from distributed import Nanny, Worker

from feedline.service.dask_patches.versions import allow

_HEARTBEAT_MS = 10_000
_failures: list[tuple[str, float]] = []  # of the last worker, if it did not start, and when


def with_rare_heartbeat(worker: type[Worker]) -> type[Worker]:
    """A class of workers whose heartbeats are ten seconds apart."""
    if not allow("rare heartbeats of a feeder's own worker, which save time"):
        return worker

    class BesideWorker(worker):  # type: ignore[misc, valid-type]
        """A worker in its scheduler's process."""

        async def heartbeat(self) -> None:
            await super().heartbeat()
            callbacks: dict[str, Any] = self.periodic_callbacks
            callbacks["heartbeat"].callback_time = _HEARTBEAT_MS

    return BesideWorker


def worker_failure(for_s: float = 0.0) -> str | None:
    """Why the last worker that this process started did not start; None if it did, if none was started, or if that was
    less than so many seconds ago."""
    return next((text for text, failed_s in _failures if time.monotonic() - failed_s >= for_s), None)


def with_recorded_failure(kind: type[Worker] | type[Nanny]) -> type[Any]:
    """The class of workers or nannies, whose error at the start `worker_failure` returns."""
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
