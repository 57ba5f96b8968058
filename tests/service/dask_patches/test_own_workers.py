"""The workers that a feeder starts send their heartbeats ten seconds apart, and say why they do not start."""

from __future__ import annotations

import asyncio
import inspect
import time
from contextlib import closing
from typing import Any

import pytest
from distributed import Nanny, Worker
from pipelines import PATIENCE_S
from schedulers import local_cluster

from feedline.config.cluster_section import ClusterSpec
from feedline.errors import ClusterError
from feedline.service.cluster import scheduler_connection
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.dask_patches import own_workers, versions
from feedline.service.dask_patches.own_workers import with_rare_heartbeat


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


async def _start_without_descriptors(self: Nanny) -> None:
    """In place of Dask's: the process has no file descriptor left, and cleaning up fails, too."""
    try:
        raise OSError(24, "Too many open files")
    except OSError:
        raise AssertionError("starting") from None


def test_the_error_of_the_system_is_recorded_and_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(own_workers, "_failures", [])
    monkeypatch.setattr(Nanny, "start_unsafe", _start_without_descriptors)
    assert own_workers.worker_failure() is None
    kind: Any = own_workers.with_recorded_failure(Nanny)
    with pytest.raises(AssertionError):
        asyncio.run(kind.__new__(kind).start_unsafe())
    assert own_workers.worker_failure() == "OSError: [Errno 24] Too many open files"
    assert own_workers.worker_failure(for_s=60) is None
    error = scheduler_connection._no_worker("tcp://1.2.3.4:5", 8, None, own_workers.worker_failure())
    assert "as its own did not start: OSError: [Errno 24] Too many open files. Look at the limits" in str(error)
    assert "feedline worker" not in str(error)


def test_a_worker_that_starts_leaves_no_failure(monkeypatch: pytest.MonkeyPatch):
    async def start(self: Nanny) -> Nanny:
        return self

    monkeypatch.setattr(own_workers, "_failures", [("OSError: before", 0.0)])
    monkeypatch.setattr(Nanny, "start_unsafe", start)
    kind: Any = own_workers.with_recorded_failure(Nanny)
    worker = kind.__new__(kind)
    assert asyncio.run(worker.start_unsafe()) is worker
    assert own_workers.worker_failure() is None


def test_a_feeder_does_not_wait_for_a_worker_that_does_not_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(own_workers, "_failures", [])
    monkeypatch.setattr(scheduler_connection, "_FAILED_S", 0.0)
    monkeypatch.setattr(Nanny, "start_unsafe", _start_without_descriptors)
    spec = ClusterSpec.model_validate({"workers": 1, "wait_s": PATIENCE_S, "dashboard": False})
    began_s = time.monotonic()
    with closing(open_cluster(spec, threads=1)) as cluster, pytest.raises(ClusterError, match="its own did not start"):
        cluster.check_workers()
    assert time.monotonic() - began_s < PATIENCE_S / 2
