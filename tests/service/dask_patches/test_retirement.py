"""Workers that a scheduler retires are first asked to finish; `test_departure.py` has them do it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from distributed import Scheduler
from schedulers import connected, local_cluster

from feedline.service.dask_patches import versions
from feedline.service.dask_patches.retirement import finish_before_retirement


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


def test_another_version_of_dask_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(versions, "INSTALLED", "2027.3.0")
    with local_cluster(workers=0) as local:
        scheduler: Any = local.scheduler
        before = scheduler.handlers["retire_workers"]
        finish_before_retirement(scheduler)
        assert scheduler.handlers["retire_workers"] is before
