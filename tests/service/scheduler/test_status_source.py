"""A scheduler's process finds the statuses of its feeders, wherever these run."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

from feeder_statuses import status_of
from job_reports import REPORT
from pipelines import eventually
from schedulers import connected, local_cluster

from feedline.config.cluster_section import ClusterSpec
from feedline.loader.wire.codec import unpack
from feedline.loader.wire.run_status import FeederStatus
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.scheduler.extension import statuses_of


def test_feeders_of_other_processes_send_their_statuses():
    """They are kept per feeder, and forgotten with its connection."""
    with local_cluster("feedline.service.scheduler.preload", workers=1) as local:
        source = statuses_of(local.scheduler)
        assert source is not None
        assert source() == []
        with connected(local) as first, connected(local) as second:
            clusters: list[Any] = [first.dask, second.dask]
            for dask, feeder in zip(clusters, "ba", strict=True):
                dask.reporter.report = replace(REPORT, feeder=feeder)
                dask.publish(lambda feeder=feeder: status_of(feeder=feeder, step=1))
            assert eventually(lambda: len(source()) == 2)
            assert list(source()) == [status_of(feeder="a", step=1), status_of(feeder="b", step=1)]
            clusters[1].publish(lambda: status_of(feeder="a", step=2))
            assert eventually(lambda: source()[0] == status_of(feeder="a", step=2))
            packed = first.client.sync(first.client.scheduler.feedline_statuses)
            assert [unpack(FeederStatus, each).feeder for each in packed] == ["a", "b"]
        assert eventually(lambda: source() == [])


def test_a_feeder_whose_workers_are_threads_offers_its_own():
    with closing(open_cluster(ClusterSpec(dashboard=False), threads=1)) as cluster:
        dask: Any = cluster.dask
        scheduler = dask._cluster.scheduler
        assert statuses_of(scheduler) is None
        dask.publish(lambda: status_of(step=3))
        source = statuses_of(scheduler)
        assert source is not None
        assert source() == [status_of(step=3)]
