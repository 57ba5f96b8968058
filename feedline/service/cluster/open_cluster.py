"""Open a pipeline's cluster, of this host or of Dask: the only place that chooses a back end.

Runs in: the feeder, and commands that compute on the cluster.
"""

from __future__ import annotations

import logging
import math
import resource
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, Any

from feedline.blocks.environment import Reach, check_environment
from feedline.blocks.jobs import check_job, keep_job
from feedline.blocks.request import Job, pack_request
from feedline.config.cluster_section import ClusterSpec
from feedline.errors import ClusterError
from feedline.service.cluster.attempts import Submission, attempt_task, serve_blocks
from feedline.service.cluster.blame import EXCLUDED_S, Exclusions
from feedline.service.cluster.cluster import BlockTask, Cluster
from feedline.service.cluster.fair_share import priority as due_priority
from feedline.service.cluster.local_tasks import LocalTasks
from feedline.service.cluster.outage import waits
from feedline.service.cluster.request import ClusterRequest
from feedline.service.cluster.shared_results import SharedResults
from feedline.service.cluster.task_places import TaskPlaces
from feedline.service.cluster.worker_checks import WorkerRead, check_reach, check_workers, read_again
from feedline.service.pool.block_pool import BlockPool
from feedline.service.scheduler.job_book import ClusterSize
from feedline.transforms.registry.user_functions import RequiredFunction, check_functions
from feedline.warehouse.storage.parallel import in_threads

if TYPE_CHECKING:
    from distributed import Client

    from feedline.service.cluster.dask_cluster import DaskCluster
    from feedline.service.cluster.scheduler_connection import SchedulerConnection

logger = logging.getLogger(__name__)

# How long a feeder that ends waits for a start that has not ended (default: until it has). The search for a scheduler
# that does not answer ends with the process; its own processes start soon.
_GIVE_UP_S = {"scheduler": 1.0, "provider": 30.0}


