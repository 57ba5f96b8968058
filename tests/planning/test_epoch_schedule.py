"""Every step of a mix is cut from the schedules of its sources: the rows, the blocks, and the steps that need them."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import PlanError
from feedline.planning.epoch_schedule import (
    EpochSchedule,
    Passes,
    RestOfPass,
    SourceSchedules,
    block_index,
    epoch_steps,
    passes_of,
    split_index,
)
from feedline.planning.schedule import Schedule


def source(rows: int, batch: int, lanes: int, number: int) -> Schedule:
    """A schedule of splits of 7 rows."""
    splits = np.array([7] * (rows // 7) + [rows % 7], np.int64)
    return Schedule(
        split_rows=splits,
        lanes=lanes,
        batch_size=batch,
        tail="drop",
        block_rows=10,
        window_rows=30,
        shuffle=True,
        seed=1,
        epoch=number,
    )


def mixed(parts: list[tuple[int, int]], lanes: int, stop, epoch: int = 0) -> EpochSchedule:
    """parts: rows, and rows in a lane's share of a step, of each source."""
    whole = [source(rows, batch, lanes, 0).steps for rows, batch in parts]
    passes = [passes_of(stop, epoch, steps) for steps in whole]
    return EpochSchedule(
        sources=[
            SourceSchedules(own, lambda number, rows=rows, batch=batch: source(rows, batch, lanes, number))
            for own, (rows, batch) in zip(passes, parts, strict=True)
        ],
        lanes=lanes,
        batch_size=sum(batch for _, batch in parts),
        steps=epoch_steps(stop, passes),
    )


drawn = st.tuples(
    st.lists(st.tuples(st.integers(60, 200), st.integers(1, 9)), min_size=1, max_size=3),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["first", "all", 5, 23]),
    st.integers(0, 2),
)


