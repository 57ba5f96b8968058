"""Serve a scheduler with one worker, over and over: a worker that has lost its scheduler is replaced by another.

Runs in: the process of `feedline worker`, whose environment was set before it started (`worker_environment`). Spilling
and Dask's memory limits are off: feeders limit the blocks in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import dask
from distributed import Security, Worker
from distributed.comm.core import connect
from distributed.core import rpc
from distributed.utils import get_ip

from feedline.config.cluster_section import TlsSpec, is_loopback, scheduler_address
from feedline.config.monitoring_section import MetricsSpec
from feedline.dataclass import dataclass
from feedline.errors import ClusterError
from feedline.native.kernels import kernels_text
from feedline.resources.allocators import own_or_users
from feedline.resources.instructions import Cpu, cpu_environment
from feedline.service.certificates import security_of
from feedline.service.dask_patches.dask_config import WORKER_CONFIG
from feedline.service.dask_patches.steady_loop import steady
from feedline.service.dask_patches.worker_patches import SchedulerWatch, worker_class
from feedline.service.monitoring.block_counts import BLOCK_COUNTS
from feedline.service.refused_connection import explain_refusal
from feedline.service.worker.departure import DRAIN_S, Departure
from feedline.service.worker.worker_metrics import WORKER_METRICS, WorkerState
from feedline.service.worker_cores import report_cores

logger = logging.getLogger("feedline.worker")

_CONNECT_S = 5.0
_PAUSE_S = 1.0
# For a worker to start when it has been told to end meanwhile: it may have its first task already.
_START_S = 5.0
# For a worker to be taken by a scheduler that accepts connections. At a fixed port it waits in vain while the scheduler
# still lists another process's worker there, so it tries again sooner.
_TAKEN_S, _TAKEN_AGAIN_S = 30.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """A worker of `threads` threads for a scheduler. tls: of the connection. host, port: on which it listens (None: on
    the address from which it reaches the scheduler, on any free port). contact_address: "host:port" at which others
    reach it (None: where it listens). http: "host:port" of its health and metrics (None: no HTTP server). metrics:
    where it serves its own metrics alone (None: not). scratch: its folder (None: Dask's default). drain_s: for running
    blocks to end when it leaves. wait_s: to search a scheduler (None: forever)."""

    scheduler: str
    threads: int
    tls: TlsSpec | None = None
    name: str | None = None
    host: str | None = None
    port: int | None = None
    contact_address: str | None = None
    http: str | None = None
    metrics: MetricsSpec | None = None
    scratch: str | None = None
    drain_s: float = DRAIN_S
    wait_s: float | None = None


def worker_environment(threads: int, cpu: Cpu, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with which a worker must start: the given one, with what its libraries read when they load.

    What is set already stays, but for numpy's instructions: a worker with others is refused by every feeder.
    """
    own = {"POLARS_MAX_THREADS": str(threads), "OMP_NUM_THREADS": "1"}
    return {**own, **environment, **own_or_users(threads, environment), **cpu_environment(cpu)}


class WorkerProcess:
    """Runs workers until a signal, or until no scheduler answers for `wait_s`."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._departure: Departure | None = None
        self._stop = False
        self._served: str | None = None  # the address of the last worker
        self._serving: asyncio.Task[None] | None = None
        self._start: asyncio.Timeout | None = None

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C. Raises ClusterError if no scheduler answers for `wait_s`, and for certificates
        that cannot be used."""
        security = security_of(self._options.tls, listens=True)
        with self._watched(), dask.config.set(WORKER_CONFIG):
            asyncio.run(self._run(security))

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Serve metrics, where they are asked for: for the life of the process, whatever its worker does."""
        options = self._options
        if options.http is not None:
            from feedline.service.monitoring.prometheus_server import add_to_dask  # noqa: PLC0415 -- asked for

            add_to_dask("worker", WORKER_METRICS, self.state)
        if options.metrics is None:
            yield
            return
        from feedline.service.monitoring.prometheus_server import serve_metrics  # noqa: PLC0415 -- asked for

        labels = {"feedline_role": "worker", "feedline_worker": options.name or ""}
        with serve_metrics(options.metrics, WORKER_METRICS, self.state, labels):
            yield

    def state(self) -> WorkerState:
        return WorkerState(
            threads=self._options.threads, is_serving=self._departure is not None, blocks=BLOCK_COUNTS.read()
        )

    async def _run(self, security: Security) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        self._serving = asyncio.create_task(self._serve(security))
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving

    def _end(self) -> None:
        departure, asked, self._stop = self._departure, self._stop, True
        if departure is None:
            assert self._serving is not None
            if self._start is None or asked:
                self._serving.cancel()
            else:
                self._start.reschedule(asyncio.get_running_loop().time() + _START_S)
        elif departure.begun:
            departure.hurry()
        else:
            self._leaving = asyncio.create_task(departure.leave())

    async def _serve(self, security: Security) -> None:
        options = self._options
        while not self._stop:
            await self._await_scheduler(security)
            if self._served is not None:
                await forget_worker(options.scheduler, self._served, security)
            worker = self._worker(security)
            report_cores(worker)
            try:
                async with asyncio.timeout(None) as self._start:
                    await worker
            except (OSError, TimeoutError, RuntimeError) as error:  # lost again, or it refuses the worker
                if not self._stop:
                    reason = error.__cause__ or error  # Dask says only that the worker failed to start
                    logger.warning("the scheduler at %s did not take the worker: %s", options.scheduler, reason)
                    await asyncio.sleep(_PAUSE_S)
                continue
            finally:
                self._start = None
            self._served = worker.address
            SchedulerWatch(worker)
            steady(worker.io_loop)
            self._departure = Departure(worker, limit_s=options.drain_s)
            if self._stop:
                await self._departure.leave()
                return
            served = worker.address, options.scheduler, options.threads, kernels_text()
            logger.info("worker %s serves %s with %d threads, kernels: %s", *served)
            await worker.finished()
            self._departure = None
            if not self._stop:
                logger.warning("the scheduler at %s is gone, or has closed the worker", options.scheduler)

    def _worker(self, security: Security) -> Worker:
        options = self._options
        protocol, host, port = scheduler_address(options.scheduler)
        contact = options.contact_address
        own = options.host or ("127.0.0.1" if is_loopback(host) else get_ip(host, port))
        return worker_class(http=options.http is not None)(
            options.scheduler,
            nthreads=options.threads,
            name=options.name,
            host=own,
            port=options.port,
            contact_address=None if contact is None else f"{protocol}://{contact}",
            security=security,
            local_directory=options.scratch,
            memory_limit=0,
            dashboard=False,
            dashboard_address=options.http or "127.0.0.1:0",
            death_timeout=_TAKEN_S if options.port is None else _TAKEN_AGAIN_S,
        )

    async def _await_scheduler(self, security: Security) -> None:
        """Wait until the scheduler accepts connections. Raises ClusterError after `wait_s`."""
        address, wait_s = self._options.scheduler, self._options.wait_s
        begin_s, complaint = time.monotonic(), ""
        timeout_s = _CONNECT_S if wait_s is None else min(_CONNECT_S, max(_PAUSE_S, wait_s))
        while True:
            try:
                comm = await connect(address, timeout=timeout_s, **security.get_connection_args("worker"))
            except (OSError, TimeoutError, RuntimeError) as error:
                reason = await asyncio.to_thread(explain_refusal, address, self._options.tls) or str(error)
            else:
                await comm.close()
                return
            if reason != complaint:
                logger.warning("no scheduler answers at %s; waiting for it: %s", address, reason)
            complaint = reason
            if wait_s is not None and time.monotonic() - begin_s > wait_s:
                raise ClusterError(
                    f"no Dask scheduler answers at {address}: got none in {wait_s:g} s, the last time {reason}. Start "
                    f"one (feedline scheduler), or raise --wait-s"
                )
            await asyncio.sleep(_PAUSE_S)


async def forget_worker(scheduler: str, address: str, security: Security) -> None:
    """Have a scheduler forget a worker that has closed, if it still lists it.

    Behind a half-open connection it does until `worker-ttl` has passed: it keeps its tasks, and refuses another
    worker at the same address.
    """
    remote: Any = rpc(scheduler, timeout=_CONNECT_S, connection_args=security.get_connection_args("worker"))
    try:
        async with asyncio.timeout(_CONNECT_S):
            await remote.unregister(address=address, expected=True, stimulus_id=f"feedline-forget-{time.time()}")
    except Exception as error:  # also one of the scheduler's, which may be of another version: the worker goes on
        logger.debug("the scheduler at %s did not forget %s: %s", scheduler, address, error)
    finally:
        await remote.close_rpc()


def replace_process(environment: dict[str, str], arguments: list[str]) -> None:
    """Start this program anew in the same process, with another environment. Returns only if there is no need."""
    if any(os.environ.get(name) != value for name, value in environment.items()):
        os.execve(arguments[0], arguments, environment)
