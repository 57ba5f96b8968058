"""Reduction merges every result exactly once, in any order of completion, and holds few results at a time."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import DataError
from feedline.fitting.reduction import FAN_IN, map_tasks, reduce_tasks, run_tasks, threads_here


class Scripted:
    """Workers that finish one task at a time, in an order by seed; counts the results held."""

    processes = 1

    def __init__(self, threads: int, seed: int) -> None:
        self.threads = threads
        self._random = random.Random(seed)
        self._results: dict[int, Any] = {}
        self.begun = 0
        self.most = 0
        self.most_running = 0
        self.forgotten: list[int] = []

    def start(self, function: Any, *arguments: Any, urgent: bool) -> int:
        handle = self.begun = self.begun + 1
        given = [[self._results.pop(one) for one in each] if isinstance(each, list) else each for each in arguments]
        self._results[handle] = function(*given)
        self.most = max(self.most, len(self._results))
        return handle

    def wait_any(self, handles: Any) -> list[int]:
        self.most_running = max(self.most_running, len(handles))
        return [self._random.choice(list(handles))]

    def result(self, handle: int) -> Any:
        return self._results[handle]

    def forget(self, handles: Any) -> None:
        self.forgotten.extend(handles)


def each(job: str, task: int) -> list[int]:
    assert job == "job"
    return [task]


def merge(job: str, results: list[list[int]]) -> list[int]:
    assert 1 < len(results) <= FAN_IN
    return sorted(number for result in results for number in result)


@given(st.integers(1, 150), st.integers(1, 5), st.integers(0, 1000))
def test_every_task_counts_once_and_few_results_wait(tasks: int, threads: int, seed: int):
    workers, done = Scripted(threads, seed), []
    assert reduce_tasks(workers, each, merge, "job", range(tasks), on_done=done.append) == list(range(tasks))
    assert sorted(done) == list(range(tasks))
    levels = 1 + next(level for level in range(20) if FAN_IN**level >= tasks)
    assert workers.most <= 2 * threads + FAN_IN * levels
    assert workers.most_running <= 2 * threads + levels * threads


@given(st.integers(0, 60), st.integers(1, 5), st.integers(0, 1000))
def test_results_of_tasks_come_in_their_order_and_few_at_once(tasks: int, threads: int, seed: int):
    workers = Scripted(threads, seed)
    for number, result in enumerate(run_tasks(workers, each, "job", range(tasks))):
        assert result == [number]
        assert workers.begun <= number + 2 * threads
    assert workers.begun == tasks
    assert workers.forgotten == []


def test_tasks_that_nobody_waits_for_are_cancelled():
    workers = Scripted(2, 0)
    results = run_tasks(workers, each, "job", range(9))
    next(results)
    results.close()
    assert workers.forgotten == [2, 3, 4]  # handles of those that were started


def test_threads_give_the_same_result():
    with threads_here(4) as workers:
        assert reduce_tasks(workers, each, merge, "job", range(50)) == list(range(50))
        assert map_tasks(workers, each, "job", range(5)) == [[0], [1], [2], [3], [4]]


def test_the_first_error_is_raised_and_other_tasks_are_cancelled():
    def fail(job: str, task: int) -> list[int]:
        if task == 3:
            raise DataError("task 3 failed: got nothing")
        return [task]

    done: list[int] = []
    with pytest.raises(DataError, match="task 3 failed"), threads_here(2) as workers:
        reduce_tasks(workers, fail, merge, "job", range(1000), on_done=done.append)
    assert len(done) < 20
