"""Start the Dask cluster of a pipeline that names none: threads of this process, or processes of this machine.

Runs in: the feeder. Threads are reached within the process and listen on no port. Worker processes listen on loopback,
where every user of the machine can connect and, with Dask's pickled messages, run code as this user: `cluster.tls:
temporary` makes a key that exists in the memory of these processes only. Each node of Dask has an HTTP server for
metrics and pages; with `cluster.dashboard: false` none is opened.
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
    """A node of Dask that opens no port for HTTP."""

    def start_http_server(self, *_: object, **__: object) -> None:
        pass


class QuietScheduler(_WithoutPages, Scheduler):
    """A scheduler without pages."""


class QuietWorker(_WithoutPages, Worker):
    """A worker without pages."""


def start_local(spec: ClusterSpec, *, threads: int) -> SpecCluster:
    """A scheduler in this process, and the workers that the spec asks for, each of so many threads. Raises ClusterError
    where keys cannot be made."""
    processes = spec.workers is not None
    security = _temporary() if spec.tls is not None else Security()
    node: dict[str, Any] = {
        "protocol": "inproc://" if not processes else "tcp://" if spec.tls is None else "tls://",
        "host": "127.0.0.1" if processes else None,
        "security": security,
        "dashboard": False,  # the scheduler's come later (`load_dashboard`), workers' would load bokeh for nothing
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
            f"cluster.tls: temporary cannot make a key: {error}. Install it: pip install 'feedline[tls]'"
        ) from None
    security: Security = Security.temporary()
    return security
