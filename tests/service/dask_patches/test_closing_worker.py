"""A worker that leaves gets no more tasks, and those that have not started are computed by another."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from distributed import get_worker
from pipelines import eventually
from schedulers import connected, local_cluster

from feedline.errors import ClusterError
from feedline.service.dask_patches import versions
from feedline.service.dask_patches.closing_worker import ClosingWorker

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


def test_another_version_of_dask_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(versions, "INSTALLED", "2027.3.0")
    with pytest.raises(ClusterError, match="make workers leave without losing work"):
        ClosingWorker(object())
