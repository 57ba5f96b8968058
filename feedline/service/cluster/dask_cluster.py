"""The Dask side of a cluster: the scheduler and workers that this process starts, its client, its tasks.

Runs in: the feeder. Importing this module imports Dask: the back ends do so when they connect. Everything listens on
loopback, on free ports. Dask's profiler, GIL monitor and
spilling, which would slow the feeder down, are off.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

import dask
from dask.utils import key_split
from distributed import Client, Future
from distributed.client import ClosedClientError
from distributed.deploy.cluster import Cluster as DaskDeployment
from distributed.utils import format_dashboard_link

from feedline.config.cluster_section import ClusterSpec
from feedline.errors import ClusterError
from feedline.loader.wire.job_reports import JobReport
from feedline.loader.wire.run_status import FeederStatus
from feedline.resources.allocators import allocator_environment
from feedline.resources.instructions import Cpu, cpu_environment
from feedline.service.certificates import security_of
from feedline.service.cluster.attempts import Arrived
from feedline.service.cluster.fair_share import FairShare
from feedline.service.cluster.local_cluster import start_processes
from feedline.service.cluster.provider import close_provider, provider_config, start_provider, worker_threads
from feedline.service.cluster.reporting import PassDemand, Reporter
from feedline.service.cluster.request import ClusterRequest
from feedline.service.cluster.result_fetcher import FetchedTask, ResultFetcher
from feedline.service.cluster.scheduler_connection import SchedulerConnection, check_scheduler
from feedline.service.cluster.shared_results import SharedResults
from feedline.service.dask_patches.dask_config import FEEDER_CONFIG, PROVIDER_CONFIG, private_config
from feedline.service.dask_patches.steady_loop import steady
from feedline.service.dask_patches.worker_patches import worker_failure
from feedline.service.refused_connection import explain_refusal
from feedline.service.scheduler.job_book import ClusterSize
from feedline.service.worker.watched_worker import watched_workers

# Tasks after which Dask's cache of the parsed keys of tasks is cleared.
_REMEMBERED_KEYS = 1000
_CLOSE_S = 5.0  # then worker processes are killed
_ANSWER_S = 5.0  # a scheduler that takes longer to name its dashboard has none


def open_dask(request: ClusterRequest, *, cpu: Cpu, share: FairShare, shared: SharedResults) -> DaskCluster:
    """The cluster that is asked for, with Dask. shared: receives results of workers on this host. Raises
    ClusterError."""
    spec, threads, elastic = request.spec, request.threads, request.elastic
    own_threads = worker_threads(spec.options) if spec.kind == "provider" else threads  # None: its class does not say
    environment: dict[str, object] = {**allocator_environment(own_threads or threads), **cpu_environment(cpu)}
    if own_threads is not None:
        environment["POLARS_MAX_THREADS"] = own_threads
    private = private_config() if spec.kind == "processes" else {}
    folder = {} if request.scratch is None else {"temporary-directory": request.scratch}
    variables = {f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in environment.items()}
    config = {**private, **FEEDER_CONFIG, **folder, **variables}
    deploy: Callable[[], DaskDeployment] | None = None
    match spec.kind:
        case "processes":
            deploy = partial(start_processes, spec, threads=threads, elastic=elastic)
            config |= watched_workers(request.metrics, job="" if request.report is None else request.report.job)
        case "provider":
            config |= {**PROVIDER_CONFIG, **provider_config(spec)}
            deploy = partial(start_provider, spec, environment, elastic=elastic)
    tasks = ResultFetcher(shared)
    return DaskCluster(spec, config=config, deploy=deploy, tasks=tasks, share=share, report=request.report)


def _dashboard_of(client: Client) -> str | None:
    """The address of the dashboard of a client's scheduler; None if it has none, or does not answer."""
    with contextlib.suppress(KeyError, OSError, TimeoutError):
        if client.cluster is not None:
            return str(client.cluster.dashboard_link) or None
        scheduler: Any = client.scheduler  # `Client.dashboard_link` asks it without a limit
        identity = client.sync(scheduler.identity, n_workers=0, callback_timeout=_ANSWER_S)
        host = str(scheduler.address).partition("://")[2].rpartition(":")[0]
        return str(format_dashboard_link(host, identity["services"]["dashboard"]))
    return None


