"""The Dask cluster of a pipeline: threads in this process, worker processes on this machine, or one by address.

Runs in: the feeder. Connecting imports Dask (0.45 s of CPU time), so a feeder connects in a thread beside its plan. A
cluster of threads connects when its feeder says so: until then its blocks are computed by plain threads, since what a
block is depends on neither. See docs/decisions/0015-blocks-before-the-cluster.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from feedline.blocks.environment import Environment, check_environment, environment_at
from feedline.blocks.jobs import check_job
from feedline.blocks.reach import Reach
from feedline.blocks.request import Job
from feedline.resources import choose_cpu
from feedline.service.cluster.attempts import Arrived
from feedline.service.cluster.blame import EXCLUDED_S, Exclusions
from feedline.service.cluster.connection.fair_share import FairShare
from feedline.service.cluster.early_threads import EarlyTask, EarlyThreads
from feedline.service.cluster.priority import priority
from feedline.service.cluster.reserved_port import ReservedPort
from feedline.service.cluster.worker_checks import WorkerRead, check_reach, check_workers, read_again
from feedline.spec.cluster_section import ClusterSpec
from feedline.transforms.registry.user_functions import RequiredFunction, check_functions
from feedline.warehouse.storage.parallel import in_threads

if TYPE_CHECKING:
    from distributed import Client

    from feedline.loader.wire.job_reports import JobReport
    from feedline.service.cluster.connection.scheduler_connection import SchedulerConnection
    from feedline.service.cluster.dask_cluster import DaskCluster, DaskTask
    from feedline.service.cluster.local_tasks import LocalTask

logger = logging.getLogger(__name__)

BlockTask: TypeAlias = "DaskTask | LocalTask | EarlyTask"

# How long a feeder that ends waits for a start of each kind that has not ended; its own processes start soon.
_GIVE_UP_S = {"scheduler": 1.0, "provider": 30.0}


class Cluster:
    """The pipeline's cluster, which is connected to, and started unless `spec` names a scheduler.

    early: return before the cluster is up. Then one of threads starts with `connect`, or when somebody asks for its
    dashboard (`door`), any other at once; what needs the cluster waits for it, and raises the ClusterError of a failed
    start. Workers are then checked before their first task, with `code`, the user's functions. elastic: the number of
    workers follows the reports within `cluster.workers`; else it is the most. report: the job's first.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        *,
        threads: int,
        scratch: str | None = None,
        early: bool = False,
        elastic: bool = False,
        report: JobReport | None = None,
        code: Sequence[RequiredFunction] = (),
    ) -> None:
        self.trainers = 1  # that the feeder serves
        self.share = FairShare()
        self._spec = spec
        self._threads, self._scratch = threads, scratch
        self._elastic, self._report = elastic, report
        self.kind = spec.kind
        self._exclusions = Exclusions()
        self._cpu = choose_cpu(spec.cpu, shared=self.kind in ("scheduler", "provider"))
        self._early = EarlyThreads(threads) if early and self.kind == "threads" else None
        has_port = spec.dashboard and self.kind in ("threads", "processes")
        self._port = ReservedPort(None if self._early is None else self.connect) if has_port else None
        self.door = None if self._early is None else self._port  # where people ask for a dashboard that is not up
        self._dask: Future[DaskCluster] = Future()
        self._start: threading.Thread | None = None
        self._code, self._unchecked = tuple(code), early
        _load_provider(spec)
        if not early:
            self._connect()
            self._dask.result()
        elif self._early is None:
            self.connect()

    def connect(self) -> None:
        """Connect in a thread, unless that has begun."""
        if self._start is None and not self._dask.done():
            self._start = threading.Thread(target=self._connect, name="feedline-cluster", daemon=True)
            self._start.start()

    def _connect(self) -> None:
        try:
            dask = _start(
                self._spec,
                self._port,
                threads=self._threads,
                cpu=self._cpu,
                share=self.share,
                scratch=self._scratch,
                elastic=self._elastic,
                report=self._report,
            )
        except BaseException as error:
            self._dask.set_exception(error)
            return
        self._dask.set_result(dask)
        if self._port is not None:
            self._port.redirect()

    @cached_property
    def _connected(self) -> DaskCluster:
        """The cluster, once it is up."""
        if self._early is not None:
            self.connect()
        return self._dask.result()

    @property
    def _only_threads(self) -> bool:
        """Whether blocks are computed by plain threads: the cluster is not up yet."""
        return self._early is not None and not self._dask.done()

    @property
    def connection(self) -> SchedulerConnection:
        """The connection to the scheduler."""
        return self._connected.connection

    @property
    def client(self) -> Client:
        """The current client."""
        return self.connection.client

    @property
    def number(self) -> int:
        """Counts clients: tasks of earlier ones are lost."""
        return 0 if self._only_threads else self.connection.number

    @property
    def environment(self) -> Environment:
        """The environment that every worker must have, so that blocks have the same bytes on each."""
        return environment_at(self._cpu)

    @property
    def packed(self) -> bool:
        """Whether results leave a worker's process."""
        return self.kind != "threads"

    @property
    def dashboard(self) -> str | None:
        """The address of Dask's dashboard, or None; it answers when the cluster is up, which asking for it starts."""
        if self._port is not None:
            return f"http://127.0.0.1:{self._port.number}/status"
        return self._connected.dashboard

    def workers(self) -> int:
        """The number of workers, as of a few seconds ago."""
        return self.connection.workers()

    def threads(self) -> int:
        """This job's part of the threads of all workers, as of a few seconds ago; at least 1, also without workers."""
        return self._threads if self.kind == "threads" else self.share.threads(self.connection.threads())

    def now_s(self) -> float:
        """The scheduler's clock, which compares the blocks of all jobs; seconds since 1970."""
        return self.share.now_s(time.monotonic(), time.time())

    def threads_per_trainer(self) -> int:
        """The threads that each of the feeder's trainers can count on: their equal share, rounded up."""
        return -(-self.threads() // self.trainers)

    @property
    def fixed_window(self) -> int | None:
        """`cluster.window`."""
        return self._spec.window

    def members(self) -> frozenset[str]:
        """The addresses of all workers, as of a few seconds ago."""
        return frozenset() if self._only_threads else self.connection.members()

    def workers_of(self, keys: Collection[str], among: frozenset[str] | None = None) -> dict[str, str]:
        """The worker that runs each task, or holds its result. among: the workers that may run them (default: all)."""
        return {} if self._only_threads else self.connection.workers_of(keys, among)

    def stacks_of(self, keys: Collection[str]) -> dict[str, Sequence[str]]:
        """The calls of running tasks, by key, the innermost last."""
        return {} if self._only_threads else self.connection.stacks_of(keys)

    def eligible_workers(self, *, beyond_route: bool = False) -> frozenset[str] | None:
        """The workers that may get blocks: of the route, if it has any; else all that are not excluded (None: all)."""
        now_s = time.monotonic()
        if not beyond_route and (allowed := self._exclusions.allowed(self.share.route, now_s)):
            return allowed
        return self._exclusions.eligible_workers(self.members(), now_s) if self._exclusions.any(now_s) else None

    def preferences(self) -> dict[str, Any]:
        """Dask options of tasks that are not blocks: not on excluded workers, after the blocks that are due by now."""
        eligible = self.eligible_workers(beyond_route=True)
        workers = {} if eligible is None else {"workers": sorted(eligible), "allow_other_workers": True}
        return {"priority": priority(self.now_s()), **workers}

    def exclude(self, worker: str, why: str) -> None:
        """Give a worker's host no blocks for a while; logs the first time."""
        members = self.members() if worker and self.kind != "threads" else ()
        if len(members) > 1 and self._exclusions.exclude(worker, members, time.monotonic()):
            logger.warning("worker %s gets no blocks for %.0f s: %s", worker, EXCLUDED_S, why)

    def look(self, *, waiting: bool) -> None:
        """Check scheduler and workers; see `SchedulerConnection.look`."""
        if self._dask.done():  # else it is being connected to, in a time of its own
            self._connected.look(waiting=waiting)

    @property
    def dask(self) -> DaskCluster | None:
        """The Dask cluster, if it is up: for reports to its scheduler."""
        return self._dask.result() if self._dask.done() and self._dask.exception() is None else None

    def alive(self) -> bool:
        """Whether the scheduler answers."""
        return self._only_threads or self.connection.alive()

    def start(
        self, function: Callable[..., Any], *args: Any, key: str, arrived: Arrived, first_rows: int = 0, **options: Any
    ) -> BlockTask | None:
        """Start a task; None if the scheduler does not answer. arrived: called once, in any thread, with the key and
        the outcome; by plain threads before that with the `first_rows` of a block, about, and further ones. options:
        of `Client.submit`; plain threads need none of them."""
        if self._early is not None and (self._only_threads or self._early.holds(key)):
            return self._early.start(function, *args, key=key, arrived=arrived, first_rows=first_rows)
        return self._connected.start(function, *args, key=key, arrived=arrived, **options)

    def check_workers(self, code: Sequence[RequiredFunction] = ()) -> None:
        """Wait for a worker, and check that workers have our versions and the user's functions. Raises ClusterError if
        there is no worker, or no fit one."""
        self._unchecked = False
        if self.kind == "threads":
            check_environment(self.environment)
            return
        self.connection.await_workers()
        check_workers(self.client, check_environment, self.environment, self.exclude, self.share.route)
        if code:
            check_workers(self.client, check_functions, tuple(code), self.exclude, self.share.route)

    def check_job(self, job: Job, reach: Reach | None = None) -> None:
        """Send a job to the route's workers, which check that they can compute it. Raises ClusterError if none can.

        reach: what workers on other hosts must read; unchecked if this process cannot read it either.
        """
        self._check_once()
        if self.kind == "threads":
            return
        self.connection.await_scheduler()
        if reach is not None and self._elsewhere:
            check_reach(self.client, reach, self.exclude, self.share.route)
        check_workers(self.client, check_job, job, self.exclude, self.share.route)

    @property
    def _elsewhere(self) -> bool:
        """Whether workers may run on other hosts."""
        return self.kind not in ("threads", "processes")

    def _check_once(self) -> None:
        if self._unchecked:
            self.check_workers(self._code)

    def map(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        """function(argument) for each argument, in order, on the cluster; repeated if the scheduler is lost."""
        self._check_once()
        if self._only_threads:
            return in_threads(function, arguments, threads=self._threads)
        if not self._elsewhere:
            return self._connected.map(function, arguments, self.preferences)
        results = self._connected.map(WorkerRead(function), arguments, self.preferences)
        return read_again(function, arguments, results, self._leave_out)

    def _leave_out(self, worker: str, why: str) -> bool:
        """Exclude a worker; whether others are left."""
        self.exclude(worker, why)
        return self.eligible_workers(beyond_route=True) is not None

    def on_close(self, call: Callable[[], None]) -> None:
        """Call `call` after the cluster was closed and its own workers have ended."""
        self._connected.on_close(call)

    def close(self) -> None:
        """Close the connection, and the cluster if it was started here; tasks in threads of this process end before."""
        if self._early is not None:
            self._early.close()
        if self._start is not None:  # the search for a scheduler that does not answer ends with the process
            self._start.join(_GIVE_UP_S.get(self.kind))
        if self.dask is not None:
            self.dask.close()
        if self._port is not None:
            self._port.close()


def _start(spec: ClusterSpec, port: ReservedPort | None, **options: Any) -> DaskCluster:
    """Connect to a cluster, or start one, whose dashboard is at the port."""
    try:
        from feedline.service.cluster import dask_cluster  # noqa: PLC0415 -- imports Dask

        if port is not None:
            port.release()
        return dask_cluster.DaskCluster(spec, dashboard_port=0 if port is None else port.number, **options)
    except BaseException:
        if port is not None:
            port.close()
        raise


def _load_provider(spec: ClusterSpec) -> None:
    """Import the class of `cluster.class` in this thread, the main one of a process: some cannot be in another."""
    if spec.provider is not None:
        from feedline.service.cluster.provider import load_provider  # noqa: PLC0415 -- imports Dask

        load_provider(spec.provider)
