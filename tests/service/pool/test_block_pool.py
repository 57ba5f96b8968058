"""Calls of a pool are computed in order, each once, and again elsewhere when their process dies."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pipelines import PATIENCE_S, eventually

from feedline.blocks.jobs import keep_job
from feedline.errors import ClusterError
from feedline.service.pool.block_pool import BlockCall, BlockPool
from feedline.service.pool.block_process import serve_seats

JOB: Any = SimpleNamespace(digest="job-of-test-block-pool")


class ThreadSpawner:
    """Starts threads of this process as workers. compute: what they do, with the job, the request and the key."""

    def __init__(self, compute: Callable[..., Any]) -> None:
        self._compute = compute
        self.spawned: list[int] = []
        self.allowed = 10
        self.is_alive = True
        self._sockets: dict[int, list[socket.socket]] = {}
        self._ends: list[tuple[int, int]] = []
        self._wake = os.eventfd(0)

    def spawn(self, descriptors: Sequence[int], *, threads: int) -> int:
        if len(self.spawned) == self.allowed:
            raise ClusterError("a worker process cannot be forked: no memory is left")
        pid = len(self.spawned) + 1
        copies = [os.dup(descriptor) for descriptor in descriptors]
        self._sockets[pid] = [socket.socket(fileno=os.dup(copy)) for copy in copies]
        threading.Thread(target=serve_seats, args=(self._compute, copies), daemon=True).start()
        self.spawned.append(pid)
        return pid

    def fileno(self) -> int:
        return self._wake

    def ended(self) -> list[tuple[int, int]]:
        ends, self._ends = self._ends, []
        return ends

    def kill(self, pid: int) -> None:
        self._ends.append((pid, -9))
        os.eventfd_write(self._wake, 1)
        for each in self._sockets.pop(pid):
            each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        for pid in list(self._sockets):
            self.kill(pid)
        os.close(self._wake)


class Pool:
    """A pool of threads, and what has come from it."""

    def __init__(self, compute: Callable[..., Any], **options: int) -> None:
        self.spawner = ThreadSpawner(compute)
        self.pool = BlockPool(self.spawner, lambda descriptors: None, **{"processes": 2, **options})
        self.results: dict[str, Any] = {}
        self.parts: list[tuple[str, Any]] = []
        self.deaths: list[tuple[str, str, str]] = []
        self.unwanted: set[str] = set()

    def start(self, key: str, **changes: Any) -> None:
        values: dict[str, Any] = {
            "key": key,
            "job": JOB.digest,
            "request": f"request of {key}",
            "parts": 0,
            "among": None,
            "is_wanted": lambda: key not in self.unwanted,
            "on_part": lambda value: self.parts.append((key, value)),
            "on_result": lambda value: self.results.update({key: value}),
            "on_death": lambda process, why: self.deaths.append((key, process, why)),
        }
        self.pool.start(BlockCall(**{**values, **changes}))

    def until(self, condition: Callable[[], Any]) -> None:
        """Let the pool advance whenever it has something, until the condition holds."""
        poll = select.poll()
        poll.register(self.pool.fileno(), select.POLLIN)

        def look() -> Any:
            if poll.poll(20):
                self.pool.advance()
            return condition()

        assert eventually(look)

    def close(self) -> None:
        self.pool.close()


@pytest.fixture(autouse=True)
def job() -> None:
    keep_job(JOB)


def echo(job: Any, request: str, key: str, parts: int, hand_over: Any) -> Any:
    return job if isinstance(job, str) else "whole job", request, np.full(1000, int(key))


@pytest.fixture
def pool() -> Iterator[Pool]:
    with closing(Pool(echo)) as pool:
        yield pool


def test_each_call_is_computed_once_and_the_job_is_sent_once_per_seat(pool: Pool):
    for number in range(20):
        pool.start(str(number))
    pool.until(lambda: len(pool.results) == 20)
    for key, (_, request, values) in pool.results.items():
        assert (request, values.tolist()) == (f"request of {key}", [int(key)] * 1000)
    assert sorted(job for job, _, _ in pool.results.values()) == [JOB.digest] * 18 + ["whole job"] * 2
    assert len(pool.spawner.spawned) == 2


def test_processes_start_as_there_is_work(pool: Pool):
    for key in ("0", "1", "2"):
        pool.start(key)
        pool.until(lambda key=key: key in pool.results)
    assert len(pool.spawner.spawned) == 1


def test_a_process_of_two_threads_computes_two_calls_at_once():
    both = threading.Barrier(2)

    def meet(job: Any, request: str, key: str, parts: int, hand_over: Any) -> int:
        both.wait(PATIENCE_S)
        return 1

    with closing(Pool(meet, processes=1, threads=2)) as pool:
        pool.start("0")
        pool.start("1")
        pool.until(lambda: len(pool.results) == 2)
        assert len(pool.spawner.spawned) == 1


def test_parts_come_before_the_result():
    def compute(job: Any, request: str, key: str, parts: int, hand_over: Any) -> str:
        for number in range(parts):
            hand_over(np.full(3, number))
        return "whole"

    with closing(Pool(compute)) as pool:
        pool.start("0", parts=2)
        pool.until(lambda: pool.results)
        assert [(key, value.tolist()) for key, value in pool.parts] == [("0", [0, 0, 0]), ("0", [1, 1, 1])]


class Gate:
    """Computes a key when it is let through."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.open = threading.Event()

    def __call__(self, job: Any, request: str, key: str, parts: int, hand_over: Any) -> str:
        self.begun.append(key)
        self.open.wait(PATIENCE_S)
        return key


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def test_a_call_that_is_not_wanted_any_more_is_left_out(gate: Gate):
    with closing(Pool(gate, processes=1)) as pool:
        for number in range(5):
            pool.start(str(number))
        pool.unwanted |= {"2", "3"}
        gate.open.set()
        pool.until(lambda: len(pool.results) == 3)
        assert gate.begun == ["0", "1", "4"]


