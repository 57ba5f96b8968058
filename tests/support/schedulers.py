"""A scheduler with two workers in this process, reached over TCP as if they were elsewhere."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from distributed import Client, LocalCluster

from feedline.config.cluster_section import ClusterSpec
from feedline.loader.wire.job_reports import JobReport
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest


@contextlib.contextmanager
def local_cluster(*preload: str, workers: int = 2, threads: int = 1) -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=workers,
        threads_per_worker=threads,
        processes=False,
        protocol="tcp://",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
        silence_logs=logging.CRITICAL,
        scheduler_kwargs={"preload": preload},
    ) as cluster:
        yield cluster


@contextlib.contextmanager
def connected(cluster: LocalCluster, report: JobReport | None = None) -> Iterator[Cluster]:
    spec = ClusterSpec(scheduler=cluster.scheduler_address)
    with contextlib.closing(open_cluster(ClusterRequest(spec, threads=1, report=report))) as connection:
        yield connection


def workers_now(client: Client) -> dict[str, Any]:
    """The scheduler's workers by address, from the scheduler's own answer.

    `Client.scheduler_info` asks too, but may return what the client's periodic update, which asks for totals only, has
    stored meanwhile: no workers.
    """
    return dict(client.sync(client.scheduler.identity, n_workers=-1)["workers"])
