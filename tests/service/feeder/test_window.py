"""The window, decided from measurements and tried in a simulated run of a trainer and its workers; pure."""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from feedline.service.feeder.window import (
    PATIENCE,
    Decision,
    Load,
    Window,
    WindowLimits,
    WindowNeed,
    decide_window,
    need_of,
    window_bounds,
)

MB = 1_000_000
GB = 1_000 * MB


def load(**changes: float) -> Load:
    """A trainer that uses up a block of 50 MB in 0.8 s, and two threads that compute one in 0.4 s each."""
    usual = Load(
        threads=2,
        step_s=0.1,
        blocks_per_step=1 / 8,
        block_s=0.4,
        slowest_block_s=0.5,
        block_bytes=50 * MB,
        held_bytes=50 * MB,
        available_bytes=100 * GB,
    )
    return replace(usual, **changes)


LIMITS = WindowLimits(open_blocks=1, memory_bytes=4 * GB)


def decided(loads: Sequence[Load], limits: WindowLimits = LIMITS) -> Decision:
    """The decision after these measurements."""
    return decide_window([need_of(each, limits) for each in loads])


def blocks(*loads: Load, limits: WindowLimits = LIMITS) -> int:
    return decided(loads, limits).blocks


_need_of = functools.cache(need_of)


def decisions_of(loads: Iterable[Load], limits: WindowLimits = LIMITS) -> list[tuple[int, int]]:
    """Blocks and slots of the decision after each of these measurements."""
    needs = deque[WindowNeed](maxlen=PATIENCE)
    last: Decision | None = None
    found = []
    for each in loads:
        needs.append(_need_of(each, limits))
        last = decide_window(tuple(needs), last)
        found.append((last.blocks, last.slots))
    return found


def changes_of(loads: Iterable[Load], limits: WindowLimits = LIMITS) -> int:
    """How often the decision changes."""
    return sum(former != later for former, later in pairwise(decisions_of(loads, limits)))


def test_slower_blocks_are_started_earlier():
    needs = [blocks(load(threads=8, block_s=seconds, slowest_block_s=seconds)) for seconds in (0.4, 1.0, 3.0, 6.0)]
    assert needs == [2, 3, 6, 11]


def test_a_trainer_faster_than_the_workers_gets_two_blocks_per_thread():
    decision = decided([load(step_s=0.01)])
    assert decision.blocks == 1 + 2 * 2
    assert "faster than the workers" in decision.reason
    assert blocks(load(step_s=0.001, threads=16)) == 1 + 2 * 16


def test_of_large_blocks_half_a_block_per_thread_waits_behind_those_computed():
    large = {"step_s": 0.001, "block_bytes": 64 * 2**20}
    assert [blocks(load(threads=threads, **large)) for threads in (1, 2, 3, 16)] == [1 + 2, 1 + 3, 1 + 5, 1 + 24]
    assert [window_bounds(3, 2, size, None) for size in (2**26 - 1, 2**26)] == [(6, 7), (6, 6)]


def test_single_slow_blocks_get_a_bounded_reserve():
    assert blocks(load(slowest_block_s=3.0)) == 1 + 5
    assert blocks(load(slowest_block_s=300.0)) == 1 + 4 * 2
    assert blocks(load(step_s=0)) == blocks(load(block_s=0)) == 1 + 2, "before the pace is known, one per thread"


def test_lanes_that_end_their_blocks_together_need_as_many_new_ones():
    assert blocks(load(step_s=10.0), limits=replace(LIMITS, open_blocks=3)) == 6
    assert blocks(load(step_s=10.0), limits=replace(LIMITS, open_blocks=64)) == 64 + 4


def test_memory_limits_the_window_at_once_and_says_which():
    fast = load(step_s=0.01)
    limits = replace(LIMITS, memory_bytes=149 * MB)
    decision = decided([fast] * PATIENCE, limits)
    assert decision.blocks == 2
    assert decision.reason.startswith("`memory` has room for 149 MB")
    decision = decided([*[fast] * PATIENCE, replace(fast, available_bytes=330 * MB)])
    assert decision.blocks == 2, "one that is held, and one in the free memory above the reserve"
    assert "free memory" in decision.reason
    assert blocks(replace(fast, available_bytes=0, held_bytes=0)) == 1, "what a step needs"


