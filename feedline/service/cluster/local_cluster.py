"""Start a local Dask cluster, for a pipeline without `cluster.scheduler`: threads of this process, or processes.

Runs in: the feeder. Threads communicate within the process and listen on no port. Worker processes listen on loopback,
where every user of the machine can connect and, since Dask's messages are pickles, run code as this user: `cluster.tls:
temporary` protects them with a key that exists only in the memory of these processes. Each Dask node has an HTTP server
for metrics and pages, unless `cluster.dashboard` is false.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import dask
from distributed import Nanny, Scheduler, Security, SpecCluster
from distributed.scheduler import DEFAULT_EXTENSIONS

from feedline.config.cluster_section import ClusterSpec
from feedline.errors import ClusterError
from feedline.loader.wire.run_status import FeederStatus
from feedline.service.dask_patches.prompt_streams import send_promptly
from feedline.service.dask_patches.scheduler_patches import scheduler_class
from feedline.service.dask_patches.worker_patches import with_rare_heartbeat, with_recorded_failure, worker_class
from feedline.service.page.dashboard import DashboardOnDemand
from feedline.service.scheduler.extension import install, statuses_of

_LOOPBACK = "127.0.0.1"
# The options of all nodes. The scheduler's dashboard is loaded on demand; workers' would load bokeh for nothing.
_NODE = {"dashboard": False, "dashboard_address": f"{_LOOPBACK}:0"}
# How often Dask asks how many workers there should be, and the answers in a row after which one is closed. The
# hysteresis is in the reports (`service/autoscale.py`).
_ADAPT_S, _SHRINK_ANSWERS = 1.0, 2


def start_threads(spec: ClusterSpec, *, threads: int, dashboard_port: int) -> SpecCluster:
    """A scheduler and a worker of so many threads in this process. dashboard_port: of the scheduler's HTTP server."""
    send_promptly()
    node = {"protocol": "inproc://", "host": None, "security": Security(), **_NODE}
    kind = with_recorded_failure(with_rare_heartbeat(worker_class(http=spec.dashboard)))
    worker = {"cls": kind, "options": {**node, **_worker(threads)}}
    cluster = _start(spec, node, worker, dashboard_port)
    if spec.dashboard:
        scheduler: Any = cluster.scheduler
        scheduler.http_application.add_application(DashboardOnDemand(scheduler, partial(_statuses, scheduler)))
    cluster.scale(1)
    return cluster


def start_processes(spec: ClusterSpec, *, threads: int, dashboard_port: int, elastic: bool) -> SpecCluster:
    """A scheduler in this process, and the spec's workers, each of `threads` threads. Raises ClusterError if a
    temporary TLS key cannot be created. dashboard_port: of the scheduler's HTTP server. elastic: whether the number of
    workers follows what feeders report to the scheduler."""
    workers = spec.workers
    assert workers is not None
    security = temporary_security() if spec.tls is not None else Security()
    protocol = "tcp://" if spec.tls is None else "tls://"
    node = {"protocol": protocol, "host": _LOOPBACK, "security": security, **_NODE}
    options = {**node, **_worker(threads), "worker_class": worker_class(http=spec.dashboard)}
    options["preload"] = ["feedline.service.worker.preload"]  # workers that are retired end their blocks first
    cluster = _start(spec, node, {"cls": with_recorded_failure(Nanny), "options": options}, dashboard_port)
    loop: Any = cluster.loop
    loop.add_callback(install, cluster.scheduler)
    if workers.is_fixed or not elastic:
        cluster.scale(workers.max)
    else:
        cluster.scale(max(1, workers.min))
        cluster.adapt(minimum=workers.min, maximum=workers.max, interval=_ADAPT_S, wait_count=_SHRINK_ANSWERS)
    return cluster


def _statuses(scheduler: Scheduler) -> Sequence[FeederStatus]:
    """The status of the feeder that this process is, once it publishes one."""
    source = statuses_of(scheduler)
    return () if source is None else source()


def _worker(threads: int) -> dict[str, Any]:
    return {"nthreads": threads, "memory_limit": 0, "silence_logs": logging.ERROR, "extensions": {}}


def _start(spec: ClusterSpec, node: dict[str, Any], worker: dict[str, Any], dashboard_port: int) -> SpecCluster:
    """A scheduler, and no worker yet. node: the options of both; worker: the class and options of a worker."""
    options = {**node, "port": 0, "dashboard_address": f"{_LOOPBACK}:{dashboard_port}", "extensions": _extensions()}
    return SpecCluster(
        scheduler={"cls": scheduler_class(http=spec.dashboard), "options": options},
        worker=worker,
        security=node["security"],
        silence_logs=logging.ERROR,
    )


def _extensions() -> dict[str, Any]:
    """The scheduler's extensions: Dask's own, without spans, which keep all groups of tasks that there were."""
    left_out = {"spans"} if dask.config.get("distributed.scheduler.work-stealing") else {"spans", "stealing"}
    return {name: extension for name, extension in DEFAULT_EXTENSIONS.items() if name not in left_out}


def temporary_security() -> Security:
    try:
        importlib.import_module("cryptography.x509")
    except ImportError as error:
        raise ClusterError(
            f"cluster.tls: temporary cannot create a key: {error}. Install it: pip install 'feedline[tls]'"
        ) from None
    security: Security = Security.temporary()
    return security
