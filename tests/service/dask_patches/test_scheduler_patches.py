"""What Feedline changes of schedulers: Dask still calls it, and it does what it should."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import dask
import pytest
from distributed import Scheduler
from distributed.deploy.adaptive import Adaptive
from distributed.node import ServerNode
from distributed.spans import SpansSchedulerExtension, SpansWorkerExtension
from pipelines import eventually
from schedulers import connected, local_cluster

from feedline.service.dask_patches import scheduler_patches
from feedline.service.dask_patches.scheduler_patches import (
    TaskQueue,
    drop_spans,
    finish_before_retirement,
    replace_adaptive_target,
    scheduler_class,
)
from feedline.service.dask_patches.worker_patches import worker_class
from feedline.service.scheduler import preload


def test_dask_asks_what_is_replaced():
    assert list(inspect.signature(Scheduler.adaptive_target).parameters) == ["self", "target_duration"]
    assert "self.scheduler.adaptive_target(" in inspect.getsource(Adaptive.target)
    with local_cluster(workers=0) as local:
        scheduler: Any = local.scheduler
        assert scheduler.handlers["adaptive_target"] == scheduler.adaptive_target
        replace_adaptive_target(scheduler, lambda **_: 7, lambda **_: 3)
        assert scheduler.adaptive_target() == 7
        assert local.sync(local.scheduler_comm.adaptive_target, target_duration="5s") == 3


release = threading.Event()


def wait() -> None:
    """End when the test lets it."""
    assert release.wait(60)


def test_queued_tasks_are_assigned_when_the_queue_is_bypassed():
    release.clear()
    with (
        dask.config.set({"distributed.scheduler.worker-saturation": 1.1}),
        local_cluster(workers=1) as local,
        connected(local) as cluster,
    ):
        scheduler: Any = local.scheduler
        queue = TaskQueue(scheduler)
        # Dask queues tasks of groups that are large for the cluster: these are those of one function.
        tasks = cluster.client.map(lambda _: wait(), range(20), pure=False)
        try:
            assert eventually(lambda: len(scheduler.queued) > 10)

            async def bypass(wanted: bool) -> int:
                queue.bypass(wanted, "test")
                return len(scheduler.queued)

            assert local.sync(bypass, False) > 10
            assert local.sync(bypass, True) == 0
            assert local.sync(bypass, False) == 0
            assert scheduler.WORKER_SATURATION == 1.1
        finally:
            release.set()
        cluster.client.gather(tasks)


def test_dask_retires_workers_by_its_handler():
    parameters = inspect.signature(Scheduler.retire_workers).parameters
    assert {"workers", "names", "close_workers", "remove", "stimulus_id"} <= parameters.keys()
    assert "workers_to_close" in vars(Scheduler)


@pytest.mark.parametrize("chosen", ["workers", "names"])
def test_a_retired_worker_finishes_first(chosen: str):
    finished: list[str] = []
    with local_cluster(workers=2) as local, connected(local) as cluster:
        worker: Any = local.workers[1]
        for each in local.workers.values():
            each.handlers["feedline_finish"] = lambda address=each.address: finished.append(address)
        finish_before_retirement(local.scheduler)
        scheduler: Any = cluster.client.scheduler
        options = {chosen: [worker.address if chosen == "workers" else 1]}
        retired = cluster.client.sync(scheduler.retire_workers, close_workers=True, remove=True, **options)
        assert list(retired) == finished == [worker.address]


def test_what_is_overridden_is_there():
    spans = SpansSchedulerExtension
    assert list(inspect.signature(spans.observe_tasks).parameters) == ["self", "tss", "code", "span_metadata"]
    assert list(inspect.signature(spans.heartbeat).parameters) == ["self", "ws", "data"]
    assert "heartbeat" in vars(SpansWorkerExtension)


def test_a_scheduler_keeps_no_spans():
    with local_cluster(workers=0) as local:
        scheduler: Any = local.scheduler
        assert type(scheduler.extensions["spans"]) is SpansSchedulerExtension
        drop_spans(scheduler)
        assert scheduler.extensions["spans"].observe_tasks([], code=()) == {}


def test_a_scheduler_that_runs_already_soon_looks_for_silent_workers(monkeypatch: pytest.MonkeyPatch):
    """As `feedline scheduler` does, which extends it when it has started."""
    monkeypatch.setattr(scheduler_patches, "_SILENCE_S", 0.4)
    looked = threading.Event()
    with local_cluster(workers=0) as local, connected(local) as cluster:
        scheduler: Any = local.scheduler
        scheduler.periodic_callbacks["worker-ttl"].callback = looked.set

        async def extend() -> None:
            preload.dask_setup(scheduler)

        cluster.client.sync(extend)
        assert looked.wait(30)


def test_workers_that_are_silent_are_removed_after_twenty_seconds_unless_configured_otherwise():
    preload = "feedline.service.scheduler.preload"
    with local_cluster(preload) as cluster:
        assert cluster.scheduler.worker_ttl == 20
        assert cluster.scheduler.periodic_callbacks["worker-ttl"].callback_time == 2500
    with dask.config.set({"distributed.scheduler.worker-ttl": "90s"}), local_cluster(preload) as cluster:
        assert cluster.scheduler.worker_ttl == 90


@pytest.mark.parametrize("http", [True, False])
def test_nodes_have_an_http_server_if_they_shall(http: bool):
    assert "start_http_server" in vars(ServerNode)
    options: dict[str, Any] = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}

    async def start() -> list[bool]:
        async with (
            scheduler_class(http=http)(protocol="tcp://", host="127.0.0.1", port=0, **options) as scheduler,
            worker_class(http=http)(scheduler.address, nthreads=1, memory_limit=0, **options) as worker,
        ):
            return [getattr(node, "http_server", None) is not None for node in (scheduler, worker)]

    assert asyncio.run(start()) == [http, http]
