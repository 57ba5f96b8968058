"""Do a stream's blocks arrive, whatever happens to scheduler, workers and tasks? On workers in this process."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import LocalCluster
from pipelines import eventually

from feedline.errors import ClusterError
from feedline.loader.schedule import Block
from feedline.sections import ClusterSpec
from feedline.service import delivery as module
from feedline.service.cluster import Cluster
from feedline.service.delivery import Delivery, DeliveryStats
from feedline.service.tasks import BlockResult

ROWS = 4


@pytest.fixture(scope="module")
def workers() -> Iterator[LocalCluster]:
    """A scheduler and three workers with a thread each, reached over TCP as if they were elsewhere."""
    with LocalCluster(
        n_workers=3,
        threads_per_worker=1,
        processes=False,
        protocol="tcp://",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
        silence_logs=logging.CRITICAL,
    ) as cluster:
        yield cluster


@pytest.fixture
def cluster(workers: LocalCluster) -> Iterator[Cluster]:
    with contextlib.closing(Cluster(ClusterSpec(scheduler=workers.scheduler_address, wait_s=30), threads=1)) as cluster:
        cluster.client.wait_for_workers(3, timeout=30)
        yield cluster


class Stream:
    """A lane of blocks, a step each, computed by a function of (block index, key)."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, work: Callable[[int, str], Any]) -> None:
        Stream.work = staticmethod(work)
        monkeypatch.setattr(module, "run_block", run)
        self.cluster = cluster
        self.woken = threading.Event()

    def open(self, name: str, blocks: int, **options: Any) -> Delivery:
        made = (Block(lane=0, index=n, first_step=n, last_step=n, **BLOCK) for n in range(blocks))
        defaults = {"window_blocks": 4, "window_bytes": 1 << 30}
        return Delivery(
            self.cluster,
            SimpleNamespace(name=name),  # what every task is given
            None,
            name=name,
            blocks=made,
            request=lambda block: SimpleNamespace(index=block.index, rows=ROWS),
            wake=self.woken.set,
            stats=DeliveryStats(),
            **{**defaults, **options},
        )

    def read(self, delivery: Delivery, steps: range) -> list[Any]:
        """What the steps get, in order."""
        read = []
        for step in steps:
            delivery.pump(step)

            def arrived(step: int = step) -> Any:
                self.cluster.look(waiting=True)
                delivery.look()
                return delivery.get(0, step)

            rows = eventually(arrived)
            assert rows is not None, f"block {step} never came"
            read.append(rows[0].value)
            delivery.drop(step)
        return read


BLOCK: dict[str, Any] = {"start": 0, "rows": ROWS, "pieces": ()}


def run(job: Any, request: Any, key: str, packed: bool) -> BlockResult:
    """Instead of a block's own task."""
    value = Stream.work(request.index, key)
    return BlockResult(
        key=key,
        rows=ROWS,
        parts=(SimpleNamespace(value=value, nbytes=8),),
        image=None,
        read_s=0,
        transform_s=0,
        encode_s=0,
        nbytes_read=0,
        quality=None,
    )


def test_a_client_that_has_given_up_is_replaced(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    """Dask's client closes when its scheduler is away for ten seconds: blocks wait until there is another."""
    stream = Stream(cluster, monkeypatch, lambda index, key: index * index)
    delivery = stream.open("given-up", 20)
    assert stream.read(delivery, range(5)) == [0, 1, 4, 9, 16]
    cluster.client.close()
    assert not cluster.alive()
    assert cluster.threads() >= 1
    assert cluster.window(2) >= 4
    delivery.drop(5)
    delivery.pump(6)
    assert delivery.get(0, 9) is None
    assert stream.read(delivery, range(6, 20)) == [n * n for n in range(6, 20)]
    assert cluster.connection.number == 1
    delivery.close()


def test_a_scheduler_that_stays_away_is_an_error_where_somebody_waits(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    seconds = iter(range(1000))
    cluster.connection._clock = lambda: float(next(seconds))
    monkeypatch.setattr(cluster.connection, "_search_scheduler", lambda: None)
    cluster.client.close()
    for _ in range(50):
        cluster.look(waiting=False)
    for _ in range(30):
        cluster.look(waiting=True)
    with pytest.raises(ClusterError, match=f"no Dask scheduler answers at {cluster._spec.scheduler}: got none for 30"):
        cluster.look(waiting=True)
