"""Works are measured in turn, within a budget, by a clock that tests turn themselves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from feedline.workbench.explain.cpu_time import CpuBudget, CpuEstimate, estimate, measure_in_turn


class Clock:
    """CPU seconds that works take as they are asked to."""

    def __init__(self) -> None:
        self.now_s = 10.0
        self.done: list[str] = []

    def __call__(self) -> float:
        return self.now_s

    def work(self, name: str, *seconds: float) -> Callable[[], None]:
        left = list(seconds)

        def run() -> None:
            self.done.append(name)
            self.now_s += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_works_run_in_turn_and_the_first_round_is_left_out():
    clock = Clock()
    seconds = measure_in_turn([clock.work("a", 9, 1, 2), clock.work("b", 3)], CpuBudget(1e9, clock), rounds=2)
    assert clock.done == ["b", "a", "a", "b", "b", "a"]
    assert seconds.tolist() == [[1, 3], [2, 3]]


def test_no_round_begins_that_would_not_end_in_time():
    clock = Clock()
    budget = CpuBudget(10, clock)
    assert measure_in_turn([clock.work("a", 4)], budget, rounds=5).tolist() == [[4]]
    assert clock.done == ["a", "a"]
    assert (budget.used_s, budget.left_s) == (8, 2)
    assert measure_in_turn([clock.work("b", 4)], budget, rounds=5).tolist() == [[4]]
    assert clock.done == ["a", "a", "b"]


def test_no_works_take_no_time():
    assert measure_in_turn([], CpuBudget(), rounds=2).shape == (2, 0)


def test_estimates_are_medians_with_extremes():
    assert estimate(np.array([3.0, 1.0, 2.0])) == CpuEstimate(2.0, 1.0, 3.0)
    assert estimate(np.array([-2.0])) == CpuEstimate(-2.0, -2.5, -1.5)
    assert CpuEstimate(2.0, 1.0, 3.0).scaled(2) == CpuEstimate(4.0, 2.0, 6.0)
    assert CpuEstimate(2.0, 1.0, 3.0) + CpuEstimate(1, 1, 1) == CpuEstimate(3.0, 2.0, 4.0)


def test_process_time_counts_by_default():
    budget = CpuBudget()
    np.sort(np.random.default_rng(0).random(200_000))
    assert 0 < budget.used_s < 60
    assert budget.left_s == pytest.approx(float("inf"))
