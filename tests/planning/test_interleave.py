"""Strands hand out every row of their blocks once, in turn, as a simulation tick by tick does."""

from __future__ import annotations

from collections import Counter

import numpy as np
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.planning.interleave import deal_blocks, step_shares
from feedline.planning.schedule import spread

BLOCKS = st.lists(st.integers(1, 30), min_size=1, max_size=40)
WINDOWS = st.sampled_from([0, 1, 10, 50, 200, 5000])


def simulated(block_rows: list[int], window_rows: int) -> list[tuple[int, int]]:
    """(block, row) of each row of the lane. A block waits until a strand is free; ties go to the first strand."""
    total, count = sum(block_rows), len(block_rows)
    strands = max(1, min(count, int(window_rows / (total / count) + 0.5)))
    opens = [strand * total // (strands * max(count, 16 * strands)) for strand in range(strands)]
    current: list[list[tuple[int, int]]] = [[] for _ in opens]
    waiting, drawn, tick = list(range(count)), [], 0
    while waiting or any(current):
        for strand, rows in enumerate(current):
            if not rows and waiting and tick >= opens[strand]:
                block = waiting.pop(0)
                rows += [(block, row) for row in range(block_rows[block])]
        drawn += [rows.pop(0) for rows in current if rows]
        tick += 1
    return drawn


@examples(100)
@given(BLOCKS, WINDOWS, st.integers(1, 20))
def test_steps_get_shares_of_every_block(block_rows: list[int], window_rows: int, size: int):
    strands = deal_blocks(np.array(block_rows), window_rows)
    drawn = simulated(block_rows, window_rows)
    for block, rows in enumerate(block_rows):
        shares = step_shares(strands, block, rows, size, phase=0)
        steps = [row // size for row, (own, _) in enumerate(drawn) if own == block]
        found = dict(enumerate(shares.rows_of_steps.tolist(), shares.first_step))
        assert {step: count for step, count in found.items() if count} == dict(Counter(steps))


@examples(100)
@given(BLOCKS, WINDOWS, st.data())
def test_strands_of_a_part_hand_out_every_row_of_it_once(block_rows: list[int], window_rows: int, data):
    part = [data.draw(st.integers(0, rows)) for rows in block_rows]
    strands = deal_blocks(np.array(block_rows), window_rows).of_part(np.array(part), np.array(block_rows))
    drawn = np.array([strands.positions(row) for row in range(sum(part) + 1)])
    assert (np.diff(drawn, axis=0).sum(axis=1) == 1).all()
    assert drawn[-1].tolist() == strands.rows.tolist()
    assert [sum(part[block] for block in own) for own in strands.blocks] == strands.rows.tolist()


@examples(150)
@given(BLOCKS, WINDOWS)
def test_rows_are_drawn_as_in_a_simulation(block_rows: list[int], window_rows: int):
    strands = deal_blocks(np.array(block_rows), window_rows)
    drawn = []
    strand_of = {
        int(block): (strand, int(start))
        for strand, (own, starts) in enumerate(zip(strands.blocks, strands.starts, strict=True))
        for block, start in zip(own, starts[:-1], strict=True)
    }
    before = strands.positions(0)
    assert not before.any()
    for row in range(sum(block_rows)):
        after = strands.positions(row + 1)
        (strand,) = np.flatnonzero(after - before)
        assert after[strand] - before[strand] == 1
        block = int(np.searchsorted(strands.starts[strand], before[strand], side="right")) - 1
        drawn.append((int(strands.blocks[strand][block]), int(before[strand] - strands.starts[strand][block])))
        before = after
    assert drawn == simulated(block_rows, window_rows)
    where = np.array([strand_of[block] for block, _ in drawn])
    rows = strands.lane_rows(where[:, 0], where[:, 1] + np.array([row for _, row in drawn]))
    assert rows.tolist() == list(range(len(drawn)))
    every = np.arange(len(drawn) + 1)
    found = np.stack([strands.strand_rows(strand, every) for strand in range(len(strands))], axis=1)
    assert found.tolist() == [strands.positions(row).tolist() for row in every.tolist()]
    firsts = [drawn.index((block, 0)) for block in range(len(block_rows))]
    assert firsts == sorted(firsts), "blocks begin in order"


@given(st.integers(0, 200), st.integers(1, 20))
def test_blocks_of_one_size_end_one_by_one(more: int, strands: int):
    """After the first blocks, a new one is needed every 60 rows, so that one can be computed at a time."""
    blocks = 16 * strands + more
    dealt = deal_blocks(np.full(blocks, 60), 60 * strands)
    assert len(dealt) == min(blocks, strands)
    rows = [
        dealt.lane_rows(np.full(len(own), strand), dealt.starts[strand][:-1]) for strand, own in enumerate(dealt.blocks)
    ]
    firsts = np.sort(np.concatenate(rows))
    steady = np.diff(firsts[len(dealt) :])
    assert (np.abs(steady - 60) <= len(dealt)).all()


@examples(100)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=120), st.integers(1, 400), st.integers(0, 2**32))
def test_spread_splits_are_a_permutation(rows: list[int], window_rows: int, seed: int):
    order = np.random.default_rng(seed).permutation(len(rows))
    found = spread(order, np.array(rows), window_rows)
    assert sorted(found.tolist()) == list(range(len(rows)))


def test_a_window_spans_the_table():
    """80 equal splits, 8 to a window: any 8 in a row are one of each tenth, in another order in each epoch."""
    orders = [np.random.default_rng(seed).permutation(80) for seed in range(4)]
    regions = [spread(order, np.full(80, 100), 800) // 10 for order in orders]
    for region in regions:
        windows = np.lib.stride_tricks.sliding_window_view(region, 8)
        assert (np.sort(windows, axis=1) == np.arange(8)).all()
    assert len({tuple(region[:8].tolist()) for region in regions}) == 4


def test_large_splits_lie_evenly_among_small_ones():
    uneven = np.concatenate([np.full(40, 1000), np.full(400, 10)])
    found = spread(np.random.default_rng(2).permutation(440), uneven, 4000)
    starts = np.cumsum(uneven[found]) - uneven[found]
    small = np.sort(starts[found >= 40])
    assert np.diff(small, prepend=0, append=uneven.sum()).max() <= 5000