class LocalCluster(Cluster):
    """This host: worker processes of the feeder, with threads of its own for first blocks, or for as long as these do;
    or threads alone.

    What a block is depends on neither: docs/decisions/0092-blocks-in-forked-workers.md.
    """

    packed = False

    def __init__(self, request: ClusterRequest) -> None:
        super().__init__(request)
        self._pool = None
        if request.spawner is not None:
            threads = -(-request.threads // request.processes)
            self._pool = BlockPool(request.spawner, serve_blocks, processes=request.processes, threads=threads)
        self._tasks = LocalTasks(request.threads, self._pool, threads_first=request.threads_first)
        self._is_checked = False

    def threads(self) -> int:
        return self._request.threads

    def size(self) -> ClusterSize:
        return ClusterSize(workers=max(1, len(self.members())), threads=self.threads())

    @property
    def form(self) -> str:
        return "pool" if self.members() else "threads"

    def members(self) -> frozenset[str]:
        return frozenset() if self._pool is None else self._pool.members()

    def eligible_workers(self, *, beyond_route: bool = False) -> None:
        return None

    def exclude(self, worker: str, why: str) -> None:
        """End a worker process, for which another one is started; threads of one process fail alike."""
        if self._pool is not None and worker in self._pool.members():
            logger.warning("%s of this feeder is replaced: %s", worker, why)
            self._pool.end(worker)

    def start(self, submission: Submission) -> BlockTask:
        return self._tasks.start(submission)

    def fileno(self) -> int:
        return -1 if self._pool is None else self._pool.fileno()

    def advance(self) -> None:
        if self._pool is not None:
            self._pool.advance()

    def check_workers(self, code: Sequence[RequiredFunction] = ()) -> None:
        self._is_checked = True
        check_environment(self.environment)

    def check_job(self, job: Job, reach: Reach | None = None) -> None:
        self._check_once()
        keep_job(job)

    def _check_once(self) -> None:
        if not self._is_checked:
            self.check_workers()

    def map(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        self._check_once()
        return in_threads(function, arguments, threads=self._request.threads)

    def places_of(
        self, keys: Collection[str], among: frozenset[str] | None = None, *, stacks: bool
    ) -> Future[TaskPlaces | None]:
        places: Future[TaskPlaces | None] = Future()
        places.set_result(TaskPlaces({} if self._pool is None else self._pool.places_of(keys), {}))
        return places

    def look(self, *, waiting: bool) -> None:
        self.advance()

    def close(self) -> None:
        self._tasks.close()


class WorkerCluster(Cluster):
    """Workers of a Dask cluster, in processes of their own, on this host or others. Importing Dask takes 0.45 s of CPU
    time, so a feeder connects in a thread beside its plan (`early`)."""

    packed = True

    def __init__(self, request: ClusterRequest) -> None:
        super().__init__(request)
        self._shared = SharedResults()
        self._connecting: Future[DaskCluster] = Future()
        self._start: threading.Thread | None = None
        self._is_checked = not request.early
        if not request.early:
            self._connect()
            if self._connecting.exception() is not None:
                self._shared.close()
            self._connecting.result()
            return
        if self._spec.provider is not None:  # some classes cannot be imported in another thread than the main one
            from feedline.service.cluster.provider import load_provider  # noqa: PLC0415 -- imports Dask

            load_provider(self._spec.provider)
        self._start = threading.Thread(target=self._connect, name="feedline-cluster", daemon=True)
        self._start.start()

    def _connect(self) -> None:
        try:
            from feedline.service.cluster.dask_cluster import open_dask  # noqa: PLC0415 -- imports Dask

            dask = open_dask(self._request, cpu=self._cpu, share=self.share, shared=self._shared)
        except BaseException as error:
            self._connecting.set_exception(error)
            return
        self._connecting.set_result(dask)

    @cached_property
    @waits
    def _connected(self) -> DaskCluster:
        return self._connecting.result()

    @property
    def connection(self) -> SchedulerConnection:
        return self._connected.connection

    @property
    def client(self) -> Client:
        return self.connection.client

    @property
    def dask(self) -> DaskCluster | None:  # type: ignore[override]
        """The Dask cluster, if it is up."""
        return self._connecting.result() if self._connecting.done() and self._connecting.exception() is None else None

    @property
    def number(self) -> int:  # type: ignore[override]
        return self.connection.number

    @property
    def dashboard(self) -> str | None:  # type: ignore[override]
        """The address of Dask's dashboard, once it is connected to; None if it has none."""
        return None if self.dask is None else self.dask.dashboard

    @property
    def owns_processes(self) -> bool:
        """Whether workers are processes that end with the cluster, whatever they do."""
        return self._spec.kind == "processes"

    def start(self, submission: Submission) -> BlockTask | None:
        key, workers = submission.key, submission.workers
        options: dict[str, Any] = {} if workers is None else {"workers": sorted(workers)}
        options["priority"] = submission.priority
        arguments = submission.job, pack_request(submission.request), key, self._shared.address
        return self._connected.start(attempt_task, *arguments, key=key, arrived=submission.arrived, **options)

    def fileno(self) -> int:
        return self._shared.fileno()

    def advance(self) -> None:
        self._shared.advance()

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

    def _check_once(self) -> None:
        if not self._is_checked:
            self.check_workers(self._request.code)

    def check_workers(self, code: Sequence[RequiredFunction] = ()) -> None:
        self._is_checked = True
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

    def size(self) -> ClusterSize:
        return ClusterSize(workers=0, threads=0) if self.dask is None else self.dask.size()

    def members(self) -> frozenset[str]:
        return self.connection.members()

    def places_of(
        self, keys: Collection[str], among: frozenset[str] | None = None, *, stacks: bool
    ) -> Future[TaskPlaces | None]:
        if keys:
            return self.connection.places_of(keys, among, stacks=stacks)
        nowhere: Future[TaskPlaces | None] = Future()
        nowhere.set_result(TaskPlaces({}, {}))
        return nowhere

    def alive(self) -> bool:
        return self.connection.alive()

    def preferences(self) -> dict[str, Any]:
        """Dask options of tasks that are not blocks: not on excluded workers, after the blocks that are due by now."""
        eligible = self.eligible_workers(beyond_route=True)
        workers = {} if eligible is None else {"workers": sorted(eligible), "allow_other_workers": True}
        return {"priority": due_priority(self.now_s()), **workers}

    def look(self, *, waiting: bool) -> None:
        self.advance()
        if self._connecting.done():  # else it is being connected to, in a time of its own
            self._connected.look(waiting=waiting)

    def on_close(self, call: Callable[[], None]) -> None:
        """Call `call` after the cluster was closed and its own workers have ended."""
        self._connected.on_close(call)

    def close(self) -> None:
        if self._start is not None:
            self._start.join(_GIVE_UP_S.get(self._spec.kind))
        try:
            if self.dask is not None:
                self.dask.close()
        finally:
            self._shared.close()

    def _leave_out(self, worker: str, why: str) -> bool:
        """Exclude a worker; whether others are left."""
        self.connection.refresh_members()
        self.exclude(worker, why)
        return self.eligible_workers(beyond_route=True) is not None


# A feeder opens about 20 files with threads, 30 with worker processes, and 14 for each of these, and one for each of
# their threads.
_OPEN_FILES, _OPEN_FILES_PER_WORKER = 64, 15


def open_cluster(request: ClusterRequest) -> Cluster:
    """The cluster that is asked for. Raises ClusterError."""
    require_open_files(request.spec, seats=0 if request.spawner is None else request.threads)
    return WorkerCluster(request) if request.spec.is_dask else LocalCluster(request)


def require_open_files(spec: ClusterSpec, *, seats: int = 0) -> None:
    """Raise this process's limit of open files where it is too low for its cluster. Raises ClusterError where that may
    not be raised so far: without descriptors each part fails in its own way, and some are waited for. seats: of a pool,
    which does with fewer."""
    workers = spec.workers.max if spec.kind == "processes" and spec.workers is not None else 0
    threads = spec.threads if isinstance(spec.threads, int) else 1  # each hands blocks over
    needed = _OPEN_FILES + workers * (_OPEN_FILES_PER_WORKER + threads)
    soft, hard = (math.inf if limit < 0 else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    if soft >= needed + seats:
        return
    if hard < needed:
        with_workers = f" with {workers} worker processes" if workers else ""
        fewer = ", or lower cluster.workers" if workers else ""
        raise ClusterError(
            f"the limit of open files is too low: got {hard} (ulimit -n), expected at least {needed:,}{with_workers}. "
            f"Raise it for this process (ulimit -n, LimitNOFILE of systemd, --ulimit nofile of Docker){fewer}"
        )
    raised = int(min(hard, needed + seats))
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
