"""Tasks on threads of this process are Dask's once its cluster is up; each outcome arrives once, whatever comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pipelines import PATIENCE_S, eventually

from feedline.config.cluster_section import ClusterSpec
from feedline.service.cluster.blame import BlockFailure
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.local_tasks import LocalTask, LocalTasks
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with closing(open_cluster(ClusterRequest(ClusterSpec(dashboard=False), threads=2))) as cluster:
        cluster.check_workers()
        yield cluster


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


def known(cluster: Cluster) -> set[str]:
    """The keys of the scheduler's tasks."""
    scheduler = cluster._connected._cluster.scheduler  # type: ignore[union-attr]
    return {str(key) for key in scheduler.tasks}


def test_a_task_is_one_of_dask_and_its_outcome_is_passed_by_reference(cluster: Cluster):
    outcomes, go_on, unpicklable = Outcomes(), threading.Event(), threading.Lock()

    def work() -> Any:
        go_on.wait(PATIENCE_S)
        return unpicklable

    task = cluster.start(work, key="by-reference", arrived=outcomes.add)
    assert eventually(lambda: "by-reference" in known(cluster))
    go_on.set()
    key, outcome = outcomes.one()
    assert (key, outcome is unpicklable) == ("by-reference", True)
    assert task is not None
    task.cancel()
    assert eventually(lambda: "by-reference" not in known(cluster))


def test_holders_of_a_key_share_its_task(cluster: Cluster):
    runs, go_on, first, second, third = [], threading.Event(), Outcomes(), Outcomes(), Outcomes()

    def work() -> object:
        runs.append(1)
        go_on.wait(PATIENCE_S)
        return object()

    tasks = [cluster.start(work, key="shared", arrived=each.add) for each in (first, second)]
    go_on.set()
    assert first.one() == second.one()
    tasks += [cluster.start(work, key="shared", arrived=third.add)]
    assert third.one() == first.all[0]
    for task in tasks:
        assert task is not None
        task.cancel()
    assert (len(runs), len(first.all), len(second.all), len(third.all)) == (1, 1, 1, 1)
    assert eventually(lambda: "shared" not in known(cluster))


def test_a_released_task_says_nothing(cluster: Cluster):
    outcomes, begun, go_on = Outcomes(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    task = cluster.start(work, key="released", arrived=outcomes.add)
    assert begun.wait(PATIENCE_S)
    assert task is not None
    task.cancel()
    go_on.set()
    assert eventually(lambda: "released" not in known(cluster))
    assert not outcomes.all


def test_a_task_that_is_released_and_started_again_runs_again(cluster: Cluster):
    """Dask may not have heard of the release: of an equal key it would run nothing. Nobody looks here."""
    runs = []
    for attempt in range(600):
        outcomes = Outcomes()
        task = cluster.start(
            lambda attempt=attempt: runs.append(attempt), key=f"again-{attempt % 2}", arrived=outcomes.add
        )
        assert task is not None
        assert outcomes.one() == (f"again-{attempt % 2}", None)
        task.cancel()
    assert runs == [*range(600)]
    assert len(cluster._connected._tasks._released) <= 256


def test_a_task_that_dask_has_ended_without_running_it_is_a_failure(cluster: Cluster):
    outcomes, futures = Outcomes(), []
    client = cluster.client

    def submit(_: Any, *arguments: Any, key: str) -> Any:
        futures.append(client.submit(sum, ["no number"], key=key))
        return futures[-1]

    cluster._connected._tasks.start(submit, lambda: None, key="failed", arrived=outcomes.add)
    assert eventually(lambda: futures[0].status == "error")
    cluster.look(waiting=True)
    cluster.look(waiting=True)
    key, failure = outcomes.one()
    assert key == "failed"
    assert isinstance(failure, BlockFailure)
    assert failure.name == "TypeError"
    assert len(outcomes.all) == 1


def test_a_closed_client_starts_nothing(cluster: Cluster):
    tasks = cluster._connected._tasks
    assert tasks.start(lambda *_, **__: None, lambda: None, key="none", arrived=lambda *_: None) is None
    assert "none" not in tasks._entries


def test_a_key_is_computed_once_on_plain_threads_and_released_by_its_last_holder():
    arrived: list[tuple[str, Any]] = []
    release, calls = threading.Event(), []

    def work(number: int) -> int:
        calls.append(number)
        release.wait(10)
        return number

    with closing(LocalTasks(1)) as tasks:

        def start(number: int, key: str) -> LocalTask:
            task = tasks.start(None, work, number, key=key, arrived=lambda *each: arrived.append(each))
            assert task is not None
            return task

        one, two, waiting = start(7, "a"), start(7, "a"), start(8, "b")
        waiting.cancel()
        one.cancel()
        assert [*tasks._entries] == ["a"]
        release.set()
        assert eventually(lambda: len(arrived) == 2)
        two.cancel()
        assert not tasks._entries
    assert (arrived, calls) == ([("a", 7)] * 2, [7])


def test_an_error_of_a_plain_thread_is_a_failure():
    outcomes = Outcomes()
    with closing(LocalTasks(1)) as tasks:
        task = tasks.start(None, int, "no number", key="failed", arrived=outcomes.add)
        _, failure = outcomes.one()
        assert (type(failure), failure.name) == (BlockFailure, "ValueError")
        assert task is not None
        task.cancel()
