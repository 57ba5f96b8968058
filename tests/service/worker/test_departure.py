"""Workers leave without losing work; the workers are in this process, and their blocks sleep."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import LocalCluster, get_worker
from pipelines import eventually
from schedulers import local_cluster
from streams import Stream, window

from feedline.config.cluster_section import ClusterSpec
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.dask_patches.scheduler_patches import finish_before_retirement
from feedline.service.worker.departure import Departure
from feedline.service.worker.preload import dask_setup


@pytest.fixture
def workers() -> Iterator[LocalCluster]:
    """A scheduler and four workers with two threads each, reached over TCP as if they were elsewhere."""
    with local_cluster(workers=4, threads=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(workers: LocalCluster) -> Iterator[Cluster]:
    with contextlib.closing(
        open_cluster(ClusterRequest(ClusterSpec(scheduler=workers.scheduler_address, wait_s=30), threads=1))
    ) as cluster:
        cluster.client.wait_for_workers(4, timeout=30)
        yield cluster


def named(workers: LocalCluster, name: int) -> Any:
    return workers.workers[name]


def test_no_block_is_computed_twice_by_a_scale_in(
    workers: LocalCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """Two of four workers leave while all have blocks that run and blocks that wait: one by itself, as on SIGTERM, and
    one that the scheduler retires, as Dask's adaptive scaling does. The blocks that run end when both are leaving."""
    computed, lock, release = Counter[int](), threading.Lock(), threading.Event()

    def work(index: int, key: str) -> int:
        with lock:
            computed[index] += 1
        if index >= 6:
            release.wait(60)
        return index

    stream = Stream(cluster, monkeypatch, work)
    delivery = stream.open("scale-in", 80, window=window(fixed_blocks=30))
    assert stream.read(delivery, range(6)) == list(range(6))
    assert eventually(lambda: computed.total() == 6 + 8)
    itself, retired = named(workers, 0), named(workers, 1)

    async def shrink() -> None:
        finish_before_retirement(workers.scheduler)
        await dask_setup(retired)
        scheduler: Any = cluster.client.scheduler
        departure = Departure(itself)
        await asyncio.gather(departure.leave(), scheduler.retire_workers(names=[1], remove=True, close_workers=True))

    leaving = threading.Thread(target=workers.sync, args=(shrink,))
    leaving.start()
    assert eventually(lambda: {itself.status.name, retired.status.name} == {"closing_gracefully"})
    gone = eventually(lambda: len(workers.scheduler.workers) < 4 or "closed" in itself.status.name, within_s=0.5)
    release.set()
    assert not gone, "they wait for the blocks that run"
    assert stream.read(delivery, range(6, 80)) == list(range(6, 80))
    leaving.join(30)
    assert not leaving.is_alive()
    assert set(computed.values()) == {1}
    assert delivery.stats.resubmitted == 0
    assert {itself.status.name, retired.status.name} == {"closed"}
    assert len(workers.scheduler.workers) == 2
    delivery.close()


def test_what_runs_too_long_is_computed_elsewhere_and_counts_as_nobodys_fault(
    workers: LocalCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    hang, places = threading.Event(), []

    def work(index: int, key: str) -> int:
        if index == 3:
            places.append(get_worker().address)
            if len(places) == 1:
                hang.wait(60)
        return index

    stream = Stream(cluster, monkeypatch, work)
    delivery = stream.open("hang", 8)
    assert stream.read(delivery, range(3)) == [0, 1, 2]
    delivery.pump(3)
    assert eventually(lambda: places)
    slow = next(worker for worker in workers.workers.values() if worker.address == places[0])
    departure: list[Departure] = []

    async def leave() -> None:
        departure.append(Departure(slow, limit_s=3600))
        await departure[0].leave()

    leaving = threading.Thread(target=workers.sync, args=(leave,))
    leaving.start()
    assert eventually(lambda: slow.status.name == "closing_gracefully")
    assert slow.address in workers.scheduler.workers, "it waits for the block that runs"
    workers.loop.add_callback(departure[0].hurry)
    assert stream.read(delivery, range(3, 8)) == [3, 4, 5, 6, 7]
    leaving.join(30)
    hang.set()
    assert len(places) == 2
    assert places[0] != places[1]
    assert delivery.stats.resubmitted == 0, "the scheduler moved it: no failure that the feeder would count"
    delivery.close()


def test_results_that_nobody_has_fetched_are_moved(workers: LocalCluster, cluster: Cluster):
    """Those of a feeder that is stopped, or the partial results of a fit."""
    leaver = named(workers, 2)
    kept = cluster.client.submit(here, key="kept", workers=[leaver.address], allow_other_workers=True, pure=False)
    assert kept.result() == leaver.address

    async def leave() -> None:
        await Departure(leaver).leave()

    workers.sync(leave)
    assert leaver.address not in workers.scheduler.workers
    assert kept.result() == leaver.address, "what it returned there: it was not computed again"


def here() -> str:
    return str(get_worker().address)