@examples(60)
@given(case=drawn)
def test_a_step_has_the_rows_of_each_source_that_its_own_schedule_gives(case):
    parts, lanes, stop, epoch = case
    schedule = mixed(parts, lanes, stop, epoch)
    for lane in range(lanes):
        for step in {0, schedule.steps // 2, schedule.steps - 1}:
            cuts = schedule.cuts(lane, step)
            places = [split_index(cut.block, len(parts)) for cut in cuts]
            assert [place[1] for place in places] == sorted(place[1] for place in places)  # source after source
            for number, (rows, batch) in enumerate(parts):
                own = [cut for cut, place in zip(cuts, places, strict=True) if place[1] == number]
                assert sum(cut.rows for cut in own) == batch
                index, within = schedule.sources[number].passes.at(step)
                alone = source(rows, batch, lanes, schedule.sources[number].passes.number_of(index)).cuts(lane, within)
                assert [(cut.start, cut.stop, split_index(cut.block, len(parts))[2]) for cut in own] == [
                    (cut.start, cut.stop, cut.block) for cut in alone
                ]


@examples(60)
@given(case=drawn, share=st.floats(0, 1))
def test_blocks_come_before_the_first_step_that_needs_them_and_cover_all_cuts(case, share):
    parts, lanes, stop, epoch = case
    schedule = mixed(parts, lanes, stop, epoch)
    first = int(share * (schedule.steps - 1))
    blocks = list(schedule.blocks_of(range(lanes), first_step=first))
    by_name = {(block.lane, block.index): block for block in blocks}
    assert len(by_name) == len(blocks)
    assert [block.first_step for block in blocks] == sorted(block.first_step for block in blocks)
    used: dict[tuple[int, int], list[int]] = {}
    for step in range(first, schedule.steps):
        for lane in range(lanes):
            for cut in schedule.cuts(lane, step):
                used.setdefault((lane, cut.block), []).append(step)
                assert cut.stop <= by_name[lane, cut.block].rows
    assert used.keys() <= by_name.keys()
    for name, steps in used.items():
        assert max(steps) <= by_name[name].last_step < schedule.steps
        assert by_name[name].first_step == min(steps) or by_name[name].first_step < first


@examples(40)
@given(case=drawn)
def test_steps_that_draw_from_the_same_blocks_are_foreseen(case):
    parts, lanes, stop, epoch = case
    schedule = mixed(parts, lanes, stop, epoch)
    for step in range(0, schedule.steps, 3):
        drawn = schedule.drawn(0, step, 8)
        assert len(drawn) <= min(8, schedule.steps - step) + 1
        for ahead in range(len(drawn) - 1):
            rows = (drawn[ahead + 1] - drawn[ahead]).tolist()
            cuts = schedule.cuts(0, step + ahead)
            assert sum(rows) == sum(cut.rows for cut in cuts) == schedule.batch_size
            _, own, of_first = schedule.sources[0].at(step)
            strands = of_first.drawn(0, own, 8).shape[1]
            first = [cut.rows for cut in cuts if split_index(cut.block, len(parts))[1] == 0]
            assert sum(rows[:strands]) == sum(first) == parts[0][1]


def test_what_the_feeder_asks_for_adds_up():
    schedule = mixed([(200, 8), (60, 2)], 2, "all")
    alone = [source(200, 8, 2, 0), source(60, 2, 2, 0)]
    assert schedule.open_blocks(range(2)) == sum(each.open_blocks(range(2)) for each in alone)
    assert schedule.blocks_per_step(range(2)) == sum(each.blocks_per_step(range(2)) for each in alone)
    assert schedule.has_rows(0)
    with pytest.raises(PlanError, match=r"step is out of range: got 15, expected 0 to 14"):
        schedule.cuts(0, schedule.steps)


@examples(100)
@given(index=st.integers(0, 10**9 - 1), source=st.integers(0, 6), index_of_pass=st.integers(0, 10**6))
def test_the_index_of_a_block_names_pass_and_source(index, source, index_of_pass):
    whole = block_index(index, source=source, sources=7, pass_index=index_of_pass)
    assert split_index(whole, 7) == (index_of_pass, source, index)
    assert whole < 2**63


# --------------------------------------------------------------------------------------------------------------------
# A source's position in a mix follows from the step: compared with counting step by step.


stops = st.one_of(st.sampled_from(["first", "all"]), st.integers(1, 40))


drawn_places = st.tuples(st.integers(0, 3), st.integers(0, 60))


def walked(stop, steps: int, epochs: list[int]) -> list[list[tuple[int, int]]]:
    """Pass number and step of the pass for every step of each epoch, counted one by one. epochs: their steps."""
    walk: list[list[tuple[int, int]]] = []
    going, own = 0, 0
    for epoch, length in enumerate(epochs):
        if isinstance(stop, str):
            going, own = epoch, 0
        positions = []
        for _ in range(length):
            if own == steps:
                going, own = going + (2**32 if isinstance(stop, str) else 1), 0
            positions.append((going, own))
            own += 1
        walk.append(positions)
    return walk


@examples(200)
@given(stop=stops, sources=st.lists(st.integers(1, 25), min_size=1, max_size=4), epochs=st.integers(1, 5))
def test_positions_are_those_of_counting_step_by_step(stop, sources, epochs):
    lengths = [epoch_steps(stop, [passes_of(stop, epoch, own) for own in sources]) for epoch in range(epochs)]
    expected = {"first": min(sources), "all": max(sources)}.get(stop, stop)
    assert lengths == [expected] * epochs
    for steps in sources:
        for epoch, positions in enumerate(walked(stop, steps, lengths)):
            passes = passes_of(stop, epoch, steps)
            for step, (number, own) in enumerate(positions):
                index, found = passes.at(step)
                assert (passes.number_of(index), found) == (number, own)
                assert passes.begin_of(index) == step - own


@examples(200)
@given(
    stop=stops, steps=st.integers(1, 20), rest_steps=st.integers(0, 30), epoch=st.integers(0, 3), at=st.integers(0, 60)
)
def test_after_a_rebase_the_shortened_pass_goes_on_where_it_was(stop, steps, rest_steps, epoch, at):
    before = passes_of(stop, epoch, steps)
    at = at % stop if isinstance(stop, int) else at
    index, own = before.at(at)
    start = 0 if isinstance(stop, str) else epoch * stop
    rest = RestOfPass(
        number=before.number_of(index),
        began=start + before.begin_of(index),
        first_step=own,
        steps=own + rest_steps,
    )
    assert rest.position(stop) == (epoch, at)
    new = 2 * steps + 1  # the table has grown: later passes are longer
    after = passes_of(stop, epoch, new, rest)
    for step in range(at, at + rest_steps):
        index, found = after.at(step)
        assert (after.number_of(index), found) == (rest.number, own + step - at)
    index, found = after.at(at + rest_steps)
    assert after.number_of(index) == rest.number + (2**32 if isinstance(stop, str) else 1)
    assert found == 0
    later = after.at(at + rest_steps + new)
    assert (after.number_of(later[0]) - after.number_of(index), later[1]) == (after.pass_stride, 0)


@examples(100)
@given(stop=st.integers(1, 15), steps=st.integers(1, 20), own=st.integers(0, 19), rest_steps=st.integers(0, 20))
def test_epochs_of_n_steps_go_on_after_a_rebase(stop, steps, own, rest_steps):
    rest = RestOfPass(number=3, began=7, first_step=own, steps=own + rest_steps)
    position, last = rest.position(stop), None
    for total in range(7 + own, 7 + own + 100):
        epoch, step = divmod(total, stop)
        passes = passes_of(stop, epoch, steps, rest)
        index, found = passes.at(step)
        here = passes.number_of(index), found
        if last is None:
            assert (epoch, step) == position
            assert here == ((3, own) if rest_steps else (4, 0))
        else:
            longest = rest.steps if last[0] == 3 else steps
            assert here == ((last[0], last[1] + 1) if last[1] + 1 < longest else (last[0] + 1, 0))
        last = here


def test_an_epoch_that_was_shortened_ends_with_the_source_that_ends():
    whole = Passes(first_pass=0, pass_stride=2**32, first_pass_start_step=0, first_pass_steps=9, pass_steps=9)
    shortened = Passes(first_pass=0, pass_stride=2**32, first_pass_start_step=0, first_pass_steps=5, pass_steps=20)
    again = Passes(first_pass=2**32, pass_stride=2**32, first_pass_start_step=4, first_pass_steps=30, pass_steps=4)
    assert epoch_steps("first", [whole, shortened]) == 5
    assert epoch_steps("all", [shortened, whole]) == 9
    assert epoch_steps("all", [shortened, again]) == 5  # a source that has begun again does not prolong the epoch
    assert epoch_steps(3, [whole]) == 3


@pytest.mark.parametrize("stop", ["first", "all"])
def test_numbers_of_passes_never_meet(stop):
    numbers = [passes_of(stop, epoch, 4).number_of(index) for epoch in range(20) for index in range(20)]
    assert len(set(numbers)) == 400
