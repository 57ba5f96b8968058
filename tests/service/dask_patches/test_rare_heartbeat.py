"""The worker of a feeder's process sends its heartbeats ten seconds apart."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from distributed import Worker
from schedulers import local_cluster

from feedline.service.dask_patches import versions
from feedline.service.dask_patches.rare_heartbeat import with_rare_heartbeat


def test_heartbeats_are_rare_after_the_first():
    assert inspect.iscoroutinefunction(Worker.heartbeat)
    with local_cluster(workers=0) as local:

        async def beat() -> tuple[float, float]:
            worker: Any = await with_rare_heartbeat(Worker)(local.scheduler_address, nthreads=1, dashboard=False)
            plain: Any = await Worker(local.scheduler_address, nthreads=1, dashboard=False)
            await worker.heartbeat()
            await plain.heartbeat()
            times = tuple(each.periodic_callbacks["heartbeat"].callback_time for each in (worker, plain))
            await worker.close()
            await plain.close()
            return times

        rare_ms, often_ms = local.sync(beat)
        assert (rare_ms, often_ms < 2000) == (10_000, True)


def test_another_version_of_dask_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(versions, "INSTALLED", "2027.3.0")
    assert with_rare_heartbeat(Worker) is Worker
