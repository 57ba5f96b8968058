"""Start a local Dask cluster, for a pipeline without `cluster.scheduler`: threads of this process, or processes.

Runs in: the feeder. Threads communicate within the process and listen on no port. Worker processes listen on loopback,
where every user of the machine can connect and, since Dask's messages are pickles, run code as this user: `cluster.tls:
temporary` protects them with a key that exists only in the memory of these processes. Each Dask node has an HTTP server
for metrics and pages, unless `cluster.dashboard` is false.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from distributed import Nanny, Scheduler, Security, SpecCluster, Worker

from feedline.errors import ClusterError
from feedline.spec.sections import ClusterSpec

_ANY_PORT = "127.0.0.1:0"


class _WithoutPages:
    """A Dask node without an HTTP server."""

    def start_http_server(self, *_: object, **__: object) -> None:
        pass


class QuietScheduler(_WithoutPages, Scheduler):
    """A scheduler without an HTTP server."""


class QuietWorker(_WithoutPages, Worker):
    """A worker without an HTTP server."""


def start_local(spec: ClusterSpec, *, threads: int) -> SpecCluster:
    """A scheduler in this process, and the spec's workers, each of `threads` threads. Raises ClusterError if a
    temporary TLS key cannot be created."""
    processes = spec.workers is not None
    security = _temporary() if spec.tls is not None else Security()
    node: dict[str, Any] = {
        "protocol": "inproc://" if not processes else "tcp://" if spec.tls is None else "tls://",
        "host": "127.0.0.1" if processes else None,
        "security": security,
        "dashboard": False,  # the scheduler's is loaded later (`load_dashboard`); workers' would load bokeh for nothing
        "dashboard_address": _ANY_PORT,
    }
    worker = {**node, "nthreads": threads, "memory_limit": 0, "silence_logs": logging.ERROR}
    worker_class: type[Worker] = Worker if spec.dashboard else QuietWorker
    if processes:
        worker["worker_class"] = worker_class
    cluster = SpecCluster(
        scheduler={"cls": Scheduler if spec.dashboard else QuietScheduler, "options": {**node, "port": 0}},
        worker={"cls": Nanny if processes else worker_class, "options": worker},
        security=security,
        silence_logs=logging.ERROR,
    )
    cluster.scale(spec.workers or 1)
    return cluster


def _temporary() -> Security:
    try:
        importlib.import_module("cryptography.x509")
    except ImportError as error:
        raise ClusterError(
            f"cluster.tls: temporary cannot create a key: {error}. Install it: pip install 'feedline[tls]'"
        ) from None
    security: Security = Security.temporary()
    return security
