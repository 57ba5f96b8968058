"""Start schedulers and workers without an HTTP server.

Runs in: schedulers, workers and feeders. Overrides: `ServerNode.start_http_server`, which both call when they are made.
Why: `cluster.dashboard: false`, and commands without a port for HTTP, open no port that is not needed; Dask has no
setting for that.
"""

from __future__ import annotations

from distributed import Scheduler, Worker

from feedline.service.dask_patches.versions import require


class PagelessScheduler(Scheduler):
    """A scheduler without an HTTP server."""

    def start_http_server(self, *_: object, **__: object) -> None:
        pass


class PagelessWorker(Worker):
    """A worker without an HTTP server."""

    def start_http_server(self, *_: object, **__: object) -> None:
        pass


def scheduler_class(*, http: bool) -> type[Scheduler]:
    """Dask's class, or the one without an HTTP server. Raises ClusterError."""
    if not http:
        require("schedulers open no port for HTTP")
    return Scheduler if http else PagelessScheduler


def worker_class(*, http: bool) -> type[Worker]:
    """Dask's class, or the one without an HTTP server. Raises ClusterError."""
    if not http:
        require("workers open no port for HTTP")
    return Worker if http else PagelessWorker
