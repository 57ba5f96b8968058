"""Where a scheduler says that tasks are."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from feedline.service.cluster.task_places import TaskPlaces, answer_of, ask_places


class Scheduler:
    """What a scheduler answers: x runs on worker a, y is held by b, z waits."""

    def __init__(self, *, left: bool = False, ended: bool = False) -> None:
        self.left, self.ended = left, ended

    async def processing(self, workers: list[str] | None) -> dict[str, list[str]]:
        if self.left and workers is not None:
            raise KeyError("c")
        return {"a": ["x", "of another job"], "b": []}

    async def who_has(self, keys: list[str]) -> dict[str, list[str]]:
        assert keys == ["y", "z"]
        return {"y": ["b"], "z": []}

    async def call_stack(self, keys: list[str]) -> dict[str, dict[str, list[str]]]:
        if self.ended:
            raise KeyError("y")
        return {"a": {"x": ["work", "read"]}}


@pytest.mark.parametrize("workers", [None, ["a", "b"], ["c"]])
def test_tasks_are_found_with_their_workers_and_calls(workers: list[str] | None):
    asked = ask_places(Scheduler(left=workers == ["c"]), ["x", "y", "z"], workers, stacks=True)
    assert asyncio.run(asked) == TaskPlaces({"x": "a", "y": "b"}, {"x": ["work", "read"]})


@pytest.mark.parametrize("options", [{"stacks": False}, {"stacks": True}])
def test_calls_are_left_out_unless_asked_for_and_once_a_task_has_ended(options: dict[str, bool]):
    scheduler: Any = Scheduler(ended=True)
    assert asyncio.run(ask_places(scheduler, ["x", "y", "z"], None, **options)).stacks == {}


def test_a_lost_question_has_no_answer():
    asked: Future[TaskPlaces | None] = Future()
    asked.cancel()
    assert answer_of(asked) is None
