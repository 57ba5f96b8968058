"""A scheduler without pages whose workers follow the reports, scaled to zero: who waits for a worker gets one."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import SpecCluster, Worker
from job_reports import REPORT
from pipelines import eventually, furnished, image, oracle
from processes import feedline

from feedline import FeedlineDataset
from feedline.commands.cluster.connect import pipeline_cluster
from feedline.config import load_spec
from feedline.config.cluster_section import ClusterSpec
from feedline.fitting.reduction import map_tasks
from feedline.service.cluster import reporting
from feedline.service.cluster.fit_workers import DaskWorkers
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.dask_patches.scheduler_patches import PagelessScheduler
from feedline.service.scheduler.job_book import JobBook

PRELOAD = ["feedline.service.scheduler.preload"]


@pytest.fixture
def scaled_to_zero(tmp_path: Path) -> Iterator[SpecCluster]:
    node = {"protocol": "tcp://", "host": "127.0.0.1", "dashboard": False}
    alone = {"nthreads": 1, "memory_limit": 0, "local_directory": str(tmp_path)}
    # Dask leaves a socket open where a worker ends while its heartbeat connects.
    quiet = {"heartbeat_interval": "60s"}
    with SpecCluster(
        scheduler={"cls": PagelessScheduler, "options": {**node, "preload": PRELOAD}},
        worker={"cls": Worker, "options": {**node, **alone, **quiet}},
        silence_logs=logging.CRITICAL,
    ) as cluster:
        cluster.adapt(minimum=0, maximum=3, interval="100ms")
        yield cluster


def test_commands_and_feeders_get_the_worker_that_they_wait_for(
    scaled_to_zero: SpecCluster, tmp_path: Path, clicks: Path
):
    scheduler = scaled_to_zero.scheduler
    extension = scheduler.plugins["feedline-jobs"]

    def rest() -> None:
        """All workers are gone, as a while after the last feeder."""
        extension.book = JobBook()
        assert eventually(lambda: not scheduler.workers)

    with furnished(tmp_path, clicks) as place:
        path = place.write(cluster={"scheduler": scheduler.address, "wait_s": 60})
        rest()
        with pipeline_cluster(load_spec(path, {})) as cluster:  # of `feedline fit` and `feedline plan --save`
            assert cluster is not None
            assert cluster.dashboard is None
            assert list(cluster.map(len, ["a", "bc"])) == [1, 2]
        rest()
        with FeedlineDataset(path) as dataset:
            assert [image(batch) for batch in dataset] == oracle(path)


@pytest.mark.nightly
def test_a_feeder_of_a_host_gets_the_worker_that_it_waits_for(
    scaled_to_zero: SpecCluster, tmp_path: Path, clicks: Path
):
    """As that of a trainer, by the same connection."""
    with furnished(tmp_path, clicks) as place:
        path = place.write(cluster={"scheduler": scaled_to_zero.scheduler.address, "wait_s": 60})
        with feedline("run", path) as run:
            run.line("waiting for a trainer")
            with FeedlineDataset(path) as dataset:
                assert [image(batch) for batch in dataset] == oracle(path)
            run.send(signal.SIGINT)
            assert run.wait() == 130


def wait_for(path: str, number: int) -> int:
    """Until all workers have come."""
    Path(path, str(number)).touch()
    limit_s = time.monotonic() + 60
    while len(list(Path(path).iterdir())) < 3 and time.monotonic() < limit_s:
        time.sleep(0.01)
    return len(list(Path(path).iterdir()))


def test_a_fit_gets_the_workers_that_it_can_use(
    scaled_to_zero: SpecCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Each of three tasks waits for the others, so that one worker of one thread would compute none of them."""
    monkeypatch.setattr(reporting, "_EVERY_S", 0.1)
    caplog.set_level(logging.INFO, "feedline.scaling")
    (tmp_path / "begun").mkdir()
    keys = {"scheduler": scaled_to_zero.scheduler_address, "workers": {"min": 0, "max": 3}, "wait_s": 60}
    spec = ClusterSpec.model_validate({**keys, "cpu": "native", "autoscale": {"grow_after_s": 0.1}})
    report = replace(REPORT, demand_threads=1.0, least_workers=0)
    with closing(open_cluster(ClusterRequest(spec, threads=1, report=report))) as cluster:
        workers = DaskWorkers(cluster)
        assert map_tasks(workers, wait_for, str(tmp_path / "begun"), range(3)) == [3, 3, 3]
        assert "workers needed: 3 tasks of a count or fit are open" in caplog.text
