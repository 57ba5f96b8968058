"""Run fitting tasks on the workers of a Dask cluster, behind the interface of `fitting/reduction`.

Runs in: the process that fits. Results stay on the workers and travel between them; Dask recomputes the results of a
lost worker.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError
from typing import Any

import distributed
from distributed.scheduler import KilledWorker

from feedline.blocks.environment import Environment
from feedline.errors import ClusterError, FeedlineError
from feedline.service.cluster.open_cluster import WorkerCluster

_LOOK_S = 1.0  # between checks of a cluster that does not answer
_URGENT = 3_600_000  # ms of priority: before everything that was submitted in the last hour
_END_S, _END_PAUSE_S = 10.0, 0.05  # time for cancelled tasks to end, and the pause between checks


class DaskWorkers:
    def __init__(self, cluster: WorkerCluster) -> None:
        self._cluster = cluster
        self._name = secrets.token_hex(8)
        self._submissions = 0
        self._open = 0  # tasks that have not ended
        self._working = False  # on cancelled tasks

    @property
    def environment(self) -> Environment:
        return self._cluster.environment

    @property
    def threads(self) -> int:
        return self._cluster.threads()

    @property
    def processes(self) -> int:
        return max(1, self._cluster.connection.workers())

    def start(self, function: Callable[..., Any], *arguments: Any, urgent: bool) -> Any:
        """Submit function(*arguments), in which futures, also in lists, stand for their results."""
        client = self._cluster.client
        if not self._submissions and (dask := self._cluster.dask) is not None:
            dask.reporter.open_tasks.append(lambda: self._open)
        self._submissions += 1
        self._open += 1
        options = self._cluster.preferences()
        options["priority"] += _URGENT if urgent else 0
        key = f"feedline-fit-{self._name}-{self._submissions}"
        return client.submit(function, *arguments, pure=False, key=key, **options)

    def wait_any(self, handles: Sequence[Any]) -> Sequence[Any]:
        """Wait for at least one; returns those that are done. Raises what a task raised; ClusterError if it is lost."""
        while True:
            try:
                with self._cluster.client.as_current():
                    done = list(distributed.wait(handles, timeout=_LOOK_S, return_when=FIRST_COMPLETED).done)
            except TimeoutError:
                self._cluster.look(waiting=True)
                continue
            except CancelledError:
                raise _lost_error() from None
            self._open -= len(done)
            for handle in done:
                _raise_failure(handle)
            return done

    def result(self, handle: Any) -> Any:
        try:
            [result] = self._cluster.connection.gather([handle])
        except CancelledError:
            raise _lost_error() from None
        return result

    def forget(self, handles: Sequence[Any]) -> None:
        """Cancel tasks that have not started, and wait a while for running ones, which may be writing files.

        Worker processes of this machine are not waited for: they end with their cluster (`remove_when_idle`).
        """
        unfinished = [handle for handle in handles if handle.status == "pending"]
        self._open -= len(unfinished)
        for handle in handles:
            handle.release()
        if not unfinished or not self._cluster.alive():
            return
        if self._cluster.owns_processes:
            self._working = True
            self._run(_silence_log, within_s=_END_S, wait=False)
            return
        deadline = time.monotonic() + _END_S
        while (left_s := deadline - time.monotonic()) > 0:
            if not any(self._run(_working_on, f"feedline-fit-{self._name}", within_s=left_s).values()):
                break
            time.sleep(_END_PAUSE_S)

    def _run(self, function: Callable[..., Any], *arguments: Any, within_s: float, wait: bool = True) -> dict[str, Any]:
        """function(*arguments) on each worker; nothing where one does not answer in time."""
        client = self._cluster.client

        async def run() -> dict[str, Any]:
            return await client.run(function, *arguments, wait=wait, on_error="ignore") or {}

        with contextlib.suppress(OSError, TimeoutError):
            answers: dict[str, Any] = client.sync(run, callback_timeout=within_s)
            return answers
        return {}

    def remove_when_idle(self, remove: Callable[[], None]) -> None:
        """Remove the files of tasks: now, and again when tasks that still run have ended."""
        remove()
        if self._working:
            self._cluster.on_close(remove)


def _working_on(prefix: str, dask_worker: Any) -> bool:
    """Whether the worker runs a task whose key has this prefix. Runs on the worker."""
    return any(str(key).startswith(prefix) for key in dask_worker.active_keys)


async def _silence_log() -> None:
    """Keep a worker that is ended while busy from logging the loss of its scheduler. Runs on the worker."""
    logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)


def _raise_failure(handle: Any) -> None:
    if handle.status == "finished":
        return
    error = handle.exception() if handle.status == "error" else None
    if isinstance(error, FeedlineError):
        raise error
    if error is None:
        raise _lost_error()
    if isinstance(error, KilledWorker):
        raise ClusterError(
            f"a fit killed its workers repeatedly: {error}. Give them more memory, or set fit.memory lower"
        )
    raise ClusterError(f"a fit failed: {type(error).__name__}: {error}") from error


def _lost_error() -> ClusterError:
    return ClusterError("the Dask scheduler was lost while fitting: got no result. Fit again when it is back")
