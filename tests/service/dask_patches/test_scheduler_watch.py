"""Schedulers answer a worker's question through the stream of tasks; `test_half_open.py` cuts the stream."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from distributed._async_taskgroup import AsyncTaskGroup
from pipelines import eventually
from schedulers import local_cluster

from feedline.errors import ClusterError
from feedline.service.dask_patches import scheduler_watch, versions
from feedline.service.dask_patches.scheduler_watch import SchedulerWatch


def test_the_scheduler_answers_and_the_worker_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduler_watch, "_EVERY_S", 0.02)
    heard: list[str] = []
    with local_cluster(workers=1) as local:
        worker: Any = local.workers[0]
        free_keys = worker.stream_handlers["free-keys"]

        def hear(keys: list[str], stimulus_id: str) -> None:
            heard.append(stimulus_id)
            free_keys(keys=keys, stimulus_id=stimulus_id)

        worker.stream_handlers["free-keys"] = hear

        async def watch() -> None:
            SchedulerWatch(worker)

        local.sync(watch)
        assert eventually(lambda: len(heard) >= 3)
        assert heard[:3] == ["feedline-echo-0", "feedline-echo-1", "feedline-echo-2"]
        assert worker.status.name == "running"


def test_a_worker_that_is_not_registered_yet_is_asked_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduler_watch, "_EVERY_S", 0.001)
    looks: list[int] = []

    class Unregistered:
        """A stream that waits for its connection. A worker has it from its start."""

        @property
        def comm(self) -> None:
            looks.append(1)

        def closed(self) -> None:
            return None

    worker: Any = SimpleNamespace(
        batched_stream=Unregistered(), stream_handlers={"free-keys": None}, _ongoing_background_tasks=AsyncTaskGroup()
    )

    async def watch() -> None:
        SchedulerWatch(worker)
        while len(looks) < 3:  # a failure of the task would end the looking
            await asyncio.sleep(0)
        await worker._ongoing_background_tasks.stop()

    asyncio.run(asyncio.wait_for(watch(), 60))


def test_another_version_of_dask_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(versions, "INSTALLED", "2027.3.0")
    with pytest.raises(ClusterError, match="make workers notice a scheduler that does not answer"):
        SchedulerWatch(object())
