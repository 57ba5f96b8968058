"""Blocks in threads of this process: holders of a key share its task, and each outcome arrives once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from pipelines import PATIENCE_S, eventually

from feedline.blocks.request import BlockResult
from feedline.loader.encoding.block_times import BlockTimes
from feedline.service.cluster import attempts
from feedline.service.cluster.attempts import Submission
from feedline.service.cluster.blame import BlockFailure
from feedline.service.cluster.local_tasks import LocalTask, LocalTasks


class Outcomes:
    """Outcomes in the order in which they arrive, with their keys."""

    def __init__(self) -> None:
        self.all: list[tuple[str, Any]] = []
        self._come = threading.Semaphore(0)

    def add(self, key: str, outcome: Any) -> None:
        self.all.append((key, outcome))
        self._come.release()

    def one(self) -> tuple[str, Any]:
        assert self._come.acquire(timeout=PATIENCE_S)
        return self.all[-1]


class Counted:
    """A block's result, as far as it is counted."""

    def __init__(self, value: object) -> None:
        self.value = value
        self.rows = self.nbytes_read = self.nbytes = 0
        self.times, self.cached = BlockTimes(), None


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LocalTask]]:
    """Starts the task of a call, in one of two threads."""

    def run(job: Any, call: Callable[[], object], key: str, packed: bool) -> Counted:
        return Counted(call())

    monkeypatch.setattr(attempts, "run_block", run)
    with closing(LocalTasks(2)) as tasks:

        def start(call: Callable[[], object], key: str, outcomes: Outcomes) -> LocalTask:
            request: Any = call  # what `run` calls
            return tasks.start(Submission(job="job", request=request, key=key, arrived=outcomes.add))

        yield start


def test_holders_of_a_key_share_its_task(start: Callable[..., LocalTask]):
    """Also one that comes after the outcome, which is passed by reference."""
    runs, go_on, first, second, third = [], threading.Event(), Outcomes(), Outcomes(), Outcomes()

    def work() -> None:
        runs.append(1)
        go_on.wait(PATIENCE_S)

    tasks = [start(work, "shared", each) for each in (first, second)]
    go_on.set()
    assert first.one() == second.one()
    tasks += [start(work, "shared", third)]
    assert third.one() == first.all[0]
    for task in tasks:
        task.cancel()
    assert (len(runs), len(first.all), len(second.all), len(third.all)) == (1, 1, 1, 1)
    start(work, "shared", first)
    first.one()
    assert len(runs) == 2, "all had released it"


def test_a_released_task_says_nothing(start: Callable[..., LocalTask]):
    outcomes, begun, go_on, ended = Outcomes(), threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(PATIENCE_S)
        ended.set()

    task = start(work, "released", outcomes)
    assert begun.wait(PATIENCE_S)
    task.cancel()
    again = start(lambda: 7, "released", outcomes)
    assert outcomes.one()[1].value == 7
    go_on.set()
    assert ended.wait(PATIENCE_S)
    again.cancel()
    assert not eventually(lambda: len(outcomes.all) > 1, within_s=0.2)


def test_a_task_that_waits_for_a_thread_and_is_released_does_not_run(start: Callable[..., LocalTask]):
    go_on, runs, outcomes = threading.Event(), [], Outcomes()
    busy = [start(lambda: go_on.wait(PATIENCE_S), f"busy-{number}", outcomes) for number in range(2)]
    start(lambda: runs.append(1), "waiting", outcomes).cancel()
    last = start(lambda: 3, "last", outcomes)
    go_on.set()
    assert eventually(lambda: len(outcomes.all) == 3)
    assert runs == []
    for task in (*busy, last):
        task.cancel()


def test_an_error_is_a_failure(start: Callable[..., LocalTask]):
    outcomes = Outcomes()
    task = start(lambda: int("no number"), "failed", outcomes)
    _, failure = outcomes.one()
    assert (type(failure), failure.name) == (BlockFailure, "ValueError")
    task.cancel()


def of_times(wall_s: float, waits: float) -> BlockResult:
    """The result of a block whose thread waited for a share of its time."""
    times = BlockTimes(read_s=wall_s, read_cpu_s=wall_s * (0.7 - waits), fetch_s=0.2 * wall_s, contended_s=0.1 * wall_s)
    return BlockResult(key="k", rows=0, parts=(), image=None, nbytes_read=0, quality=None, cached=None, times=times)


@pytest.mark.parametrize(("waits", "processes"), [(0.05, 0), (0.08, 2)])
def test_threads_go_on_until_they_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, waits: float, processes: int
):
    """For more than 6 % of three seconds and more, without their first blocks, which wait for compilation."""
    given: list[str] = []
    pool: Any = SimpleNamespace(start=lambda call: given.append(call.key), has_computed=True, close=lambda: None)
    monkeypatch.setattr(attempts, "run_block", lambda job, call, key, packed: call())
    results = [of_times(2.0, 0.5)] * 2 + [of_times(1.6, waits)] * 4
    outcomes = Outcomes()
    caplog.set_level(logging.INFO, logger="feedline")
    with closing(LocalTasks(1, pool, threads_first=True)) as tasks:
        for number, result in enumerate(results):
            call: Any = lambda result=result: result  # noqa: E731
            tasks.start(Submission(job="job", request=call, key=f"k{number}", arrived=outcomes.add))
            if number < len(results) - processes:
                assert outcomes.one()[1] is result
    assert given == [f"k{number}" for number in range(len(results) - processes, len(results))]
    said = "blocks are computed by processes: threads waited for each other for 8% of 3.2 s"
    assert [record.getMessage() for record in caplog.records] == [said] * (processes > 0)
