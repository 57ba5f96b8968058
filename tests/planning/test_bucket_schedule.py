"""A schedule of buckets holds each row at most once, each step rows of one bucket, and lanes as many of them.

The oracle walks the blocks' pieces row by row: each row has a bucket of its own drawing.
"""

from __future__ import annotations

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from feedline.errors import PlanError
from feedline.planning.bucket_schedule import BucketSchedule
from feedline.planning.schedule import Block

SIZES = (4, 2, 1)


def schedule_of(groups: list[list[int]], splits: list[int], *, lanes: int = 2, **options) -> BucketSchedule:
    """groups: rows of each bucket per row group; splits: row groups per split."""
    ends = np.cumsum(splits)
    rows = np.array(groups, np.int64)
    pairs = np.stack([ends - splits, ends], axis=1)
    totals = np.array([rows[first:stop].sum() for first, stop in pairs.tolist()])
    return BucketSchedule(
        split_rows=totals,
        group_rows=rows,
        split_groups=pairs,
        sizes=SIZES,
        lanes=lanes,
        batch_size=4,
        tail="drop",
        block_rows=options.pop("block_rows", 20),
        window_rows=options.pop("window_rows", 60),
        shuffle=True,
        seed=options.pop("seed", 0),
        epoch=options.pop("epoch", 0),
        **options,
    )


@st.composite
def schedules(draw) -> tuple[BucketSchedule, list[np.ndarray]]:
    """A schedule, and the bucket of each row of each split."""
    splits = draw(st.lists(st.integers(1, 3), min_size=1, max_size=12))
    groups = draw(
        st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=sum(splits), max_size=sum(splits)).map(
            lambda found: [list(each) for each in found]
        )
    )
    assume(sum(each[2] for each in groups) >= 4)
    found = schedule_of(
        groups,
        splits,
        lanes=draw(st.integers(1, 4)),
        block_rows=draw(st.sampled_from([1, 15, 1000])),
        window_rows=draw(st.sampled_from([0, 30, 1000])),
        seed=draw(st.integers(0, 5)),
    )
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    buckets = []
    for first, stop in found.split_groups.tolist():
        own = [rng.permutation(np.repeat(np.arange(3), found.group_rows[group])) for group in range(first, stop)]
        buckets.append(np.concatenate(own))
    return found, buckets


def rows_of(block: Block, buckets: list[np.ndarray]) -> list[tuple[int, int]]:
    """(split, row) of each row of a block, bucket after bucket."""
    assert block.buckets is not None
    parts, found = dict(block.buckets.parts), [[], [], []]  # type: ignore[var-annotated]
    for index, piece in enumerate(block.pieces):
        own = buckets[piece.split][piece.start : piece.stop]
        for bucket in range(3):
            rows = [(piece.split, piece.start + int(row)) for row in np.flatnonzero(own == bucket)]
            start, stop = parts[index][bucket] if index in parts else (0, len(rows))
            found[bucket] += rows[start:stop]
    assert [len(each) for each in found] == list(block.buckets.rows)
    return [row for each in found for row in each]


@examples(150)
@given(schedules())
def test_each_row_is_of_one_lane_and_at_most_one_step_of_its_bucket(drawn):
    schedule, buckets = drawn
    assert schedule.steps == sum(schedule.bucket_steps)
    assert np.bincount(schedule.step_buckets, minlength=3).tolist() == schedule.bucket_steps.tolist()
    everything, delivered = [], []
    for lane in range(schedule.lanes):
        blocks = {block.index: rows_of(block, buckets) for block in schedule.blocks(lane, everything=True)}
        everything += [row for rows in blocks.values() for row in rows]
        steps = {block.index: (block.first_step, block.last_step) for block in schedule.blocks(lane)}
        drawn_in: dict[int, list[int]] = {}
        for step in range(schedule.steps):
            bucket, rows = int(schedule.step_buckets[step]), []
            for cut in schedule.cuts(lane, step):
                rows += blocks[cut.block][cut.start : cut.stop]
                drawn_in.setdefault(cut.block, []).append(step)
            assert len(rows) == SIZES[bucket]
            assert {int(buckets[split][row]) for split, row in rows} == {bucket}
            delivered += rows
        assert {block: min(each) for block, each in drawn_in.items()} == {
            block: each[0] for block, each in steps.items()
        }
        assert all(max(each) <= steps[block][1] for block, each in drawn_in.items())
    assert sorted(everything) == sorted((split, row) for split, own in enumerate(buckets) for row in range(len(own)))
    assert len(set(delivered)) == len(delivered) == schedule.rows - schedule.rows_dropped


@examples(50)
@given(schedules())
def test_blocks_come_in_the_order_in_which_steps_need_them(drawn):
    schedule, _ = drawn
    firsts = [block.first_step for block in schedule.blocks_of(range(schedule.lanes))]
    assert firsts == sorted(firsts)
    for step in range(schedule.steps):
        begun = sum(block.first_step == step for block in schedule.blocks_of(range(schedule.lanes)))
        own = {(block.lane, block.index) for block in schedule.blocks_of(range(schedule.lanes), first_step=step)}
        cuts = {(cut.lane, cut.block) for lane in range(schedule.lanes) for cut in schedule.cuts(lane, step)}
        assert cuts <= own
        assert len(cuts) <= schedule.open_blocks(range(schedule.lanes)) + begun


def test_all_buckets_are_used_up_evenly():
    """After any share of the epoch, every bucket has had that share of its steps, but for one."""
    schedule = schedule_of([[400, 300, 100]] * 20, [1] * 20)
    counts = schedule.bucket_steps
    for bucket in range(3):
        done = np.cumsum(schedule.step_buckets == bucket)
        assert np.abs(done - counts[bucket] * np.arange(1, schedule.steps + 1) / schedule.steps).max() <= 2
    other = schedule_of([[400, 300, 100]] * 20, [1] * 20, epoch=1)
    assert (other.step_buckets != schedule.step_buckets).any()


def test_only_row_groups_at_the_border_of_a_lane_are_read_twice():
    schedule = schedule_of([[40, 30, 10]] * 64, [4] * 16, lanes=4, block_rows=320)
    readers = schedule.readers()
    assert readers.min() == 1
    assert readers.sum() - 64 <= 2 * 3
    pieces = [piece for lane in range(4) for block in schedule.blocks(lane) for piece in block.pieces]
    read = sum(piece.stop - piece.start for piece in pieces)
    assert read == int((readers * 80).sum())


def test_too_few_rows_for_a_step_are_an_error():
    with pytest.raises(PlanError, match=r"no bucket has the rows of one global step: got 3 of 8, 1 of 4, 0 of 2"):
        schedule_of([[3, 1, 0]], [1])
    with pytest.raises(PlanError, match="the plan has no rows"):
        schedule_of([[0, 0, 0]], [1])
    schedule = schedule_of([[9, 0, 0]], [1])
    assert (schedule.steps, schedule.rows_dropped) == (1, 1)
    with pytest.raises(PlanError, match="step is out of range: got 1, expected 0 to 0"):
        schedule.cuts(0, 1)
