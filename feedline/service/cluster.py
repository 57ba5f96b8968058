"""Which Dask cluster does the work? Threads in this process, worker processes on this machine, or one by address.

Runs in: the feeder. Everything listens on loopback and on free ports. In the feeder's own process blocks are handed
over by reference; what would cost there for nothing is off: the statistical profiler, the GIL monitor, spilling.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, Literal

import dask
from distributed import Client, Security, SpecCluster

from feedline.errors import ClusterError
from feedline.loader.launch import ALLOCATOR_ENVIRONMENT
from feedline.processor import chosen, variables
from feedline.sections import ClusterSpec
from feedline.service.environment import Environment, check_environment, environment_at
from feedline.service.local_cluster import start_local
from feedline.service.tasks import Job, check_job
from feedline.transforms.user_functions import Needed, check_functions

logger = logging.getLogger(__name__)

_CONFIG = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.system-monitor.interval": "2s",
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    # The feeder bounds what is in flight itself.
    "distributed.scheduler.worker-saturation": "inf",
    "distributed.comm.timeouts.connect": "10s",
}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0


class Cluster:
    """A client of the cluster that a pipeline asks for, and the cluster itself where it is ours."""

    def __init__(self, spec: ClusterSpec, *, threads: int, scratch: str | None = None) -> None:
        self._spec = spec
        self._threads = threads
        self._cluster: SpecCluster | None = None
        self._dashboard_loaded = False
        self._workerless_since: float | None = None
        self._code: tuple[Needed, ...] = ()
        kinds: dict[bool, Literal["threads", "processes", "scheduler"]] = {True: "processes", False: "threads"}
        self.kind: Literal["threads", "processes", "scheduler"] = (
            "scheduler" if spec.scheduler is not None else kinds[spec.workers is not None]
        )
        self._cpu = chosen(spec.cpu, shared=self.kind == "scheduler")
        self._config = contextlib.ExitStack()
        config: dict[str, Any] = dict(_CONFIG)
        if scratch is not None:  # else where Dask's own configuration says
            config["temporary-directory"] = scratch
        for name, value in {**ALLOCATOR_ENVIRONMENT, "POLARS_MAX_THREADS": threads, **variables(self._cpu)}.items():
            config[f"distributed.nanny.pre-spawn-environ.{name}"] = value
        self._config.enter_context(dask.config.set(config))
        logging.getLogger("distributed").setLevel(logging.ERROR)
        try:
            self.client = self._connect()
        except BaseException:
            self.close()
            raise

    @property
    def environment(self) -> Environment:
        """What every worker has to be, for blocks to have the same bytes wherever they are computed."""
        return environment_at(self._cpu)

    @property
    def packed(self) -> bool:
        """Whether results leave a worker's process."""
        return self.kind != "threads"

    @property
    def dashboard(self) -> str | None:
        """The address of Dask's dashboard; None where there is none."""
        if not self._spec.dashboard:
            return None
        if self._cluster is not None:
            scheduler: Any = self._cluster.scheduler
            port = scheduler.services["dashboard"].port  # the link names the host's outer address
            return f"http://127.0.0.1:{port}/status"
        link = self.client.dashboard_link
        return str(link) if link else None

    def load_dashboard(self) -> None:
        """Bring up the dashboard's pages at its address: 0.3 s of imports, which the first batch need not wait for."""
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
        return len(self._info()["workers"])

    def threads(self) -> int:
        """Threads of all workers; at least one, while workers are still coming."""
        return max(1, sum(int(worker["nthreads"]) for worker in self._info()["workers"].values()))

    def window(self, lanes: int) -> int:
        """Blocks in flight: each thread has one and finds the next, and each lane has one that steps are cut from."""
        return self._spec.window or 2 * self.threads() + lanes

    def require_workers(self) -> None:
        """Raise ClusterError where the cluster has had no worker for `cluster.wait_s`. Called every second or so."""
        if self.workers():
            self._workerless_since = None
            return
        now = time.monotonic()
        if self._workerless_since is None:
            self._workerless_since = now
            logger.warning("the Dask cluster at %s has no worker; waiting for one", self._address())
        elif now - self._workerless_since > self._spec.wait_s:
            raise ClusterError(
                f"the Dask cluster has no worker: got none for {self._spec.wait_s:g} s at {self._address()}. Start one "
                f"(dask worker {self._address()}), or raise cluster.wait_s"
            )

    def alive(self) -> bool:
        """Whether the scheduler answers."""
        connection = self.client.scheduler_comm
        return self.client.status == "running" and connection is not None and not connection.comm.closed()

    def check_workers(self, code: Sequence[Needed] = ()) -> None:
        """Wait for a worker, and see that all have our versions, and the user's functions. Raises ClusterError."""
        self._code = tuple(code) or self._code
        try:
            self.client.wait_for_workers(1, timeout=self._spec.wait_s)
        except TimeoutError:
            raise ClusterError(
                f"the Dask cluster has no worker: got none in {self._spec.wait_s:g} s at {self._address()}. Start one "
                f"(dask worker {self._address()}), or raise cluster.wait_s"
            ) from None
        if self.kind == "threads":
            check_environment(self.environment)
        else:
            self.client.run(check_environment, self.environment)
        if self._code and self.kind != "threads":
            self.client.run(check_functions, self._code)

    def check_job(self, job: Job) -> None:
        """See that all workers can do what a job asks. Raises ClusterError."""
        if self.kind != "threads":
            self.client.run(check_job, job)

    def map(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        """function(argument) for each, computed on the cluster, in order; begun again where the scheduler is lost."""
        while True:
            futures = self.client.map(function, list(arguments), pure=False, key="feedline-count")
            try:
                return iter(self.client.gather(futures))
            except CancelledError:
                if not self.alive():
                    self.reconnect()

    def reconnect(self) -> None:
        """Find the scheduler again, with growing pauses. Raises ClusterError after cluster.wait_s."""
        if self.kind != "scheduler":
            raise ClusterError("the Dask cluster in this process stopped. Start the feeder again")
        logger.warning("the Dask scheduler at %s is gone; waiting for it", self._address())
        self._close_client()
        deadline = time.monotonic() + self._spec.wait_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                self.client = self._connect()
            except ClusterError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            else:
                self.check_workers()
                return

    def on_close(self, call: Callable[[], None]) -> None:
        """Call it when the cluster is closed, and its workers, where they are ours, have ended."""
        self._config.callback(call)

    def close(self) -> None:
        self._close_client()
        if self._cluster is not None:
            with contextlib.suppress(TimeoutError, OSError):
                self._cluster.close(timeout=5)
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

    def _info(self) -> Any:
        return self.client.scheduler_info(n_workers=-1)

    def _close_client(self) -> None:
        client = getattr(self, "client", None)
        if client is not None:
            with contextlib.suppress(TimeoutError, OSError, RuntimeError):
                client.close(timeout=2)