class DaskCluster:
    """The connection to a scheduler, and the scheduler and workers themselves if this process started them.

    config: Dask's, for as long as there is the cluster. deploy: starts scheduler and workers (None: `spec.scheduler`
    names one). report: the first to the scheduler. Raises ClusterError.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        *,
        config: Mapping[str, Any],
        deploy: Callable[[], DaskDeployment] | None,
        tasks: ResultFetcher,
        share: FairShare,
        report: JobReport | None,
    ) -> None:
        self._spec, self._deploy = spec, deploy
        self._tasks = tasks
        self._cluster: DaskDeployment | None = None
        self.dashboard: str | None = None  # of a scheduler that was not started here, as of the last connection to it
        self._started = 0
        passes = PassDemand(grow_after_s=spec.autoscale.grow_after_s)
        self.reporter = Reporter(share, report, passes, is_remote=deploy is None)
        self._config = contextlib.ExitStack()
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
                returns=deploy is None,
                provider=spec.provider,
                failure=worker_failure,
            )
        except BaseException:
            self.close()
            raise

    def start(
        self, function: Callable[..., Any], *arguments: Any, key: str, arrived: Arrived, **options: Any
    ) -> FetchedTask | None:
        """Start a task; None if the scheduler does not answer. arrived: called once with its key and outcome, in any
        thread. options: of `Client.submit`."""
        self._started += 1
        if self._started % _REMEMBERED_KEYS == 0:
            key_split.cache_clear()  # of 100,000 keys, each of which is used for a second
        submit = partial(self.connection.submit, **options)
        return self._tasks.start(submit, function, *arguments, key=key, arrived=arrived)

    def look(self, *, waiting: bool) -> None:
        self.connection.look(waiting=waiting)

    def publish(self, status: Callable[[], FeederStatus]) -> None:
        """Make the feeder's status available to its scheduler, whose process may be another one."""
        self.reporter.status = status

    def size(self) -> ClusterSize:
        workers = self.connection.workers()
        return ClusterSize(workers=workers, threads=self.connection.threads() if workers else 0)

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

                def open_tasks(futures: Sequence[Future[Any]] = futures) -> int:
                    return sum(future.status == "pending" for future in futures)

                self.reporter.open_tasks.append(open_tasks)
                try:
                    return iter(self.connection.gather(futures))
                finally:
                    self.reporter.open_tasks.remove(open_tasks)
            except (CancelledError, ClosedClientError):  # lost with the scheduler
                continue
            except OSError:
                if self.connection.alive():  # else the connection failed
                    raise

    def address(self) -> str:
        if self._spec.scheduler is not None:
            return self._spec.scheduler
        return str(self._cluster.scheduler_address) if self._cluster is not None else "this process"

    def on_close(self, call: Callable[[], None]) -> None:
        self._config.callback(call)

    def close(self) -> None:
        try:
            if hasattr(self, "connection"):
                self.connection.close()
            if self._cluster is not None:
                close_provider(self._cluster, _CLOSE_S)
        finally:
            self._config.close()

    def _connect(self) -> Client:
        client = self._make_client()
        if self._spec.dashboard:
            self.dashboard = _dashboard_of(client)
        self.reporter.follow(client)
        return client

    def _make_client(self) -> Client:
        if self._deploy is None:
            return self._connect_to_scheduler(self.address())
        with warnings.catch_warnings():
            # bokeh and tornado warn about what their next versions will do; not the user's concern
            warnings.simplefilter("ignore")
            if self._cluster is None:
                self._cluster = self._deploy()
            return Client(self._cluster, direct_to_workers=True, set_as_default=False)

    def _connect_to_scheduler(self, address: str) -> Client:
        security = security_of(self._spec.tls, listens=False)
        try:
            client = Client(
                address,
                security=security,
                direct_to_workers=True,
                set_as_default=False,
                timeout=min(10.0, self._spec.wait_s),
            )
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            refusal = explain_refusal(address, self._spec.tls)
            raise ClusterError(
                refusal
                or f"no Dask scheduler answers at {address}: {error}. Start one (feedline scheduler), or "
                "correct cluster.scheduler"
            ) from error
        try:
            steady(client.loop)
            check_scheduler(client, address)
        except ClusterError:
            client.close()
            raise
        self.reporter.greet(client)
        return client
