"""What Feedline changes of workers: Dask still calls it, and it does what it should."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Nanny, get_worker
from distributed._async_taskgroup import AsyncTaskGroup
from pipelines import PATIENCE_S, eventually
from schedulers import connected, local_cluster

from feedline.config.cluster_section import ClusterSpec
from feedline.errors import ClusterError
from feedline.service.cluster import scheduler_connection
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.dask_patches import worker_patches
from feedline.service.dask_patches.worker_patches import ClosingWorker, SchedulerWatch

release = threading.Event()


def wait_on(busy: str) -> str:
    """The address of the worker; the busy one answers late."""
    address = str(get_worker().address)
    if address == busy:
        assert release.wait(60)
    return address


def test_tasks_that_have_not_started_are_returned():
    release.clear()
    with local_cluster(workers=2) as local, connected(local) as cluster:
        worker: Any = local.workers[0]
        closing = ClosingWorker(worker)
        options = {"workers": [worker.address], "allow_other_workers": True, "pure": False}
        tasks = [cluster.client.submit(wait_on, worker.address, **options) for _ in range(4)]
        assert eventually(lambda: closing.running() == 1)

        async def leave() -> None:
            closing.refuse_tasks()
            closing.return_tasks()

        local.sync(leave)
        try:
            # The loop of the worker sends them back again when more have arrived meanwhile, as a departure does.
            done = eventually(lambda: local.sync(leave) or sum(task.status == "finished" for task in tasks) == 3)
        finally:
            release.set()
        assert done
        other = local.workers[1].address
        assert sorted(cluster.client.gather(tasks)) == sorted([worker.address, other, other, other])


async def _start_without_descriptors(self: Nanny) -> None:
    """In place of Dask's: the process has no file descriptor left, and cleaning up fails, too."""
    try:
        raise OSError(24, "Too many open files")
    except OSError:
        raise AssertionError("starting") from None


def test_the_error_of_the_system_is_recorded_and_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_patches, "_failures", [])
    monkeypatch.setattr(Nanny, "start_unsafe", _start_without_descriptors)
    assert worker_patches.worker_failure() is None
    kind: Any = worker_patches.with_recorded_failure(Nanny)
    with pytest.raises(AssertionError):
        asyncio.run(kind.__new__(kind).start_unsafe())
    assert worker_patches.worker_failure() == "OSError: [Errno 24] Too many open files"
    assert worker_patches.worker_failure(for_s=60) is None
    error = scheduler_connection._no_worker("tcp://1.2.3.4:5", 8, None, worker_patches.worker_failure())
    assert "as its own did not start: OSError: [Errno 24] Too many open files. Look at the limits" in str(error)
    assert "feedline worker" not in str(error)


def test_a_worker_that_starts_leaves_no_failure(monkeypatch: pytest.MonkeyPatch):
    async def start(self: Nanny) -> Nanny:
        return self

    monkeypatch.setattr(worker_patches, "_failures", [("OSError: before", 0.0)])
    monkeypatch.setattr(Nanny, "start_unsafe", start)
    kind: Any = worker_patches.with_recorded_failure(Nanny)
    worker = kind.__new__(kind)
    assert asyncio.run(worker.start_unsafe()) is worker
    assert worker_patches.worker_failure() is None


def test_a_feeder_does_not_wait_for_a_worker_that_does_not_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_patches, "_failures", [])
    monkeypatch.setattr(scheduler_connection, "_FAILED_S", 0.0)
    monkeypatch.setattr(Nanny, "start_unsafe", _start_without_descriptors)
    spec = ClusterSpec.model_validate({"workers": 1, "wait_s": PATIENCE_S, "dashboard": False})
    began_s = time.monotonic()
    with (
        closing(open_cluster(ClusterRequest(spec, threads=1))) as cluster,
        pytest.raises(ClusterError, match="its own did not start"),
    ):
        cluster.check_workers()
    assert time.monotonic() - began_s < PATIENCE_S / 2


def test_the_scheduler_answers_and_the_worker_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_patches, "_EVERY_S", 0.02)
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
    monkeypatch.setattr(worker_patches, "_EVERY_S", 0.001)
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
