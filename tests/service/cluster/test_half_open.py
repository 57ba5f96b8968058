"""Connections that stay open and carry nothing are noticed, and replaced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack
from typing import Any

import distributed.client
import pytest
from distributed import Client, Scheduler, Security, Status, Worker
from pipelines import eventually
from processes import free_port
from proxy import Proxy

from feedline.errors import ClusterError
from feedline.service.cluster import result_fetcher, scheduler_connection, worker_checks
from feedline.service.cluster.result_fetcher import ResultFetcher
from feedline.service.cluster.scheduler_connection import SchedulerConnection
from feedline.service.cluster.shared_results import SharedResults
from feedline.service.cluster.worker_checks import check_workers
from feedline.service.dask_patches import worker_patches
from feedline.service.worker.worker_process import WorkerOptions, WorkerProcess

HOST = "tcp://127.0.0.1"


class Served:
    """A scheduler and a worker in a thread; their clients reach each through a proxy."""

    def __init__(self) -> None:
        port, worker_port = free_port(), free_port()
        self.to_scheduler, self.to_worker, self.of_worker = Proxy(port), Proxy(worker_port), Proxy(port)
        self._ports = port, worker_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    async def start(self) -> None:
        port, worker_port = self._ports
        self.scheduler = await Scheduler(host="127.0.0.1", port=port, dashboard_address="127.0.0.1:0", dashboard=False)
        self.worker = await Worker(
            f"{HOST}:{self.of_worker.port}",
            host="127.0.0.1",
            port=worker_port,
            contact_address=f"{HOST}:{self.to_worker.port}",
            nthreads=1,
            dashboard_address="127.0.0.1:0",
            dashboard=False,
            preload=("feedline.service.worker.preload",),
        )

    async def stop(self) -> None:
        await self.worker.close()
        await self.scheduler.close()

    def run(self, act: Coroutine[Any, Any, None]) -> None:
        """Run something on the loop of scheduler and worker."""
        asyncio.run_coroutine_threadsafe(act, self._loop).result(30)

    def connect(self) -> Client:
        return Client(f"{HOST}:{self.to_scheduler.port}", direct_to_workers=True, set_as_default=False, timeout=10)

    def __enter__(self) -> Served:
        self._stack = ExitStack()
        for proxy in (self.to_scheduler, self.to_worker, self.of_worker):
            self._stack.enter_context(proxy)
        self._thread.start()
        self.run(self.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._stack.close()


# A busy machine answers late: a connection that works must not be taken for one that carries nothing.
ANSWERS_WITHIN_S, ROUNDS = 1.0, 2


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(scheduler_connection, "_EVERY_S", 0.1)
    monkeypatch.setattr(scheduler_connection, "_ROUND_S", ANSWERS_WITHIN_S)
    monkeypatch.setattr(scheduler_connection, "_ROUNDS", ROUNDS)
    monkeypatch.setattr(result_fetcher, "_FETCH_S", ANSWERS_WITHIN_S)
    with Served() as served:
        yield served


@pytest.fixture
def impatient_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_patches, "_EVERY_S", 0.1)
    monkeypatch.setattr(worker_patches, "_ROUND_S", ANSWERS_WITHIN_S)
    monkeypatch.setattr(worker_patches, "_ROUNDS", ROUNDS)


def test_results_are_lost_with_a_client_that_closes_while_they_are_gathered(
    served: Served, monkeypatch: pytest.MonkeyPatch
):
    """Behind a cut network: Dask's client gives up its scheduler, then asks it for what no worker has sent."""
    connection = SchedulerConnection(served.connect, address=lambda: "there", wait_s=30, returns=True)
    future = connection.submit(int)
    assert future is not None

    async def send_nothing(who_has: dict[str, Any], **_: Any) -> tuple[dict[str, Any], list[str], list[str], list[str]]:
        await future.client._close(fast=True)
        return {}, list(who_has), [], []

    monkeypatch.setattr(distributed.client, "gather_from_workers", send_nothing)
    with pytest.raises(CancelledError):
        connection.gather([future])
    connection.close()


def test_an_error_of_a_task_is_that_of_its_gathering(served: Served):
    connection = SchedulerConnection(served.connect, address=lambda: "there", wait_s=30, returns=True)
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        connection.gather([connection.submit(getattr, 1, "missing")])
    connection.close()


def test_connections_that_carry_nothing_are_replaced(served: Served, caplog: pytest.LogCaptureFixture):
    connection = SchedulerConnection(served.connect, address=lambda: "there", wait_s=30, returns=True)
    shared = SharedResults()
    fetcher = ResultFetcher(shared)
    arrived: dict[str, Any] = {}

    def computed(key: str) -> Any:
        """What arrives for a task; lost ones are submitted again, as a delivery does."""
        connection.look(waiting=True)
        if key not in arrived:
            task = fetcher.start(
                connection.submit,
                len,
                key,
                key=f"{key}-{len(arrived)}",
                arrived=lambda _, outcome: results.append(outcome),
            )
            if task is None:
                return None
            arrived[key] = task
        if results:
            del arrived[key]
        return results.pop() if results else None

    results: list[Any] = []
    try:
        assert eventually(lambda: computed("block")) == 5
        connection.client.sync(_connect_twice, connection.client.rpc, f"{HOST}:{served.to_worker.port}")
        assert served.to_worker.half_open() >= 2
        assert eventually(lambda: computed("a block")) == 7
        assert caplog.text.count("trying another connection") == 1, "the next one is new"
        assert "has not answered" not in caplog.text
        assert served.to_scheduler.half_open() >= 2
        assert eventually(lambda: computed("another block")) == 13
        assert "although its connection is open: connecting again" in caplog.text
        assert "Exception in callback" not in caplog.text
    finally:
        connection.close()
        shared.close()


