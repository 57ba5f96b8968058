"""Run a Dask scheduler with our extension until a signal.

Runs in: the process of `feedline scheduler`, which loads neither torch, Polars nor pyarrow.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
from collections.abc import Callable
from typing import Any

import dask
from distributed import Security

from feedline.config.cluster_section import TlsSpec, is_loopback
from feedline.config.monitoring_section import MetricsSpec
from feedline.dataclass import dataclass
from feedline.errors import ClusterError, SpecError
from feedline.service.certificates import security_of
from feedline.service.dask_patches.dask_config import SCHEDULER_CONFIG
from feedline.service.dask_patches.scheduler_patches import scheduler_class
from feedline.service.page.page_server import PAGE
from feedline.service.scheduler.extension import install
from feedline.service.scheduler.preload import dask_setup
from feedline.service.scheduler.scheduler_metrics import SCHEDULER_METRICS, SchedulerState

logger = logging.getLogger("feedline.scheduler")

# A scrape gives up when the loop is busy for so long.
_SCRAPE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Where a scheduler listens. dashboard: "host:port" of its HTTP server: the pages and metrics of Dask and
    Feedline, `/health`, and the number of workers that jobs need, all without a key (None: no HTTP server).
    metrics: where it serves its own metrics alone (None: not)."""

    host: str = "127.0.0.1"
    port: int = 8786
    dashboard: str | None = None
    tls: TlsSpec | None = None
    metrics: MetricsSpec | None = None


def refuse_open(options: SchedulerOptions, *, insecure: bool) -> None:
    """Raise SpecError for a scheduler that other machines reach without TLS, unless that is allowed."""
    if options.tls is not None or insecure or is_loopback(options.host):
        return
    raise SpecError(
        f"the scheduler would be unencrypted and not only on this machine: got --host {options.host}. Dask's messages "
        "are pickle, so anyone who reaches the port can run code. Give --tls-ca, --tls-cert and --tls-key (feedline "
        "certs makes them), or accept the risk with --insecure"
    )


def run_scheduler(options: SchedulerOptions) -> None:
    """Serve until SIGTERM or Ctrl-C; logs the address when workers and feeders may connect.

    Raises ClusterError if it cannot listen there, and for certificates that cannot be used.
    """
    security = security_of(options.tls, listens=True)
    with dask.config.set(SCHEDULER_CONFIG):
        asyncio.run(_serve(options, security))


async def _serve(options: SchedulerOptions, security: Security) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    scheduler = scheduler_class(http=options.dashboard is not None)(
        host=options.host,
        port=options.port,
        protocol="tcp://" if options.tls is None else "tls://",
        security=security,
        dashboard=False,  # the extension adds the pages when one is opened
        dashboard_address=options.dashboard or "127.0.0.1:0",
    )
    try:
        await scheduler
    except (OSError, RuntimeError) as error:
        raise ClusterError(
            f"the scheduler cannot listen on {options.host}:{options.port}: {_reason(error)}. Free it, or give another "
            "--host or --port"
        ) from error
    with contextlib.ExitStack() as stack:
        try:
            dask_setup(scheduler)
            if options.metrics is not None:
                stack.enter_context(_serve_metrics(options.metrics, install(scheduler).state, loop))
            logger.info("scheduler at %s", scheduler.address)
            if options.dashboard is not None:
                server: Any = scheduler
                logger.info("live page at http://%s:%d%s", server.http_server.address, server.http_server.port, PAGE)
            await stop.wait()
        finally:
            await scheduler.close()


def _serve_metrics(
    spec: MetricsSpec, read: Callable[[], SchedulerState], loop: asyncio.AbstractEventLoop
) -> contextlib.AbstractContextManager[object]:
    """Serve the metrics from a thread, which has the loop read the state: it belongs to the loop."""
    from feedline.service.monitoring.prometheus_server import serve_metrics  # noqa: PLC0415 -- asked for

    async def state() -> SchedulerState:
        return read()

    def source() -> SchedulerState:
        return asyncio.run_coroutine_threadsafe(state(), loop).result(_SCRAPE_S)

    return serve_metrics(spec, SCHEDULER_METRICS, source, {"feedline_role": "scheduler"})


def _reason(error: BaseException) -> str:
    """The system's words, which Dask wraps."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
            return str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    return str(error)