def test_the_calls_of_a_dead_process_are_made_by_others(gate: Gate):
    with closing(Pool(gate, processes=1)) as pool:
        for number in range(4):
            pool.start(str(number))
        assert eventually(lambda: gate.begun)
        assert pool.pool.places_of({"0", "1", "2"}) == {"0": "process 1", "1": "process 1"}
        pool.pool.end("process 1")
        pool.until(lambda: pool.pool.members() == {"process 2"})
        [(key, process, why)] = pool.deaths
        assert (key, process) == ("0", "process 1")
        assert "was killed by SIGKILL" in why
        gate.open.set()
        pool.until(lambda: len(pool.results) == 3)
        assert sorted(pool.results) == ["1", "2", "3"]


def test_processes_that_die_together_each_have_their_status(gate: Gate):
    with closing(Pool(gate)) as pool:
        pool.start("0")
        pool.start("1")
        assert eventually(lambda: len(gate.begun) == 2)
        for name in ("process 1", "process 2"):
            pool.pool.end(name)
        pool.until(lambda: len(pool.deaths) == 2)
        assert ["was killed by SIGKILL" in why for _, _, why in pool.deaths] == [True, True]


def test_a_call_may_be_restricted_to_other_processes(gate: Gate):
    with closing(Pool(gate)) as pool:
        pool.start("0")
        pool.start("1")
        assert eventually(lambda: len(gate.begun) == 2)
        pool.start("2", among={"process 2"})
        assert pool.pool.places_of({"2"}) == {"2": "process 2"}
        gate.open.set()
        pool.until(lambda: len(pool.results) == 3)


def test_fewer_processes_do_where_no_more_can_be_started(pool: Pool, caplog: pytest.LogCaptureFixture):
    pool.spawner.allowed = 1
    for number in range(6):
        pool.start(str(number))
    pool.until(lambda: len(pool.results) == 6)
    assert caplog.messages == ["a worker process cannot be forked: no memory is left: 1 compute"]


def test_none_at_all_is_an_error(pool: Pool):
    pool.spawner.allowed = 0
    with pytest.raises(ClusterError, match="cannot be forked"):
        pool.start("0")