def test_a_fixed_window_is_kept_whatever_is_measured():
    fixed = replace(LIMITS, fixed_blocks=7)
    assert {blocks(each, limits=fixed) for each in (load(), load(step_s=0.001), load(available_bytes=0))} == {7}
    window = Window(WindowLimits(open_blocks=4, memory_bytes=1000, fixed_blocks=3))
    window.record(1.0, 9)
    assert [window.has_room(count, threads=100) for count in (2, 3)] == [True, False]


def test_short_steps_get_slots_that_last_for_a_pause_of_the_loop():
    small = load(blocks_per_step=1 / 512)
    slots = [decided([replace(small, step_s=step_s)]).slots for step_s in (0.5, 0.02, 0.005, 0.002, 0.0008)]
    assert slots == [4, 4, 7, 13, 28]
    assert decided([load(step_s=0.002)]).slots == 4, "its ring is empty: it waits for blocks"


LOADS = st.builds(
    load,
    threads=st.integers(1, 32),
    step_s=st.floats(0, 10),
    blocks_per_step=st.floats(0.001, 4),
    block_s=st.floats(0, 60),
    slowest_block_s=st.floats(0, 600),
    block_bytes=st.integers(0, GB),
    held_bytes=st.integers(0, 10 * GB),
    available_bytes=st.integers(0, 100 * GB),
)


@given(st.lists(LOADS, min_size=1, max_size=3 * PATIENCE), st.integers(1, 64), st.integers(MB, 8 * GB))
@example([load(step_s=5e-324)], 1, MB)
def test_the_window_is_bounded_and_within_memory(loads: list[Load], lanes: int, memory_bytes: int):
    decision = decided(loads, WindowLimits(open_blocks=lanes, memory_bytes=memory_bytes))
    assert lanes <= decision.blocks <= lanes + 4 * max(each.threads for each in loads)
    assert 4 <= decision.slots <= 32
    largest = max(each.block_bytes for each in loads[-1:])
    assert decision.blocks == lanes or decision.blocks * largest <= memory_bytes
    assert decision.reason


@given(st.lists(LOADS, min_size=1, max_size=10), st.integers(1, 8))  # a want of room is remembered for ten
def test_a_load_that_varies_does_not_make_the_window_oscillate(cycle: list[Load], lanes: int):
    """However a load varies, if it comes back within the patience of its memory the window settles and stays."""
    limits = WindowLimits(open_blocks=lanes, memory_bytes=GB)
    decisions = decisions_of(islice(itertools.cycle(cycle), 2 * PATIENCE), limits)
    assert len(set(decisions[PATIENCE:])) == 1


@given(pace=st.floats(0.01, 2), noise=st.floats(0, 0.5), seed=st.integers(0, 2**16))
@example(pace=0.025, noise=0.05, seed=0)  # the window of a trainer that is faster than the workers, and one of a slower
def test_a_pace_that_varies_around_a_border_changes_the_window_at_most_once(pace: float, noise: float, seed: int):
    """Each size that the noise calls for is called for again within two minutes, a tenth of the time at least."""
    numbers = random.Random(seed)
    high, low = (load(step_s=pace * (1 + sign * noise), slowest_block_s=0.9) for sign in (1, -1))
    loads = [high if numbers.random() < 0.1 else low for _ in range(300)]
    assert changes_of(loads) <= 1


