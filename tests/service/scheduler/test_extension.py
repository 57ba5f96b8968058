"""The extension of a scheduler in this process, asked by clients, by Dask and over HTTP; statuses of its feeders."""

from __future__ import annotations

import gc
import itertools
import json
import logging
import threading
import time
from dataclasses import replace
from typing import Any, ClassVar
from urllib.error import HTTPError
from urllib.request import urlopen

import dask
import distributed.scheduler
import pytest
from distributed import get_worker
from distributed.scheduler import TaskGroup
from feeder_statuses import status_of
from job_reports import REPORT
from pipelines import eventually
from schedulers import connected, local_cluster
from tornado.ioloop import PeriodicCallback

from feedline.errors import ClusterError
from feedline.loader.wire.codec import WIRE_VERSION, unpack
from feedline.loader.wire.job_reports import FeederShare
from feedline.loader.wire.run_status import FeederStatus
from feedline.service.cluster import reporting
from feedline.service.scheduler import routes
from feedline.service.scheduler.extension import statuses_of
from feedline.service.scheduler.job_listing import list_jobs


@pytest.fixture(autouse=True)
def frequent_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Feeders report ten times a second: tests wait for what follows."""
    monkeypatch.setattr(reporting, "_EVERY_S", 0.1)


def test_reports_are_answered_and_their_sum_is_what_dask_scales_to():
    """Asked by our feeders, by Dask's Adaptive (RPC), and by the Kubernetes operator (HTTP)."""
    with local_cluster("feedline.service.scheduler.preload") as local, connected(local) as cluster:
        dask = cluster.dask
        assert dask is not None
        assert cluster.share.answer is None
        dask.reporter.report = REPORT
        assert eventually(lambda: cluster.share.answer)
        assert cluster.share.answer is not None
        assert cluster.share.answer.threads == 2.0
        assert cluster.share.answer.cores == 2, "one per thread, as these workers send none"
        assert cluster.cores_per_trainer() == 2.0
        client = cluster.client
        with pytest.raises(ClusterError, match="number of workers is unknown"):  # whoever asks keeps the size
            client.sync(client.scheduler.adaptive_target)
        assert client.sync(client.scheduler.adaptive_target, target_duration="5s") == 3, "Dask's Adaptive"
        local.scheduler.plugins["feedline-jobs"].book.begin(0.0)  # as half a minute later
        assert client.sync(client.scheduler.adaptive_target) == 3
        listed = FeederShare(report=replace(REPORT, client=client.id), threads=2.0, workers=2)
        assert [unpack(FeederShare, each) for each in client.sync(client.scheduler.feedline_jobs)] == [listed]
        page = f"http://127.0.0.1:{local.scheduler.http_server.port}/api/v1/"
        with urlopen(page + "adaptive_target") as answer:
            assert json.load(answer) == {"workers": 3}
        with pytest.raises(HTTPError, match="404"):
            urlopen(page + "retire_workers", data=b"{}")


def test_nothing_is_kept_of_tasks_that_are_over():
    """Dask's spans would keep each group of tasks that ended before the next one began."""
    gc.freeze()  # the groups are found among few objects
    with (
        dask.config.set({"distributed.diagnostics.computations.max-history": 1}),
        local_cluster("feedline.service.scheduler.preload", workers=1) as local,
        connected(local) as cluster,
    ):
        [worker] = local.workers.values()

        def counters() -> int:
            """Of the worker, after some tasks have come and gone, one by one."""
            for _ in range(5):
                cluster.client.submit(str, "a block", key=f"a block-{next(numbers)}").result()
                assert eventually(lambda: not local.scheduler.tasks)
            return len(worker.digests_total)

        numbers = itertools.count()
        assert counters() == counters()
        local.sync(worker.heartbeat)
        gc.collect()
        groups = [each for each in gc.get_objects() if type(each) is TaskGroup and each.name == "a block"]
        assert len(groups) < 5, "of the ten, those of the last computations at most"


def test_a_feeder_gets_a_route_and_no_task_waits_in_the_queue_beside_it(monkeypatch: pytest.MonkeyPatch):
    """Queued tasks would wait for ever for workers that restricted ones keep full."""
    monkeypatch.setattr(routes, "LEAST_WORKERS", 1)
    monkeypatch.setattr(routes, "_BEGINS", 1.0)
    modest = replace(REPORT, blocks_per_s=0.0, wait_fraction=0.0)
    preload_name = "feedline.service.scheduler.preload"
    with local_cluster(preload_name, workers=3) as local, connected(local, report=modest) as cluster:
        scheduler: Any = local.scheduler
        route = cluster.share.route
        assert len(route) == 2, "before the first block: the scheduler names it when a feeder connects"
        assert route < cluster.members()
        assert cluster.eligible_workers() == route
        assert scheduler.WORKER_SATURATION > 1000
        assert cluster.dask is not None
        cluster.dask.reporter.report = replace(modest, starved=True, demand_threads=9.0)
        assert eventually(lambda: not cluster.share.route)
        assert cluster.eligible_workers() is None
        assert scheduler.WORKER_SATURATION == 1.1


