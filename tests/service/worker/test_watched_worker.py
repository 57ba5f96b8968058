"""Metrics of the workers that a feeder starts: each with a target file, for as long as it lives."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from contextlib import closing, suppress
from pathlib import Path
from typing import get_args

import dask
import pytest
from distributed import Status
from finished_blocks import BLOCK_RESULT
from pipelines import eventually

from feedline.config.cluster_section import ClusterSpec
from feedline.config.monitoring_section import MetricsSpec
from feedline.service.cluster.blame import Kind
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.monitoring.block_counts import BlockCounts
from feedline.service.monitoring.target_files import sweep_targets
from feedline.service.worker.watched_worker import leave_worker, watch_worker, watched_workers
from feedline.service.worker.worker_metrics import WORKER_METRICS, WorkerState


def targets(folder: Path) -> dict[str, dict[str, str]]:
    """The labels of each target."""
    found = {}
    for path in folder.glob("*.json"):
        with suppress(FileNotFoundError):  # removed meanwhile
            [group] = json.loads(path.read_text())
            found[group["targets"][0]] = group["labels"]
    return found


def scraped(target: str) -> str:
    with urllib.request.urlopen(f"http://{target}/metrics", timeout=30) as answer:
        return str(answer.read(), "utf-8")


def test_workers_listen_on_free_ports_of_the_feeders_host_if_there_is_a_folder(tmp_path: Path):
    spec = MetricsSpec(listen="[::]:9400", dir=str(tmp_path))
    assert watched_workers(spec, job="ctr-1") == {
        "feedline.worker.metrics": {"listen": "[::]:0", "dir": str(tmp_path)},
        "feedline.worker.job": "ctr-1",
    }
    assert watched_workers(MetricsSpec(listen="127.0.0.1:9400"), job="ctr-1") == {}
    assert watched_workers(None, job="ctr-1") == {}


class OfDask:
    """What is read of a worker."""

    name, status = 3, Status.running

    class state:  # noqa: N801 -- an attribute of workers
        nthreads = 2


def test_a_worker_shows_its_state_until_it_leaves(tmp_path: Path):
    worker = OfDask()
    with dask.config.set(watched_workers(MetricsSpec(dir=str(tmp_path)), job="ctr-1")):
        watch_worker(worker)
    try:
        [(target, labels)] = targets(tmp_path).items()
        shown = scraped(target)
        worker.status = Status.closing
        again = scraped(target)
    finally:
        leave_worker()
    assert not targets(tmp_path)
    assert {name: labels[name] for name in ("feedline_role", "feedline_worker", "feedline_job")} == {
        "feedline_role": "worker",
        "feedline_worker": "3",
        "feedline_job": "ctr-1",
    }
    assert "\nfeedline_worker_threads 2.0\n" in shown
    assert "\nfeedline_worker_serving 1.0\n" in shown
    assert "\nfeedline_worker_serving 0.0\n" in again


def test_a_worker_works_without_metrics_where_they_are_not_asked_for_or_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    watch_worker(OfDask())
    assert not caplog.records
    (tmp_path / "file").touch()
    for given in (str(tmp_path / "file"), "127.0.0.1:99999", 7):
        with dask.config.set({"feedline.worker.metrics": given}):
            watch_worker(OfDask())
        assert "worker 3 shows no metrics: " in caplog.records.pop().getMessage()


@pytest.mark.nightly
def test_a_killed_worker_is_replaced_with_its_target(tmp_path: Path):
    spec, metrics = ClusterSpec.model_validate({"workers": 2, "dashboard": False}), MetricsSpec(dir=str(tmp_path))
    with closing(open_cluster(ClusterRequest(spec, threads=1, metrics=metrics))) as cluster:
        cluster.check_workers()
        assert eventually(lambda: len(targets(tmp_path)) == 2)
        before = targets(tmp_path)
        assert {labels["feedline_worker"] for labels in before.values()} == {"0", "1"}
        pids = cluster.client.run(os.getpid)
        assert all("feedline_worker_serving 1.0\n" in scraped(target) for target in before)
        os.kill(next(iter(pids.values())), signal.SIGKILL)
        assert eventually(lambda: len(targets(tmp_path)) == 2 and targets(tmp_path).keys() != before.keys())
        assert {labels["feedline_worker"] for labels in targets(tmp_path).values()} == {"0", "1"}
        assert all("feedline_worker_blocks_total" in scraped(target) for target in targets(tmp_path))
    sweep_targets(str(tmp_path))  # as the feeder does: of workers that had to be killed
    assert not [*tmp_path.iterdir()]


def test_counts_are_samples():
    counts = BlockCounts()
    counts.begin()
    counts.begin()
    counts.end(BLOCK_RESULT)
    counts.fail("data")
    state = WorkerState(threads=4, is_serving=True, blocks=counts.read())
    samples = {metric.name: dict(metric.samples(state)) for metric in WORKER_METRICS}
    assert samples["feedline_worker_rows_total"] == {(): 10}
    assert samples["feedline_worker_blocks_running"] == {(): 0}
    assert samples["feedline_worker_stage_seconds_total"] == {
        ("read",): 1.5,
        ("transform",): 0.5,
        ("encode",): 0.25,
    }
    kinds = {*get_args(Kind), "killed"}
    assert samples["feedline_worker_failed_blocks_total"] == {(kind,): int(kind == "data") for kind in kinds}
    assert samples["feedline_worker_serving"] == {(): 1.0}
