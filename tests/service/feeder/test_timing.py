"""Due times and overdue blocks; pure."""

from __future__ import annotations

from itertools import pairwise

import pytest

from feedline.service.feeder.timing import HORIZON_S, Priorities, TrainerPace, overdue_after_s


def test_a_pace_is_the_trainers_own():
    pace = TrainerPace()
    assert pace.step_s == 0
    now_s = waited_s = 0.0
    for step in range(20):
        pace.step(now_s, waited_s)
        now_s += 0.25 + (3 if step % 2 else 0)  # it computes, and waits for a block every other time
        waited_s += 3 if step % 2 else 0
    assert pace.step_s == pytest.approx(0.25)
    pace.step(now_s + 600, waited_s)  # an evaluation
    assert pace.step_s == pytest.approx(0.25)


def test_earlier_due_times_come_first_across_jobs():
    old, new = Priorities(), Priorities()
    old.begin(1_000_000, 0.1, 0)
    new.begin(0, 0, 0)
    now_s = 1.7e9
    assert old.next(1_000_000, now_s) == new.next(0, now_s), "both are needed now"
    assert old.next(1_000_020, now_s) < new.of(0, now_s + 1.9), "in two seconds: behind what is needed before"
    assert old.of(1_000_020, now_s) > new.of(0, now_s + 2.1), "and before what is needed after"
    assert old.of(1_009_000, now_s) == -round((now_s + HORIZON_S) * 1000), "never later than the horizon"


def test_priorities_of_a_stream_are_distinct():
    priorities = Priorities()
    priorities.begin(0, 0, 0)
    made = [priorities.next(step, 5.0) for step in range(100)]
    assert all(before > after for before, after in pairwise(made))
    assert made[-1] == -5000 - 99, "a block is a millisecond behind the one before"
    assert priorities.of(50, 5.0) == -5000, "a second attempt is needed now"


def test_the_next_epochs_blocks_come_last():
    ahead, other = Priorities(), Priorities()
    ahead.begin(0, 0.1, HORIZON_S)
    other.begin(7, 0, 0)
    assert ahead.next(0, 100.0) < other.next(7, 100.0 + HORIZON_S - 0.1)


def test_a_block_is_overdue_after_ten_medians():
    assert overdue_after_s(0) == overdue_after_s(1) == 30
    assert overdue_after_s(7) == 70