class Computed:
    """What the workers of this process share: a worker waits with its tasks for `goes_on`. done: who computed."""

    slow = ""
    goes_on = threading.Event()
    done: ClassVar[list[str]] = []


def compute(_: int) -> None:
    worker = str(get_worker().address)
    if worker == Computed.slow:
        assert Computed.goes_on.wait(60)
    Computed.done.append(worker)


def test_what_a_slow_worker_has_not_begun_is_computed_by_others_of_the_route_only():
    """Dask takes tasks back from a busy worker, and keeps to the workers that they may run on."""
    with local_cluster("feedline.service.scheduler.preload", workers=4) as local, connected(local) as cluster:
        *route, _ = sorted(cluster.members())
        Computed.slow, done = route[0], Computed.done
        options = {"workers": route, "pure": False}
        tasks = [cluster.client.submit(compute, number, key=f"a block-{number}", **options) for number in range(12)]
        assert eventually(lambda: len(done) == 11)
        assert set(done) == set(route[1:])
        Computed.goes_on.set()
        cluster.client.gather(tasks)
        assert done[-1] == route[0]


def test_workers_stay_when_the_wall_clock_jumps_ahead(monkeypatch: pytest.MonkeyPatch):
    jump_s = [0.0]
    monkeypatch.setattr(distributed.scheduler, "time", lambda: time.time() + jump_s[0])
    with local_cluster("feedline.service.scheduler.preload", workers=1) as local, connected(local) as cluster:
        jump_s[0] = 3600.0
        cluster.client.sync(local.scheduler.check_worker_ttl)
        assert len(local.scheduler.workers) == 1


def test_a_scheduler_without_the_extension_is_named_once_and_everything_else_works(caplog: pytest.LogCaptureFixture):
    with local_cluster() as local, connected(local) as cluster:
        dask = cluster.dask
        assert dask is not None
        dask.reporter.report = REPORT
        assert eventually(lambda: "no Feedline extension" in caplog.text)
        assert (cluster.share.answer, caplog.text.count("no Feedline extension")) == (None, 1)
        assert cluster.client.submit(sum, [1, 2]).result() == 3


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"wire": 2, "version": "9.9"}, "has Feedline 9.9, which does not understand the reports of"),
        ({"wire": WIRE_VERSION, "version": "9.9"}, "has Feedline 9.9, this process"),
    ],
)
def test_a_scheduler_of_another_version_is_named_and_gets_reports_that_it_understands(
    facts: dict[str, object], words: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "feedline")
    with local_cluster("feedline.service.scheduler.preload", workers=1) as local:
        local.scheduler.task_metadata["feedline"] = facts
        with connected(local) as cluster:
            dask = cluster.dask
            assert dask is not None
            dask.reporter.report = REPORT
            assert eventually(lambda: words in caplog.text)
            assert cluster.client.submit(sum, [1, 2]).result() == 3
            is_understood = facts["wire"] == WIRE_VERSION
            assert not is_understood or eventually(lambda: cluster.share.answer)
            assert bool(local.scheduler.plugins["feedline-jobs"].book.reports(time.time())) == is_understood
        if not is_understood:
            with pytest.raises(ClusterError, match=r"has Feedline 9\.9, whose jobs this command cannot read: it is of"):
                list_jobs(local.scheduler.address, None)


def test_periodic_callbacks_go_on_when_the_wall_clock_is_set_back(monkeypatch: pytest.MonkeyPatch):
    with local_cluster("feedline.service.scheduler.preload") as cluster:
        offset_s, wall_clock = 0.0, time.time
        monkeypatch.setattr(time, "time", lambda: wall_clock() + offset_s)
        offset_s = -3600.0
        beats: list[int] = []
        callback = PeriodicCallback(lambda: beats.append(1), 10)
        cluster.loop.add_callback(callback.start)
        assert eventually(lambda: beats)
        offset_s = -7200.0
        before = len(beats)
        assert eventually(lambda: len(beats) > before + 2, within_s=20)
        cluster.loop.add_callback(callback.stop)


def test_workers_that_join_leave_or_are_lost_are_said_once(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="feedline.scheduler")
    with local_cluster("feedline.service.scheduler.preload") as local:
        names = sorted(local.scheduler.workers)
        assert [caplog.text.count(f"worker {name} joined: ") for name in names] == [1, 1]
        local.sync(local.scheduler.remove_worker, names[0], stimulus_id="handle-worker-cleanup-1")
        local.sync(local.scheduler.remove_worker, names[1], stimulus_id="retire-workers-1")
        lines = [record.getMessage() for record in caplog.records if record.name == "feedline.scheduler"]
        assert [line for line in lines if "lost" in line] == [f"worker {names[0]} is lost: 1 workers, 1 threads"]
        assert [line for line in lines if "left" in line] == [f"worker {names[1]} left: 0 workers, 0 threads"]


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
