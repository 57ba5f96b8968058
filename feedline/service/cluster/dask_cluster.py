"""The Dask side of a cluster: the scheduler and workers that this process starts, its client, its tasks.

Runs in: the feeder. Importing this module imports Dask: `cluster.py` does so when it connects. Everything listens on
loopback, on free ports. Threads of the feeder's process pass blocks by reference. Dask's profiler, GIL monitor and
spilling, which would slow the feeder down, are off.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import Future as Handle
from functools import partial
from typing import Any

import dask
from dask.utils import key_split
from distributed import Client, Future, Security
from distributed.client import ClosedClientError
from distributed.deploy.cluster import Cluster as DaskDeployment

from feedline.errors import ClusterError
from feedline.loader.wire.job_reports import JobAnswer, JobReport
from feedline.resources import Cpu, allocator_environment, cpu_environment
from feedline.service.cluster.attempts import Arrived
from feedline.service.cluster.connection.fair_share import FairShare
from feedline.service.cluster.connection.pass_demand import PassDemand
from feedline.service.cluster.connection.reporting import Reporter
from feedline.service.cluster.connection.scheduler_check import check_scheduler
from feedline.service.cluster.connection.scheduler_connection import SchedulerConnection
from feedline.service.cluster.dashboard import DashboardOnDemand
from feedline.service.cluster.local_cluster import start_local
from feedline.service.cluster.local_tasks import LocalTask, LocalTasks
from feedline.service.cluster.provider import close_provider, provider_config, start_provider, worker_threads
from feedline.service.cluster.result_fetcher import ResultFetcher
from feedline.service.dask_patches.dask_config import WORKER_CONFIG
from feedline.service.dask_patches.prompt_streams import send_promptly
from feedline.service.dask_patches.steady_loop import steady
from feedline.service.scheduler.extension import install
from feedline.service.scheduler.job_book import ClusterSize
from feedline.service.tls.certificate_files import check_certificate_files
from feedline.service.tls.refused_connection import explain_refusal
from feedline.spec.cluster_section import ClusterSpec

_CONFIG = {
    **WORKER_CONFIG,
    "distributed.scheduler.worker-saturation": "inf",  # the feeder itself limits the blocks in flight
    "distributed.comm.timeouts.connect": "10s",
}
# Scheduler and worker share one process and one event loop: nothing is lost that is not lost together, no worker is
# better placed than the other, and a loop that looks for stalls every 20 ms takes 3 % of a core.
_CONFIG_OF_THREADS = {
    "distributed.admin.tick.interval": "2s",
    "distributed.admin.tick.limit": "60s",
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.system-monitor.disk": False,
    "distributed.worker.memory.monitor-interval": "10s",
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.idle-timeout": None,
    "distributed.client.heartbeat": "30s",
    "distributed.client.scheduler-info-interval": "10s",
}
# Tasks after which Dask's cache of the parsed keys of tasks is cleared.
_REMEMBERED_KEYS = 1000
# Worker processes are killed after the first time; tasks in threads of this process get the second to end.
_CLOSE_S, _TASKS_END_S = 5.0, 30.0


def _count_open(futures: Sequence[Future[Any]]) -> int:
    return sum(future.status == "pending" for future in futures)


class DaskTask:
    """A task on a Dask cluster, whose outcome is fetched when it has finished."""

    def __init__(self, future: Future[Any], fetch: Handle[None]) -> None:
        self._future = future
        self._fetch = fetch

    def cancel(self) -> None:
        """Release the task: it is cancelled, unless another client holds it too; its outcome is not fetched."""
        self._future.release()
        if self._future.client.status == "running":
            self._fetch.cancel()


class DaskCluster:
    """The connection to a scheduler, and the scheduler and workers themselves if this process started them.

    dashboard_port: of the HTTP server of a cluster that is started here. report: sent until there is another one.
    Raises ClusterError.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        *,
        threads: int,
        cpu: Cpu,
        share: FairShare,
        dashboard_port: int,
        scratch: str | None = None,
        elastic: bool = False,
        report: JobReport | None = None,
    ) -> None:
        self._elastic = elastic
        self._share = share
        self._spec = spec
        self._threads = threads
        self._dashboard_port = dashboard_port
        self._cluster: DaskDeployment | None = None
        self._started = 0
        self._in_process = spec.kind == "threads"
        self._fetcher = ResultFetcher()
        self._local_tasks = LocalTasks()
        passes = PassDemand(grow_after_s=spec.autoscale.grow_after_s)
        self._reporter = Reporter(share, report, passes, is_remote=spec.scheduler is not None)
        self._config = contextlib.ExitStack()
        config: dict[str, Any] = {**_CONFIG, **(_CONFIG_OF_THREADS if self._in_process else {})}
        if scratch is not None:  # else as in Dask's configuration
            config["temporary-directory"] = scratch
        workers_threads: int | None = threads
        if spec.kind == "provider":
            config |= provider_config(spec)
            workers_threads = worker_threads(spec.options)
        environment: dict[str, object] = {**allocator_environment(workers_threads or threads), **cpu_environment(cpu)}
        if workers_threads is not None:
            environment["POLARS_MAX_THREADS"] = workers_threads
        self._environment = environment
        for name, value in environment.items():
            config[f"distributed.nanny.pre-spawn-environ.{name}"] = value
        self._config.enter_context(dask.config.set(config))
        # Set here, as importing Dask sets levels of its own. Its client says as an error that it gives up a scheduler;
        # the feeder says that it is gone, and back.
        logging.getLogger("distributed").setLevel(logging.ERROR)
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        try:
            self.connection = SchedulerConnection(
                self._connect,
                address=self.address,
                wait_s=spec.wait_s,
                returns=spec.scheduler is not None,
                provider=spec.provider,
            )
        except BaseException:
            self.close()
            raise

    @property
    def dashboard(self) -> str | None:
        """The address of the dashboard of a scheduler that was not started here, or None."""
        with contextlib.suppress(KeyError):  # a scheduler without pages
            link = self.connection.client.dashboard_link if self._spec.dashboard else None
            return str(link) if link else None
        return None

    def start(
        self, function: Callable[..., Any], *arguments: Any, key: str, arrived: Arrived, **options: Any
    ) -> DaskTask | LocalTask | None:
        """Start a task; None if the scheduler does not answer. arrived: called once with its key and outcome, in any
        thread. options: of `Client.submit`."""
        self._started += 1
        if self._started % _REMEMBERED_KEYS == 0:
            key_split.cache_clear()  # of 100,000 keys, each of which is used for a second
        if self._in_process:
            submit = partial(self.connection.submit, **options)
            return self._local_tasks.start(submit, partial(function, *arguments), key=key, arrived=arrived)
        future = self.connection.submit(function, *arguments, key=key, **options)
        if future is None:
            return None
        return DaskTask(future, self._fetcher.watch(future.client, future, arrived))

    def look(self, *, waiting: bool) -> None:
        """Check scheduler, workers and tasks; see `SchedulerConnection.look`."""
        self.connection.look(waiting=waiting)
        self._local_tasks.look()

    def report(self, report: JobReport) -> None:
        """Send this report to the scheduler, in two seconds at the latest, and again until there is another one."""
        self._reporter.report = report

    def add_pass(self, open_tasks: Callable[[], int]) -> None:
        """Ask for workers while a pass has tasks that have not ended. open_tasks: their number."""
        self._reporter.open_tasks.append(open_tasks)

    def size(self) -> ClusterSize:
        """The workers and their threads, as of a few seconds ago."""
        workers = self.connection.workers()
        return ClusterSize(workers=workers, threads=self.connection.threads() if workers else 0)

    @property
    def answer(self) -> JobAnswer | None:
        """The scheduler's last answer to a report; None without one."""
        return self._share.answer

    def map(
        self,
        function: Callable[[Any], Any],
        arguments: Sequence[Any],
        preferences: Callable[[], Mapping[str, Any]],
    ) -> Iterator[Any]:
        """function(argument) for each argument, in order; repeated if the scheduler is lost."""
        while True:
            self.connection.await_scheduler()
            try:
                futures = self.connection.client.map(
                    function, list(arguments), pure=False, key="feedline-count", **preferences()
                )
                open_tasks = partial(_count_open, futures)
                self.add_pass(open_tasks)
                try:
                    return iter(self.connection.gather(futures))
                finally:
                    self._reporter.open_tasks.remove(open_tasks)
            except (CancelledError, ClosedClientError):  # lost with the scheduler
                continue
            except OSError:
                if self.connection.alive():  # else the connection failed
                    raise

    def address(self) -> str:
        """The scheduler's address, for messages."""
        if self._spec.scheduler is not None:
            return self._spec.scheduler
        return str(self._cluster.scheduler_address) if self._cluster is not None else "this process"

    def on_close(self, call: Callable[[], None]) -> None:
        """Call `call` after the cluster was closed and its own workers have ended."""
        self._config.callback(call)

    def close(self) -> None:
        """Close the connection, and the cluster if it was started here."""
        try:
            if hasattr(self, "connection"):
                self.connection.close()
            if self._cluster is not None:
                close_provider(self._cluster, _TASKS_END_S if self._in_process else _CLOSE_S)
        finally:
            self._config.close()

    def _connect(self) -> Client:
        client = self._make_client()
        if not self._in_process:
            self._reporter.follow(client)
        return client

    def _make_client(self) -> Client:
        if self._spec.scheduler is not None:
            return self._connect_to_scheduler(self._spec.scheduler)
        with warnings.catch_warnings():
            # bokeh and tornado warn about what their next versions will do; not the user's concern
            warnings.simplefilter("ignore")
            if self._cluster is None:
                self._cluster = self._start_cluster()
            return Client(self._cluster, direct_to_workers=True, set_as_default=False)

    def _start_cluster(self) -> DaskDeployment:
        if self._spec.kind == "provider":
            return start_provider(self._spec, self._environment, elastic=self._elastic)
        if self._in_process:
            send_promptly()
        cluster = start_local(
            self._spec, threads=self._threads, dashboard_port=self._dashboard_port, elastic=self._elastic
        )
        scheduler: Any = cluster.scheduler
        if self._spec.dashboard:
            scheduler.http_application.add_application(DashboardOnDemand(scheduler))
        if not self._in_process:
            loop: Any = cluster.loop
            loop.add_callback(install, scheduler)
        return cluster

    def _connect_to_scheduler(self, address: str) -> Client:
        security = None
        tls = self._spec.tls
        if tls is not None:
            check_certificate_files(tls, listens=False)
            security = Security(
                tls_ca_file=tls.ca, tls_client_cert=tls.cert, tls_client_key=tls.key, require_encryption=True
            )
        try:
            client = Client(
                address,
                security=security,
                direct_to_workers=True,
                set_as_default=False,
                timeout=min(10.0, self._spec.wait_s),
            )
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            refusal = explain_refusal(address, tls)
            raise ClusterError(
                refusal
                or f"no Dask scheduler answers at {address}: {error}. Start one (feedline scheduler), or "
                "correct cluster.scheduler"
            ) from error
        steady(client.loop)
        try:
            check_scheduler(client, address)
        except ClusterError:
            client.close()
            raise
        self._reporter.greet(client)
        return client
