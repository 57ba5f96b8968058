"""The Dask cluster of a pipeline: threads in this process, worker processes on this machine, or one by address.

Runs in: the feeder. Everything listens on loopback, on free ports. Threads of the feeder's process pass blocks by
reference. Dask's profiler, GIL monitor and spilling, which would slow the feeder down, are off.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, Literal

import dask
from distributed import Client, Future, Security, SpecCluster
from distributed.client import ClosedClientError

from feedline.blocks.environment import Environment, check_environment, environment_at
from feedline.blocks.jobs import check_job
from feedline.blocks.request import Job
from feedline.errors import ClusterError
from feedline.resources import ALLOCATOR_ENVIRONMENT, choose_cpu, cpu_environment
from feedline.service.cluster.local_cluster import start_local
from feedline.service.cluster.scheduler_connection import SchedulerConnection, no_worker
from feedline.service.dispatch.blame import EXCLUDED_S, Exclusions
from feedline.service.dispatch.timing import priority
from feedline.spec.sections import ClusterSpec
from feedline.transforms.registry.user_functions import RequiredFunction, check_functions

logger = logging.getLogger(__name__)

_CONFIG = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.system-monitor.interval": "2s",
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    # The feeder itself limits the blocks in flight.
    "distributed.scheduler.worker-saturation": "inf",
    "distributed.comm.timeouts.connect": "10s",
}

_CHECK_S = 30.0  # time for all workers to answer a check
# Worker processes are killed after the first time; tasks in threads of this process get the second to end.
_CLOSE_S, _TASKS_END_S = 5.0, 30.0


class Cluster:
    """A client of the pipeline's cluster, and the cluster itself if this process started it."""

    def __init__(self, spec: ClusterSpec, *, threads: int, scratch: str | None = None) -> None:
        self._spec = spec
        self._threads = threads
        self._cluster: SpecCluster | None = None
        self._dashboard_loaded = False
        kinds: dict[bool, Literal["threads", "processes", "scheduler"]] = {True: "processes", False: "threads"}
        self.kind: Literal["threads", "processes", "scheduler"] = (
            "scheduler" if spec.scheduler is not None else kinds[spec.workers is not None]
        )
        self._exclusions = Exclusions()
        self._cpu = choose_cpu(spec.cpu, shared=self.kind == "scheduler")
        self._config = contextlib.ExitStack()
        config: dict[str, Any] = dict(_CONFIG)
        if scratch is not None:  # else as in Dask's configuration
            config["temporary-directory"] = scratch
        environment = {**ALLOCATOR_ENVIRONMENT, "POLARS_MAX_THREADS": threads, **cpu_environment(self._cpu)}
        for name, value in environment.items():
            config[f"distributed.nanny.pre-spawn-environ.{name}"] = value
        self._config.enter_context(dask.config.set(config))
        logging.getLogger("distributed").setLevel(logging.ERROR)
        try:
            self.connection = SchedulerConnection(
                self._connect, address=self._address, wait_s=spec.wait_s, returns=self.kind == "scheduler"
            )
        except BaseException:
            self.close()
            raise

    @property
    def client(self) -> Client:
        """The current client."""
        return self.connection.client

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
        """The address of Dask's dashboard, or None."""
        if not self._spec.dashboard:
            return None
        if self._cluster is not None:
            scheduler: Any = self._cluster.scheduler
            port = scheduler.services["dashboard"].port  # the link names the host's outer address
            return f"http://127.0.0.1:{port}/status"
        link = self.client.dashboard_link
        return str(link) if link else None

    def load_dashboard(self) -> None:
        """Load the pages of the dashboard. Its 0.3 s of imports must not delay the first batch."""
        if self._cluster is None or self._dashboard_loaded or not self._spec.dashboard:
            return
        self._dashboard_loaded = True
        scheduler: Any = self._cluster.scheduler

        async def connect() -> None:
            dashboard.connect(scheduler.http_application, scheduler.http_server, scheduler, prefix="")

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dashboard = importlib.import_module("distributed.dashboard.scheduler")
            self._cluster.sync(connect)

    def workers(self) -> int:
        """The number of workers, as of a few seconds ago."""
        return self.connection.workers()

    def threads(self) -> int:
        """The threads of all workers, as of a few seconds ago; at least 1, also before workers have started."""
        return self.connection.threads()

    @property
    def fixed_window(self) -> int | None:
        """`cluster.window`."""
        return self._spec.window

    @property
    def local_results(self) -> Mapping[str, Any]:
        """Results of the worker in this process, by key; empty if workers are processes."""
        workers = self._cluster.workers.values() if self.kind == "threads" and self._cluster is not None else ()
        return next((worker.data for worker in workers), {})

    def members(self) -> frozenset[str]:
        """The addresses of all workers, as of a few seconds ago."""
        return self.connection.members()

    def workers_of(self, keys: Collection[str]) -> dict[str, str]:
        """The worker that runs each task, or holds its result."""
        return self.connection.workers_of(keys)

    def eligible_workers(self) -> frozenset[str] | None:
        """The workers that may get blocks; None for any."""
        now_s = time.monotonic()
        return self._exclusions.eligible_workers(self.members(), now_s) if self._exclusions.any(now_s) else None

    def preferences(self) -> dict[str, Any]:
        """Dask options of tasks that are not blocks: preferably not on excluded workers, and after the blocks that
        trainers need by now."""
        eligible = self.eligible_workers()
        workers = {} if eligible is None else {"workers": sorted(eligible), "allow_other_workers": True}
        return {"priority": priority(time.time()), **workers}

    def exclude(self, worker: str, why: str) -> None:
        """Give a worker's host no blocks for a while; logs the first time."""
        members = self.members() if worker and self.kind != "threads" else ()
        if len(members) > 1 and self._exclusions.exclude(worker, members, time.monotonic()):
            logger.warning("worker %s gets no blocks for %.0f s: %s", worker, EXCLUDED_S, why)

    def look(self, *, waiting: bool) -> None:
        """Check scheduler and workers; see `SchedulerConnection.look`."""
        self.connection.look(waiting=waiting)

    def alive(self) -> bool:
        """Whether the scheduler answers."""
        return self.connection.alive()

    def submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any] | None:
        """`Client.submit`; None if the scheduler does not answer."""
        return self.connection.submit(function, *arguments, **options)

    def check_workers(self, code: Sequence[RequiredFunction] = ()) -> None:
        """Wait for a worker, and check that workers have our versions and the user's functions.

        Raises ClusterError if there is no worker, or no fit one.
        """
        try:
            self.client.wait_for_workers(1, timeout=self._spec.wait_s)
        except TimeoutError:
            raise no_worker(self._address(), self._spec.wait_s) from None
        if self.kind == "threads":
            check_environment(self.environment)
            return
        self._examine(check_environment, self.environment)
        if code:
            self._examine(check_functions, tuple(code))

    def check_job(self, job: Job) -> None:
        """Send a job to all workers, which check that they can compute it. Raises ClusterError if none can."""
        self.connection.await_scheduler()
        if self.kind != "threads":
            self._examine(check_job, job)

    def _examine(self, check: Callable[[Any], None], argument: Any) -> None:
        """Run a check on all workers; those that fail it get no blocks. Raises an error of the check if all fail."""
        try:
            answers = self.client.sync(self.client._run, check, argument, on_error="return", callback_timeout=_CHECK_S)
        except OSError:  # the scheduler or a worker does not answer: each task checks again
            return
        # An unreachable worker is about to leave.
        errors = {worker: error for worker, error in answers.items() if isinstance(error, Exception)}
        unfit = {worker: error for worker, error in errors.items() if not isinstance(error, OSError)}
        if unfit and len(errors) == len(answers):
            raise next(iter(unfit.values()))
        for worker, error in unfit.items():
            self.exclude(worker, str(error))

    def map(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        """function(argument) for each argument, in order, on the cluster; repeated if the scheduler is lost."""
        while True:
            self.connection.await_scheduler()
            try:
                futures = self.client.map(
                    function, list(arguments), pure=False, key="feedline-count", **self.preferences()
                )
                return iter(self.connection.gather(futures))
            except (CancelledError, ClosedClientError):  # lost with the scheduler
                continue
            except OSError:
                if self.alive():  # else the connection failed
                    raise

    def on_close(self, call: Callable[[], None]) -> None:
        """Call `call` after the cluster was closed and its own workers have ended."""
        self._config.callback(call)

    def close(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()
        if self._cluster is not None:
            with contextlib.suppress(TimeoutError, OSError):
                self._cluster.close(timeout=_TASKS_END_S if self.kind == "threads" else _CLOSE_S)
        self._config.close()

    def _connect(self) -> Client:
        if self.kind == "scheduler":
            return self._connect_to_scheduler()
        with warnings.catch_warnings():
            # bokeh and tornado warn about what their next versions will do; not the user's concern
            warnings.simplefilter("ignore")
            if self._cluster is None:
                self._cluster = start_local(self._spec, threads=self._threads)
            return Client(self._cluster, direct_to_workers=True, set_as_default=False)

    def _connect_to_scheduler(self) -> Client:
        security = None
        if self._spec.tls is not None:
            tls = self._spec.tls
            security = Security(
                tls_ca_file=tls.ca, tls_client_cert=tls.cert, tls_client_key=tls.key, require_encryption=True
            )
        try:
            return Client(
                self._address(),
                security=security,
                direct_to_workers=True,
                set_as_default=False,
                timeout=min(10.0, self._spec.wait_s),
            )
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            raise ClusterError(
                f"no Dask scheduler answers at {self._address()}: {error}. Start one (dask scheduler), or correct "
                f"cluster.scheduler"
            ) from error

    def _address(self) -> str:
        if self._spec.scheduler is not None:
            return self._spec.scheduler
        return str(self._cluster.scheduler_address) if self._cluster is not None else "this process"