async def _connect_twice(pool: Any, address: str) -> None:
    """Leave two connections to wait for use."""
    for comm in [await pool.connect(address) for _ in range(2)]:
        pool.reuse(address, comm)


def _refuse(argument: object) -> None:
    raise ClusterError(f"{argument} is refused")


def test_a_check_takes_another_connection_where_one_carries_no_answer(served: Served, monkeypatch: pytest.MonkeyPatch):
    """Of those that the scheduler keeps to a worker."""
    monkeypatch.setattr(worker_checks, "_ANSWERS_S", (ANSWERS_WITHIN_S, ANSWERS_WITHIN_S, 30.0))
    assert eventually(lambda: served.scheduler.workers)
    served.run(_connect_twice(served.scheduler.rpc, f"{HOST}:{served.to_worker.port}"))
    with served.connect() as client:
        assert served.to_worker.half_open() >= 2
        with pytest.raises(ClusterError, match="the job is refused"):
            check_workers(client, _refuse, "the job", lambda worker, why: None)


class SilentClient:
    """A client of three workers, of which one never answers."""

    def __init__(self) -> None:
        self.scheduler = self
        self.asked: list[str] = []

    def sync(self, function: Any, *arguments: Any) -> Any:
        return asyncio.run(function(*arguments))

    async def ncores(self) -> dict[str, int]:
        return {"good": 1, "silent": 1, "unfit": 1}

    async def run(self, check: Any, argument: Any, *, workers: list[str] | None, on_error: str) -> dict[str, Any]:
        names = workers or list(await self.ncores())
        self.asked += names
        if "silent" in names:
            await asyncio.Event().wait()
        return {name: ClusterError("unfit") if name == "unfit" else None for name in names}


def test_a_worker_that_does_not_answer_hides_no_answers_of_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_checks, "_ANSWERS_S", (0.01, 0.01, 30.0))
    client: Any = SilentClient()
    excluded: list[str] = []
    check_workers(client, _refuse, "the job", lambda worker, why: excluded.append(worker))
    assert excluded == ["unfit"]
    assert client.asked.count("silent") == 2, "not for long, as another has passed"
    monkeypatch.setattr(worker_checks, "_ANSWERS_S", (0.01, 0.01, 0.01))
    check_workers(client, _refuse, "the job", lambda worker, why: excluded.append(worker), ["silent"])
    assert excluded == ["unfit"]


def test_why_a_lost_scheduler_could_not_be_connected_to_is_in_the_error(
    served: Served, caplog: pytest.LogCaptureFixture
):
    seconds, refusals, is_refused = iter(range(1000)), [], threading.Event()

    def connect() -> Any:
        if is_refused.is_set():
            refusals.append(1)
            raise ClusterError("the certificate of the scheduler expired")
        return served.connect()

    connection = SchedulerConnection(connect, address=lambda: "there", wait_s=30, returns=True)
    connection._clock = lambda: float(next(seconds))
    try:
        is_refused.set()
        connection.client.close()
        connection.look(waiting=False)
        assert eventually(lambda: refusals)
        for _ in range(30):
            connection.look(waiting=True)
        with pytest.raises(ClusterError, match=r"no Dask scheduler for 30 s \(cluster.wait_s\): the certificate of"):
            connection.look(waiting=True)
        is_refused.clear()
        assert eventually(connection.alive)
        connection.look(waiting=True)
        connection.look(waiting=True)
        assert "the Dask scheduler at there is gone; waiting for it" in caplog.text
        assert caplog.text.count("the Dask scheduler at there is back after") == 1
        assert (connection.lost, connection.regained) == (1, 1)
        connection.workers = lambda: 0  # type: ignore[method-assign]
        connection.look(waiting=False)
        assert "has no worker" not in caplog.text, "they follow their scheduler"
        for _ in range(10):
            connection.look(waiting=False)
        connection.workers = lambda: 1  # type: ignore[method-assign]
        connection.look(waiting=False)
        connection.look(waiting=False)
        assert caplog.text.count("the Dask cluster at there has no worker; waiting for one") == 1
        assert caplog.text.count("the Dask cluster at there has workers after 1") == 1
    finally:
        connection.close()


def test_a_worker_whose_scheduler_no_longer_answers_closes(
    impatient_worker: None, served: Served, caplog: pytest.LogCaptureFixture
):
    assert eventually(lambda: len(served.scheduler.workers) == 1)
    assert not eventually(lambda: served.worker.status != Status.running, within_s=0.5), "while it answers"
    assert served.of_worker.half_open() > 0
    assert eventually(lambda: served.worker.status == Status.closed)
    assert "although their connection is open: the worker closes" in caplog.text


def test_another_worker_at_the_same_address_is_taken_at_once(
    impatient_worker: None, served: Served, caplog: pytest.LogCaptureFixture
):
    """The scheduler lists the first one still: for it, too, their connection is open."""
    port = free_port()
    process = WorkerProcess(WorkerOptions(scheduler=f"{HOST}:{served.of_worker.port}", threads=1, port=port))
    workers = served.scheduler.workers
    ids: list[str] = []

    def listed() -> str | None:
        worker = workers.get(f"{HOST}:{port}")
        return None if worker is None else worker.server_id

    async def break_and_end() -> None:
        """Beside the process."""
        for _ in range(2):
            assert await asyncio.to_thread(lambda: eventually(lambda: listed() not in (None, *ids)))
            ids.append(str(listed()))
            await asyncio.to_thread(served.of_worker.half_open)
        process._end()

    async def run() -> None:
        await asyncio.gather(process._run(Security()), break_and_end())

    asyncio.run(run())
    assert len(set(ids)) == 2
    assert "did not take the worker" not in caplog.text
