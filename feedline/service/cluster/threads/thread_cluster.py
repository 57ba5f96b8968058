"""Compute blocks in threads of the feeder's process.

Runs in: the feeder. Its Dask cluster is one of threads, too, in this process. It connects when its feeder says so, or
when its dashboard is asked for (`door`): until then blocks are computed by plain threads, since what a block is depends
on neither. See docs/decisions/0015-blocks-before-the-cluster.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from feedline.blocks.environment import check_environment
from feedline.blocks.reach import Reach
from feedline.blocks.request import Job
from feedline.service.cluster.attempts import Arrived
from feedline.service.cluster.cluster import BlockTask, Cluster
from feedline.service.cluster.threads.local_tasks import LocalTasks
from feedline.transforms.registry.user_functions import RequiredFunction
from feedline.warehouse.storage.parallel import in_threads

if TYPE_CHECKING:
    from feedline.service.cluster.connection.scheduler_connection import SchedulerConnection


class ThreadCluster(Cluster):
    """Threads of this process: plain ones compute blocks until the Dask cluster is up."""

    packed = False

    _tasks: LocalTasks

    @property
    def _asked(self) -> SchedulerConnection | None:
        """The connection; None while blocks are computed by plain threads only: the cluster is not up yet."""
        return self.connection if self._dask.done() else None

    def threads(self) -> int:
        return self._threads

    def eligible_workers(self, *, beyond_route: bool = False) -> None:
        return None

    def exclude(self, worker: str, why: str) -> None:
        """Threads of one process fail alike."""

    def start(
        self, function: Callable[..., Any], *args: Any, key: str, arrived: Arrived, first_rows: int = 0, **options: Any
    ) -> BlockTask | None:
        if not self._dask.done():
            return self._tasks.start(None, function, *args, key=key, arrived=arrived, first_rows=first_rows)
        return super().start(function, *args, key=key, arrived=arrived, **options)

    def check_workers(self, code: Sequence[RequiredFunction] = ()) -> None:
        self._unchecked = False
        check_environment(self.environment)

    def check_job(self, job: Job, reach: Reach | None = None) -> None:
        self._check_once()

    def map(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        self._check_once()
        if self._asked is None:
            return in_threads(function, arguments, threads=self._threads)
        return self._connected.map(function, arguments, self.preferences)

    def close(self) -> None:
        self._tasks.close()
        super().close()
