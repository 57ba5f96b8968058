"""The extension of a scheduler in this process, asked by clients, by Dask and over HTTP."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import dask
import pytest
from distributed import LocalCluster
from job_reports import REPORT
from pipelines import eventually

from feedline.service.cluster.cluster import Cluster
from feedline.spec.cluster_section import ClusterSpec


@contextlib.contextmanager
def local_cluster(*preload: str) -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
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
def connected(cluster: LocalCluster) -> Iterator[Cluster]:
    with contextlib.closing(Cluster(ClusterSpec(scheduler=cluster.scheduler_address), threads=1)) as connection:
        yield connection


def test_reports_are_answered_and_their_sum_is_what_dask_scales_to():
    """Asked by our feeders, by Dask's Adaptive (RPC), and by the Kubernetes operator (HTTP)."""
    with local_cluster("feedline.service.scheduler.preload") as local, connected(local) as cluster:
        dask = cluster.dask
        assert dask is not None
        assert dask.answer is None
        dask.report(REPORT)
        assert eventually(lambda: dask.answer)
        assert dask.answer is not None
        assert (dask.answer.workers, dask.answer.jobs) == (2, 1)
        client = cluster.client
        assert client.sync(client.scheduler.adaptive_target) == 3
        assert list(client.sync(client.scheduler.feedline_jobs)) == [REPORT.to_json()]
        page = f"http://127.0.0.1:{local.scheduler.http_server.port}/api/v1/"
        with urlopen(page + "adaptive_target") as answer:
            assert json.load(answer) == {"workers": 3}
        with pytest.raises(HTTPError, match="404"):
            urlopen(page + "retire_workers", data=b"{}")


def test_a_scheduler_without_the_extension_is_named_once_and_everything_else_works(caplog: pytest.LogCaptureFixture):
    with local_cluster() as local, connected(local) as cluster:
        dask = cluster.dask
        assert dask is not None
        dask.report(REPORT)
        assert eventually(lambda: "no Feedline extension" in caplog.text)
        dask._reporter._sent_s = float("-inf")
        dask.report(REPORT)
        assert eventually(lambda: dask._reporter._sending.done())
        assert (dask.answer, caplog.text.count("no Feedline extension")) == (None, 1)
        assert cluster.client.submit(sum, [1, 2]).result() == 3


def test_workers_that_are_silent_are_removed_after_half_a_minute_unless_configured_otherwise():
    preload = "feedline.service.scheduler.preload"
    with local_cluster(preload) as cluster:
        assert cluster.scheduler.worker_ttl == 30
        assert cluster.scheduler.periodic_callbacks["worker-ttl"].callback_time == 5000
    with dask.config.set({"distributed.scheduler.worker-ttl": "90s"}), local_cluster(preload) as cluster:
        assert cluster.scheduler.worker_ttl == 90
