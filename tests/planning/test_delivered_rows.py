"""Delivered rows agree with the schedule's own cuts; schedules may begin in mid-epoch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drawn_examples import examples
from drawn_schedules import deliver, schedules
from hypothesis import given
from hypothesis import strategies as st

from feedline.blocks.permutation import permutation
from feedline.planning.rebase import find_delivered_rows
from feedline.planning.schedule import Schedule, Tail


def order_of(schedule):
    """As a plan permutes the blocks of `test_schedule.deliver`."""

    def order(block):
        key = ("rows", schedule.seed, schedule.epoch, block.lane, block.index)
        return permutation(block.rows, *key) if schedule.shuffle else None

    return order


def places(found):
    return {(split, row) for split, mask in found.items() for row in np.flatnonzero(mask).tolist()}


@examples(60)
@given(schedules(), st.integers(0, 60), st.sampled_from([0, 3]))
def test_delivered_rows_are_those_of_the_steps(schedule, step, first):
    later = replace(schedule, first_step=first)
    step = min(first + step, later.steps)
    steps = deliver(schedule, range(schedule.lanes))[: step - first]
    held = [(split, row) for rows in steps for split, row, ok in rows if ok]
    found = find_delivered_rows(later, step, order_of(schedule))
    assert places(found) == set(held)
    assert len(held) == len(set(held))


@examples(60)
@given(schedules(), st.integers(1, 9))
def test_a_schedule_that_begins_in_mid_epoch(schedule, first):
    """The same cuts of the same blocks, numbered on; only the permutations have another key."""
    later = replace(schedule, first_step=first)
    lanes = range(schedule.lanes)
    assert later.steps == schedule.steps + first
    assert later.rows_dropped == schedule.rows_dropped
    for lane in lanes:
        for step in range(schedule.steps):
            assert later.cuts(lane, step + first) == schedule.cuts(lane, step)
        for start in range(3):
            moved = [
                replace(block, first_step=block.first_step + first, last_step=block.last_step + first)
                for block in schedule.blocks(lane, first_step=start)
            ]
            assert list(later.blocks(lane, first_step=first + start)) == moved


@pytest.mark.parametrize("tail", ["drop", "pad", "partial"])
@pytest.mark.parametrize("rows", [[0, 0], [0, 3]])
def test_an_epoch_with_few_rows_left_or_none(rows: list[int], tail: Tail):
    schedule = Schedule(
        split_rows=np.array(rows),
        lanes=4,
        batch_size=2,
        tail=tail,
        block_rows=8,
        shuffle=True,
        seed=1,
        epoch=0,
        first_step=5,
        salt=("x",),
    )
    more = sum(rows) > 0 and tail != "drop"
    assert schedule.steps == 5 + more
    assert bool(list(schedule.blocks_of(range(4)))) == more
    assert schedule.rows_dropped == (sum(rows) if tail == "drop" else 0)
