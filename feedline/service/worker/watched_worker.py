"""Serve the metrics of a worker of Dask's, where its configuration asks for them: `feedline.worker.metrics`.

Runs in: worker processes, with the preload; feeders, for the configuration of the workers that they start.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import dask
from distributed import Status, Worker
from pydantic import TypeAdapter, ValidationError

from feedline.config.monitoring_section import Metrics, MetricsSpec
from feedline.errors import ClusterError
from feedline.service.monitoring.block_counts import BLOCK_COUNTS
from feedline.service.worker.worker_metrics import WORKER_METRICS, WorkerState

logger = logging.getLogger("feedline.worker")

_METRICS, _JOB = "feedline.worker.metrics", "feedline.worker.job"

# What this process serves.
_SERVED = contextlib.ExitStack()


def watched_workers(metrics: MetricsSpec | None, *, job: str) -> Mapping[str, object]:
    """Dask's configuration for the workers of a feeder with these metrics: with a folder, each listens on a free port
    of the same host. Without one nobody would find them, and they serve none."""
    if metrics is None or metrics.folder is None:
        return {}
    host = metrics.listen.rpartition(":")[0]
    return {_METRICS: {"listen": f"{host}:0", "dir": str(Path(metrics.folder).resolve())}, _JOB: job}


def watch_worker(worker: Worker) -> None:
    """Serve this process's metrics, if its configuration asks for them. Where that fails, the worker works without."""
    if (given := dask.config.get(_METRICS, None)) is None:
        return
    from feedline.service.monitoring.prometheus_server import serve_metrics  # noqa: PLC0415 -- asked for

    labels = {"feedline_role": "worker", "feedline_worker": str(worker.name), "feedline_job": dask.config.get(_JOB, "")}
    try:
        spec = TypeAdapter(Metrics).validate_python(given)
        if spec is not None:
            _SERVED.enter_context(serve_metrics(spec, WORKER_METRICS, partial(_state_of, worker), labels))
    except (ClusterError, ValidationError) as error:
        logger.warning("worker %s shows no metrics: %s", worker.name, error)


def leave_worker() -> None:
    """Serve them no longer, and remove the target file."""
    _SERVED.close()


def _state_of(worker: Worker) -> WorkerState:
    return WorkerState(
        threads=worker.state.nthreads, is_serving=worker.status is Status.running, blocks=BLOCK_COUNTS.read()
    )
