"""Schedules drawn at random, and the rows that their steps hold, row by row."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from feedline.blocks.permutation import permutation
from feedline.planning.schedule import Schedule

TAILS = ("drop", "pad", "partial")


@st.composite
def schedules(draw):
    lanes = draw(st.integers(1, 8))
    batch_size = draw(st.integers(1, 9))
    tail = draw(st.sampled_from(TAILS))
    split_rows = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12))
    total = sum(split_rows)
    if total == 0 or (tail == "drop" and total // lanes // batch_size == 0):
        split_rows.append(lanes * batch_size + draw(st.integers(0, 7)))
    return Schedule(
        split_rows=np.array(split_rows, dtype=np.int64),
        lanes=lanes,
        batch_size=batch_size,
        tail=tail,
        block_rows=draw(st.integers(1, 60)),
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 2**63 - 1)),
        epoch=draw(st.integers(0, 5)),
        window_rows=draw(st.sampled_from([0, 1, 20, 90, 400])),
        cut_splits=draw(st.booleans()),
    )


def block_rows(schedule, block):
    """(split, row) of each row of a block, permuted as a task would."""
    rows = [(piece.split, row) for piece in block.pieces for row in range(piece.start, piece.stop)]
    if schedule.shuffle:
        key = ("rows", schedule.seed, schedule.epoch, block.lane, block.index)
        rows = [rows[i] for i in permutation(len(rows), *key)]
    return rows


def deliver(schedule, lanes, first_step=0):
    """Steps of a set of lanes: [(split, row, valid), ...] per step, from the blocks that the schedule announces."""
    blocks = {(b.lane, b.index): b for b in schedule.blocks_of(lanes, first_step=first_step)}
    steps = []
    for step in range(first_step, schedule.steps):
        rows = []
        for lane in lanes:
            for cut in schedule.cuts(lane, step):
                block = blocks[lane, cut.block]
                assert block.first_step <= step <= block.last_step
                content = block_rows(schedule, block)
                if cut.padding:
                    rows += [(*content[cut.start], False)] * cut.padding
                else:
                    rows += [(*row, True) for row in content[cut.start : cut.stop]]
        steps.append(rows)
    return steps
