"""A scheduler without pages whose workers follow the reports, scaled to zero: who waits for a worker gets one."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import SpecCluster, Worker
from pipelines import eventually, furnished, image, oracle
from processes import feedline

from feedline import FeedlineDataset
from feedline.commands.cluster.connect import pipeline_cluster
from feedline.config import load_spec
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
        cluster.adapt(minimum=0, maximum=2, interval="100ms")
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
        rest()
        with feedline("run", path) as run:
            run.line("waiting for a trainer")
            with FeedlineDataset(path) as dataset:
                assert [image(batch) for batch in dataset] == oracle(path)
            run.send(signal.SIGINT)
            assert run.wait() == 130