@given(room=st.floats(1, 20), noise=st.floats(0, 0.1), seed=st.integers(0, 2**16))
def test_free_memory_that_varies_by_a_tenth_changes_the_window_only_downwards(room: float, noise: float, seed: int):
    numbers = random.Random(seed)
    fast = load(step_s=0.001, threads=16, held_bytes=0)
    reserve = 256 * 2**20
    free = [int(50 * MB * room * (1 + noise * numbers.uniform(-1, 1))) + reserve for _ in range(500)]
    sizes = [size for size, _ in decisions_of(replace(fast, available_bytes=each) for each in free)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == max(1, (min(free) - reserve) // (50 * MB)) or sizes[-1] == 33


def test_memory_that_is_free_again_is_used_again():
    fast = load(step_s=0.001, threads=16, held_bytes=0)
    short, ample = replace(fast, available_bytes=768 * MB), replace(fast, available_bytes=100 * GB)
    sizes = [size for size, _ in decisions_of([short] * 20 + [ample] * 20)]
    assert (sizes[0], sizes[-1]) == (9, 33)
    assert sizes.index(33) == 29, "ten measurements later"


@dataclass
class Run:
    """A simulated run: `threads` workers, a trainer with a ring, and a window that looks once a second."""

    block_s: Callable[[int], float]  # seconds of a block, by its index
    step_s: Callable[[float], float]  # seconds of a step, by the time
    threads: int = 2
    steps_per_block: int = 8
    block_bytes: int = 50 * MB
    memory_bytes: int = 4 * GB
    changes: list[tuple[float, int]] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)  # when, and how long
    end_s: float = 0.0

    def __call__(self, blocks: int) -> Run:
        window = Window(WindowLimits(open_blocks=1, memory_bytes=self.memory_bytes))
        free_at = [0.0] * self.threads
        finished: dict[int, float] = {}
        submitted, now, look_s, recent_steps = 0, 0.0, 1.0, 0
        for block in range(blocks):
            while submitted < blocks and (
                submitted <= block or window.has_room(submitted - block, threads=self.threads)
            ):
                start = max(now, heapq.heappop(free_at))
                seconds = self.block_s(submitted)
                finished[submitted] = start + seconds
                heapq.heappush(free_at, start + seconds)
                window.record(seconds, self.block_bytes)
                submitted += 1
            if finished[block] > now:
                self.waits.append((now, finished[block] - now))
                now = finished[block]
            held = sum(when <= now for number, when in finished.items() if number >= block)
            for _ in range(self.steps_per_block):
                now += self.step_s(now)
                recent_steps += 1
            while look_s <= now:
                look_s += 1.0
                decision = window.observe(
                    threads=self.threads,
                    step_s=self.step_s(now) if recent_steps > 12 else 0.0,
                    blocks_per_step=1 / self.steps_per_block,
                    held_bytes=held * self.block_bytes,
                    available_bytes=100 * GB,
                )
                if decision is not None:
                    self.changes.append((now, decision.blocks))
        self.end_s = now
        return self

    def waited_after(self, time_s: float) -> float:
        return sum(seconds for when, seconds in self.waits if when > time_s)


def sizes(run: Run) -> Sequence[int]:
    return [blocks for _, blocks in run.changes]


def test_a_slow_trainer_holds_two_blocks_and_never_waits():
    run = Run(block_s=lambda _: 0.4, step_s=lambda _: 0.1)(200)
    assert sizes(run)[-1] == blocks(load()) == 2
    assert "uses up a block in 0.8 s" in decided([load()]).reason
    assert run.waited_after(1) == 0
    assert len(run.changes) <= 2


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_a_fast_trainer_keeps_every_thread_busy_with_large_blocks_of_varying_times(threads: int):
    seconds = random.Random(1).choices([0.3, 0.4, 0.5], k=400)
    run = Run(
        block_s=lambda block: seconds[block % 400],
        step_s=lambda _: 0.0001,
        threads=threads,
        block_bytes=100 * MB,
        memory_bytes=16 * GB,
    )(400)
    assert run.end_s <= 1.05 * sum(seconds) / threads


def test_a_store_that_becomes_slow_is_read_further_ahead():
    run = Run(block_s=lambda index: 0.4 if index < 200 else 2.8, step_s=lambda _: 0.1, threads=8)(400)
    assert sizes(run)[-2:] == [2, 6]
    assert run.waited_after(180) == 0, "it waits while the window grows, then no more"


def test_a_trainer_whose_pace_varies_does_not_make_the_window_oscillate():
    run = Run(block_s=lambda _: 0.4, step_s=lambda now: 0.02 if int(now / 3) % 2 else 0.2)(400)
    assert len(run.changes) <= 3
    settled = Run(block_s=lambda _: 0.4, step_s=lambda now: 0.001 if now < 60 else 0.2)(600)
    assert sizes(settled)[-1] == 2, "a pace that stays changes the window once"
    assert len(settled.changes) <= 4


@pytest.mark.parametrize(
    ("lanes", "threads", "first", "then"),
    [(1, 1, 1, 2), (1, 2, 2, 3), (1, 64, 5, 17), (8, 2, 8, 10), (64, 256, 68, 80), (1, 8_000, 5, 17)],
)
def test_before_the_first_measurement_there_is_a_block_per_lane_and_thread_up_to_16(
    lanes: int, threads: int, first: int, then: int
):
    def fills(window: Window) -> int:
        return next(count for count in range(10_000) if not window.has_room(count, threads=threads))

    window = Window(WindowLimits(open_blocks=lanes, memory_bytes=1000))
    assert fills(window) == first, "few, until the size of blocks is known"
    window.record(1.0, 1)
    assert fills(window) == then
    window.record(1.0, 300)
    assert fills(window) == min(then, 3)
    window.record(1.0, 2000)
    assert fills(window) == 0, "then what is needed, and no more"
