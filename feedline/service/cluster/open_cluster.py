"""Open a pipeline's cluster: the only place that chooses a back end.

Runs in: the feeder, and commands that compute on the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.threads.thread_cluster import ThreadCluster
from feedline.service.cluster.worker_cluster import WorkerCluster
from feedline.spec.cluster_section import ClusterSpec
from feedline.spec.monitoring_section import MetricsSpec
from feedline.transforms.registry.user_functions import RequiredFunction

if TYPE_CHECKING:
    from feedline.loader.wire.job_reports import JobReport


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
