"""A scheduler's queue is bypassed, and used again."""

from __future__ import annotations

import threading
from typing import Any

import dask
import pytest
from pipelines import eventually
from schedulers import connected, local_cluster

from feedline.errors import ClusterError
from feedline.service.dask_patches import versions
from feedline.service.dask_patches.task_queue import TaskQueue

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


def test_another_version_of_dask_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(versions, "INSTALLED", "2027.3.0")
    with pytest.raises(ClusterError, match="make routes share workers with other tasks"):
        TaskQueue(object())
