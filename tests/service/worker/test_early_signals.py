"""What workers and nannies that are starting do with the signals of their deployment."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Status

from feedline.service.worker import preload, worker_process
from feedline.service.worker.worker_process import WorkerOptions, WorkerProcess

ADDRESS = "tcp://127.0.0.1:1"


class NannyOfAStartingWorker:
    """Learns its worker's address when its status has been asked for twice, or never."""

    def __init__(self, *, starts: bool) -> None:
        self._asked, self._starts = 0, starts
        self.calls: list[str] = []
        self.process = self

    @property
    def status(self) -> Status:
        self._asked += 1
        return Status.running if self.worker_address else Status.starting

    @property
    def worker_address(self) -> str | None:
        return ADDRESS if self._starts and self._asked > 2 else None

    def rpc(self, address: str) -> Any:
        async def leave() -> None:
            self.calls.append(f"leave {address}")

        return SimpleNamespace(feedline_leave=leave)

    async def close(self, reason: str) -> None:
        self.calls.append(f"close {reason}")


@pytest.mark.parametrize(("starts", "calls"), [(True, [f"leave {ADDRESS}"]), (False, ["close feedline-leave"])])
def test_a_nanny_that_does_not_know_its_worker_yet_lets_it_end_its_tasks(
    starts: bool, calls: list[str], monkeypatch: pytest.MonkeyPatch
):
    """A worker may run a task before its nanny has heard of its address. Closing the nanny would give that task up."""
    monkeypatch.setattr(preload, "_START_S", 5.0 if starts else 0.1)
    nanny = NannyOfAStartingWorker(starts=starts)
    asyncio.run(preload._ask_to_leave(nanny))
    assert nanny.calls == calls


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> WorkerProcess:
    """A process that finds its scheduler at once; `calls` has what its workers' departures are told."""

    class RecordedDeparture:
        def __init__(self, worker: object, *, limit_s: float) -> None:
            pass

        async def leave(self) -> None:
            process.calls.append("leave")

    async def found(*_: object) -> None:
        pass

    for name in ("SchedulerWatch", "steady"):
        monkeypatch.setattr(worker_process, name, lambda *_: None)
    monkeypatch.setattr(worker_process, "Departure", RecordedDeparture)
    monkeypatch.setattr(worker_process, "_PAUSE_S", 0.0)
    process = WorkerProcess(WorkerOptions(scheduler="tcp://127.0.0.1:9", threads=1))
    process.calls = []
    monkeypatch.setattr(process, "_await_scheduler", found)
    return process


class StartingWorker:
    """Sends SIGTERM to this process while it starts."""

    io_loop, address = SimpleNamespace(), ADDRESS

    def __init__(self, start_s: float) -> None:
        self._start_s, self.startup_information = start_s, dict[str, Any]()

    def __await__(self) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return asyncio.sleep(self._start_s).__await__()


class RefusedWorker:
    """Fails as Dask's workers do when the scheduler knows one of their name."""

    def __init__(self) -> None:
        self.startup_information = dict[str, Any]()

    def __await__(self) -> Any:
        raise RuntimeError("Worker failed to start.") from ValueError("name taken")
        yield


@pytest.mark.parametrize(("start_s", "left"), [(0.05, ["leave"]), (60.0, [])])
def test_a_worker_that_is_told_to_end_while_it_starts_ends_the_task_it_may_have_got(
    start_s: float, left: list[str], process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
):
    """The same without a nanny. One that does not start in time ends without."""
    monkeypatch.setattr(worker_process, "_START_S", 5.0 if left else 0.1)
    monkeypatch.setattr(process, "_worker", lambda security: StartingWorker(start_s))
    process.run()
    assert process.calls == left


def test_a_worker_that_the_scheduler_refuses_says_why_and_tries_again(
    process: WorkerProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    workers = iter([RefusedWorker(), StartingWorker(0.05)])
    monkeypatch.setattr(process, "_worker", lambda security: next(workers))
    with caplog.at_level("WARNING", logger="feedline.worker"):
        process.run()
    assert process.calls == ["leave"]
    assert caplog.messages == ["the scheduler at tcp://127.0.0.1:9 did not take the worker: name taken"]
