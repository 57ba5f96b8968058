"""Open a pipeline's cluster: the only place that chooses a back end.

Runs in: the feeder, and commands that compute on the cluster.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Sequence
from typing import TYPE_CHECKING

from feedline.errors import ClusterError
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.threads.thread_cluster import ThreadCluster
from feedline.service.cluster.worker_cluster import WorkerCluster
from feedline.spec.cluster_section import ClusterSpec
from feedline.spec.monitoring_section import MetricsSpec
from feedline.transforms.registry.user_functions import RequiredFunction

if TYPE_CHECKING:
    from feedline.loader.wire.job_reports import JobReport

# A feeder opens about 20 files with threads, 30 with worker processes, and 14 for each of these.
_OPEN_FILES, _OPEN_FILES_PER_WORKER = 64, 16


def open_cluster(
    spec: ClusterSpec,
    *,
    threads: int,
    scratch: str | None = None,
    early: bool = False,
    elastic: bool = False,
    report: JobReport | None = None,
    code: Sequence[RequiredFunction] = (),
    metrics: MetricsSpec | None = None,
) -> Cluster:
    """The cluster of `spec`, whose workers have so many threads. Raises ClusterError.

    scratch, elastic, report, metrics: see `open_dask`. early: return before it is up. code: the user's functions, which
    workers in processes of their own must have.
    """
    require_open_files(spec)
    back_end = ThreadCluster if spec.kind == "threads" else WorkerCluster
    return back_end(
        spec,
        threads=threads,
        scratch=scratch,
        early=early,
        elastic=elastic,
        report=report,
        code=code,
        metrics=metrics,
    )


def require_open_files(spec: ClusterSpec) -> None:
    """Raise this process's limit of open files where it is too low for its cluster. Raises ClusterError where that may
    not be raised so far: without descriptors each part fails in its own way, and some are waited for."""
    workers = spec.workers.max if spec.kind == "processes" and spec.workers is not None else 0
    needed = _OPEN_FILES + workers * _OPEN_FILES_PER_WORKER
    soft, hard = (math.inf if limit < 0 else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    if soft >= needed:
        return
    if hard < needed:
        with_workers = f" with {workers} worker processes" if workers else ""
        fewer = ", or lower cluster.workers" if workers else ""
        raise ClusterError(
            f"the limit of open files is too low: got {hard} (ulimit -n), expected at least {needed:,}{with_workers}. "
            f"Raise it for this process (ulimit -n, LimitNOFILE of systemd, --ulimit nofile of Docker){fewer}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
