"""Schedulers remove workers that are silent for twenty seconds, unless Dask's configuration says another time."""

from __future__ import annotations

import threading
from typing import Any

import dask
import pytest
from schedulers import connected, local_cluster

from feedline.service.dask_patches import silent_workers, versions
from feedline.service.scheduler import preload


def test_a_scheduler_that_runs_already_soon_looks_for_silent_workers(monkeypatch: pytest.MonkeyPatch):
    """As `feedline scheduler` does, which extends it when it has started."""
    monkeypatch.setattr(silent_workers, "_SILENCE_S", 0.4)
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


def test_another_version_of_dask_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch):
    with local_cluster(workers=0) as local:
        scheduler: Any = local.scheduler
        assert scheduler.periodic_callbacks["worker-ttl"].callback == scheduler.check_worker_ttl
        monkeypatch.setattr(versions, "INSTALLED", "2027.3.0")
        silent_workers.remove_silent_workers(scheduler)
        assert scheduler.worker_ttl == 300
