"""Open a pipeline's cluster, of threads or of workers: the only place that chooses a back end.

Runs in: the feeder, and commands that compute on the cluster.
"""

from __future__ import annotations

import logging
import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from feedline.blocks.environment import Reach, check_environment
from feedline.blocks.jobs import check_job
from feedline.blocks.request import Job
from feedline.config.cluster_section import ClusterSpec
from feedline.errors import ClusterError
from feedline.service.cluster.attempts import Arrived
from feedline.service.cluster.blame import EXCLUDED_S, Exclusions
from feedline.service.cluster.cluster import BlockTask, Cluster
from feedline.service.cluster.local_tasks import LocalTasks
from feedline.service.cluster.request import ClusterRequest
from feedline.service.cluster.worker_checks import WorkerRead, check_reach, check_workers, read_again
from feedline.transforms.registry.user_functions import RequiredFunction, check_functions
from feedline.warehouse.storage.parallel import in_threads

if TYPE_CHECKING:
    from feedline.service.cluster.scheduler_connection import SchedulerConnection

logger = logging.getLogger(__name__)


class ThreadCluster(Cluster):
    """Threads of this process: plain ones compute blocks until the Dask cluster, of threads of this process too, is up.

    It connects when its feeder says so, or when its dashboard is asked for (`door`); what a block is depends on
    neither: docs/decisions/0015-blocks-before-the-cluster.md.
    """

    packed = False

    _tasks: LocalTasks

    @property
    def _asked(self) -> SchedulerConnection | None:
        """The connection; None while blocks are computed by plain threads only: the cluster is not up yet."""
        return self.connection if self._dask.done() else None

    def threads(self) -> int:
        return self._request.threads

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
            return in_threads(function, arguments, threads=self._request.threads)
        return self._connected.map(function, arguments, self.preferences)

    def close(self) -> None:
        self._tasks.close()
        super().close()


class WorkerCluster(Cluster):
    """Workers in processes of their own, on this host or others."""

    packed = True

    @cached_property
    def _exclusions(self) -> Exclusions:
        return Exclusions()

    def threads(self) -> int:
        return self.share.threads(self.connection.threads())

    def cores_per_trainer(self) -> float:
        return self.share.cores(self.threads_per_trainer(), self.connection.threads())

    def eligible_workers(self, *, beyond_route: bool = False) -> frozenset[str] | None:
        now_s = time.monotonic()
        if not beyond_route and (allowed := self._exclusions.allowed(self.share.route, now_s)):
            return allowed
        return self._exclusions.eligible_workers(self.members(), now_s) if self._exclusions.any(now_s) else None

    def exclude(self, worker: str, why: str) -> None:
        members = self.members() if worker else ()
        if len(members) > 1 and self._exclusions.exclude(worker, members, time.monotonic()):
            logger.warning("worker %s gets no blocks for %.0f s: %s", worker, EXCLUDED_S, why)

    def check_workers(self, code: Sequence[RequiredFunction] = ()) -> None:
        self._unchecked = False
        self.connection.await_workers()
        self.connection.refresh_members()
        self._check(check_environment, self.environment)
        if code:
            self._check(check_functions, tuple(code))

    def check_job(self, job: Job, reach: Reach | None = None) -> None:
        self._check_once()
        self.connection.await_scheduler()
        self.connection.refresh_members()
        if reach is not None and self._spec.is_elsewhere:
            check_reach(self.client, reach, self.exclude, self.share.route)
        self._check(check_job, job)

    def _check(self, check: Callable[[Any], None], argument: Any) -> None:
        check_workers(self.client, check, argument, self.exclude, self.share.route)

    def map(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        self._check_once()
        if not self._spec.is_elsewhere:
            return self._connected.map(function, arguments, self.preferences)
        results = self._connected.map(WorkerRead(function), arguments, self.preferences)
        return read_again(function, arguments, results, self._leave_out)

    def _leave_out(self, worker: str, why: str) -> bool:
        """Exclude a worker; whether others are left."""
        self.connection.refresh_members()
        self.exclude(worker, why)
        return self.eligible_workers(beyond_route=True) is not None


# A feeder opens about 20 files with threads, 30 with worker processes, and 14 for each of these.
_OPEN_FILES, _OPEN_FILES_PER_WORKER = 64, 16


def open_cluster(request: ClusterRequest) -> Cluster:
    """The cluster that is asked for. Raises ClusterError."""
    require_open_files(request.spec)
    return ThreadCluster(request) if request.spec.kind == "threads" else WorkerCluster(request)


def require_open_files(spec: ClusterSpec) -> None:
    """Raise this process's limit of open files where it is too low for its cluster. Raises ClusterError where that may
    not be raised so far: without descriptors each part fails in its own way, and some are waited for."""
    workers = spec.workers.max if spec.kind == "processes" and spec.workers is not None else 0
    needed = _OPEN_FILES + workers * _OPEN_FILES_PER_WORKER
    soft, hard = (math.inf if limit < 0 else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    if soft >= needed:
        return
    if hard < needed:
        with_workers = f" with {workers} worker processes" if workers else ""
        fewer = ", or lower cluster.workers" if workers else ""
        raise ClusterError(
            f"the limit of open files is too low: got {hard} (ulimit -n), expected at least {needed:,}{with_workers}. "
            f"Raise it for this process (ulimit -n, LimitNOFILE of systemd, --ulimit nofile of Docker){fewer}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
