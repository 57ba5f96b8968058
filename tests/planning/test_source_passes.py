"""A source's position in a mix follows from the step: compared with counting step by step."""

from __future__ import annotations

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.planning.epoch_schedule import Passes, RestOfPass, epoch_steps, passes_of

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
