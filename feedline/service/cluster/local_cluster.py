"""Start a Dask cluster on this host, for `cluster: {workers: N}`.

Runs in: the feeder. Its worker processes listen on loopback,
where every user of the machine can connect and, since Dask's messages are pickles, run code as this user: `cluster.tls:
temporary` protects them with a key that exists only in the memory of these processes. Each Dask node has an HTTP server
for metrics and pages, unless `cluster.dashboard` is false.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

import dask
from distributed import Nanny, Security, SpecCluster
from distributed.scheduler import DEFAULT_EXTENSIONS

from feedline.config.cluster_section import ClusterSpec
from feedline.errors import ClusterError
from feedline.extras import extra
from feedline.service.dask_patches.scheduler_patches import scheduler_class
from feedline.service.dask_patches.worker_patches import with_recorded_failure, worker_class
from feedline.service.scheduler.extension import install

_LOOPBACK = "127.0.0.1"
# The options of all nodes. The scheduler's dashboard is loaded on demand; workers' would load bokeh for nothing.
_NODE = {"dashboard": False, "dashboard_address": f"{_LOOPBACK}:0"}
# How often Dask asks how many workers there should be, and the answers in a row after which one is closed. The
# hysteresis is in the reports (`service/autoscale.py`).
_ADAPT_S, _SHRINK_ANSWERS = 1.0, 2


def start_processes(spec: ClusterSpec, *, threads: int, elastic: bool) -> SpecCluster:
    """A scheduler in this process, and the spec's workers, each of `threads` threads. Raises ClusterError if a
    temporary TLS key cannot be created. elastic: whether the number of
    workers follows what feeders report to the scheduler."""
    workers = spec.workers
    assert workers is not None
    security = temporary_security() if spec.tls is not None else Security()
    protocol = "tcp://" if spec.tls is None else "tls://"
    node = {"protocol": protocol, "host": _LOOPBACK, "security": security, **_NODE}
    options = {**node, **_worker(threads), "worker_class": worker_class(http=spec.dashboard)}
    options["preload"] = ["feedline.service.worker.preload"]  # workers that are retired end their blocks first
    cluster = _start(spec, node, {"cls": with_recorded_failure(Nanny), "options": options})
    loop: Any = cluster.loop
    loop.add_callback(install, cluster.scheduler)
    if workers.is_fixed or not elastic:
        cluster.scale(workers.max)
    else:
        cluster.scale(max(1, workers.min))
        cluster.adapt(minimum=workers.min, maximum=workers.max, interval=_ADAPT_S, wait_count=_SHRINK_ANSWERS)
    return cluster


def _worker(threads: int) -> dict[str, Any]:
    return {"nthreads": threads, "memory_limit": 0, "silence_logs": logging.ERROR, "extensions": {}}


def _start(spec: ClusterSpec, node: dict[str, Any], worker: dict[str, Any]) -> SpecCluster:
    """A scheduler, and no worker yet. node: the options of both; worker: the class and options of a worker."""
    options = {**node, "port": 0, "extensions": _extensions()}
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
    with extra("tls", "cluster.tls: temporary", ClusterError):
        importlib.import_module("cryptography.x509")
    security: Security = Security.temporary()
    return security
