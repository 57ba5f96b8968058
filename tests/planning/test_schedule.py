"""Every planned row once, equal steps on all ranks, the same rows per global step for any world size."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from drawn_examples import examples
from drawn_schedules import deliver, schedules
from hypothesis import given
from hypothesis import strategies as st

from feedline.blocks.permutation import permutation, permuted_runs
from feedline.blocks.row_order import balanced_rows
from feedline.errors import PlanError
from feedline.planning.schedule import Schedule, rank_lanes

GOLDEN = [1, 7, 6, 9, 5, 2, 4, 3, 0, 8]


@examples(80)
@given(schedules())
def test_each_planned_row_exactly_once_and_padding_marked(schedule):
    steps = deliver(schedule, range(schedule.lanes))
    valid = [(split, row) for step in steps for split, row, ok in step if ok]
    everything = {(s, r) for s, rows in enumerate(schedule.split_rows) for r in range(rows)}
    assert len(valid) == len(set(valid))
    assert set(valid) <= everything
    assert len(valid) == schedule.rows - schedule.rows_dropped
    padded = [(split, row) for step in steps for split, row, ok in step if not ok]
    assert set(padded) <= everything
    if schedule.tail == "drop":
        assert not padded
    else:
        assert set(valid) == everything


@examples(80)
@given(schedules())
def test_a_block_is_held_for_the_steps_that_draw_from_it(schedule):
    """The last block of a lane to the end, unless steps without enough rows are dropped: it may serve as padding."""
    drawn = defaultdict(set)
    for lane, step in itertools.product(range(schedule.lanes), range(schedule.steps)):
        for cut in schedule.cuts(lane, step):
            drawn[lane, cut.block].add(step)
    for block in schedule.blocks_of(range(schedule.lanes)):
        steps = drawn.pop((block.lane, block.index))
        if schedule.tail == "drop" or block.index != schedule.lane(block.lane).last_block:
            assert (block.first_step, block.last_step) == (min(steps), max(steps))
    assert not drawn


@examples(80)
@given(schedules())
def test_equal_steps_and_only_the_last_may_be_short(schedule):
    full = schedule.batch_size
    for lane in range(schedule.lanes):
        sizes = [len(step) for step in deliver(schedule, range(lane, lane + 1))]
        assert len(sizes) == schedule.steps
        assert all(size == full for size in sizes[:-1])
        assert 1 <= sizes[-1] <= full
        if schedule.tail != "partial":
            assert sizes[-1] == full


@examples(60)
@given(schedules())
def test_any_world_size_sees_the_same_rows_in_the_same_global_step(schedule):
    whole = deliver(schedule, range(schedule.lanes))
    for world_size in (w for w in range(1, schedule.lanes + 1) if schedule.lanes % w == 0):
        ranks = [deliver(schedule, rank_lanes(schedule.lanes, r, world_size)) for r in range(world_size)]
        joined = [list(itertools.chain.from_iterable(parts)) for parts in zip(*ranks, strict=True)]
        assert joined == whole


@examples(60)
@given(schedules(), st.data())
def test_resuming_at_any_step_equals_iterating_there(schedule, data):
    step = data.draw(st.integers(0, schedule.steps))
    lanes = rank_lanes(schedule.lanes, 0, 1)
    assert deliver(schedule, lanes, first_step=step) == deliver(schedule, lanes)[step:]


@examples(60)
@given(schedules())
def test_blocks_tile_their_lane(schedule):
    for lane in range(schedule.lanes):
        start, stop = schedule.lane_bounds(lane)
        blocks = list(schedule.blocks(lane, everything=True))
        if start == stop:
            assert [b.rows for b in blocks] == [1]
            continue
        assert blocks[0].start == start
        assert blocks[-1].start + blocks[-1].rows == stop
        for block, following in itertools.pairwise(blocks):
            assert block.start + block.rows == following.start
            assert block.rows >= schedule.block_rows
        for block in blocks:
            assert sum(p.stop - p.start for p in block.pieces) == block.rows
            last = block.pieces[-1]
            assert block.rows - (last.stop - last.start) < schedule.block_rows


@given(st.integers(0, 3000), st.integers(0, 2**63 - 1))
def test_permutations_are_permutations(size, seed):
    assert np.array_equal(np.sort(permutation(size, "rows", seed)), np.arange(size))


def test_permutation_is_frozen():
    """Golden values: another order would silently break every stored state."""
    assert permutation(10, "splits", 0, 0).tolist() == GOLDEN
    assert permutation(10, "splits", 0, 1).tolist() != GOLDEN


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(0, 99))
def test_runs_stay_together(lengths, seed):
    starts = np.cumsum([0, *lengths[:-1]])
    rows = sum(lengths)
    order = permuted_runs(rows, starts, "rows", seed)
    assert np.array_equal(np.sort(order), np.arange(rows))
    run = np.repeat(np.arange(len(lengths)), lengths)[order]
    assert np.count_nonzero(np.diff(run)) == len(lengths) - 1
    breaks = np.flatnonzero(np.diff(order) != 1) + 1
    assert set(order[breaks]) <= set(starts.tolist())


@given(schedules())
def test_blocks_end_within_large_splits_where_splits_are_cut(schedule):
    largest = max(int(np.diff(schedule.lane(lane).borders).max()) for lane in range(schedule.lanes))
    if schedule.cut_splits:
        assert largest < 2 * schedule.block_rows
    whole = replace(schedule, cut_splits=not schedule.cut_splits)
    assert whole.order.tolist() == schedule.order.tolist()
    if schedule.split_rows.max() <= schedule.block_rows:  # nothing to cut
        assert all(
            whole.lane(lane).borders.tolist() == schedule.lane(lane).borders.tolist() for lane in range(schedule.lanes)
        )


def test_epochs_and_seeds_differ_and_shuffle_off_keeps_the_order():
    common = {"split_rows": np.full(50, 10), "lanes": 1, "batch_size": 10, "tail": "drop", "block_rows": 20}
    orders = {
        (seed, epoch): tuple(Schedule(**common, shuffle=True, seed=seed, epoch=epoch).order)
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(set(orders.values())) == 4
    assert Schedule(**common, shuffle=False, seed=0, epoch=3).order.tolist() == list(range(50))


def test_clear_errors():
    with pytest.raises(PlanError, match="no rows"):
        Schedule(
            split_rows=np.array([0, 0]), lanes=1, batch_size=1, tail="pad", block_rows=1, shuffle=False, seed=0, epoch=0
        )
    with pytest.raises(PlanError, match="fewer rows than one global step: got 7 rows, expected at least 8"):
        Schedule(
            split_rows=np.array([7]), lanes=2, batch_size=4, tail="drop", block_rows=1, shuffle=False, seed=0, epoch=0
        )
    with pytest.raises(PlanError, match="3 ranks for 4 lanes, expected one of 1, 2, 4"):
        rank_lanes(4, 0, 3)
    with pytest.raises(PlanError, match="rank is out of range"):
        rank_lanes(4, 4, 4)


def test_balanced_lanes_hold_about_as_many_elements_in_every_step():
    """8 lanes of 512 rows whose lengths are Zipf's (1.2) up to 5,000, in blocks of unequal rows; each step is in the
    bound, those of the lanes' beginnings and ends, which draw from few blocks, too."""
    rng, weights = np.random.default_rng(0), np.arange(1, 5_001, dtype=np.float64) ** -1.2
    split_rows = rng.integers(3_000, 9_000, 240)
    lengths = [rng.choice(np.arange(1, 5_001), size=rows, p=weights / weights.sum()) for rows in split_rows]
    schedule = Schedule(
        split_rows=split_rows,
        lanes=8,
        batch_size=512,
        tail="drop",
        block_rows=8_192,
        window_rows=16 * 8_192,
        shuffle=True,
        seed=1,
        epoch=0,
        shares=True,
    )
    before, after = (np.zeros((8, schedule.steps)) for _ in range(2))
    for lane in range(8):
        for block in schedule.blocks(lane):
            assert block.shares is not None
            own = np.concatenate([lengths[piece.split][piece.start : piece.stop] for piece in block.pieces])
            steps = np.repeat(np.arange(len(block.shares.rows_of_steps)), block.shares.rows_of_steps)
            steps += block.shares.first_step
            drawn = steps < schedule.steps
            key = ("rows", 1, 0, lane, block.index)
            for sums, order in (
                (before, permutation(block.rows, *key)),
                (after, balanced_rows(own, block.shares, *key)),
            ):
                np.add.at(sums[lane], steps[drawn], own[order][drawn])
    imbalance = [sums.max(axis=0) / sums.mean(axis=0) for sums in (before, after)]
    assert imbalance[0].mean() > 1.15
    assert imbalance[1].mean() < 1.025
    assert np.quantile(imbalance[1], 0.95) < 1.05
