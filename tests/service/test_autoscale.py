"""The autoscaler, in simulated runs of a trainer and its workers; pure."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.service.autoscale import (
    Autoscaler,
    FeederLoad,
    LoadMeter,
    ScalingDecision,
    ScalingRules,
    ScalingSample,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from autoscaling import compare
from scaled_trainer import Course, Scene, simulate

RULES = ScalingRules(least_workers=1, most_workers=16)


def scene(
    step_s: float | Callable[[float], float],
    block_s: float | Callable[[int, int], float],
    *,
    seconds: float = 600.0,
    steps_per_block: int = 1,
    most_blocks_per_s: float | None = None,
) -> Scene:
    """Constants, or functions of the time, and of a block's index and a worker's number."""
    return Scene(
        seconds=seconds,
        step_s=step_s if callable(step_s) else lambda _: step_s,
        block_s=block_s if callable(block_s) else lambda *_: block_s,
        steps_per_block=steps_per_block,
        most_blocks_per_s=most_blocks_per_s,
    )


def stalls(what: Scene) -> Course:
    return simulate(what, Autoscaler(RULES))


@pytest.mark.parametrize("steps", [1, 8])
def test_cachews_local_example_settles_at_two_workers(steps: int):
    """A worker takes 400 ms per batch, the model 200 ms."""
    course = simulate(scene(0.2, 0.4 * steps, steps_per_block=steps), Autoscaler(RULES))
    assert [workers for _, workers in course.changes] == [1, 2]
    assert course.stalled_s(60.0) < 0.001


@examples(25)
@given(
    st.floats(0.02, 2.0), st.floats(0.05, 1.5), st.sampled_from([1, 4]), st.integers(0, 1000), st.sampled_from([0, 0.3])
)
def test_a_constant_load_settles_at_the_fewest_workers_without_waiting(
    step_s: float, block_s: float, steps: int, seed: int, spread: float
):
    """Whatever the random times of blocks: the number stays, is enough, and little more than arithmetic says."""

    def time_of(block: int, worker: int) -> float:
        return block_s * random.Random(seed + 1000 * block).uniform(1 - spread, 1 + spread)

    seconds = 900.0
    course = stalls(scene(step_s, time_of, seconds=seconds, steps_per_block=steps))
    need = block_s / (step_s * steps)
    enough = min(16, math.ceil(need))
    assert len(course.between(600.0, seconds)) == 1
    assert (
        max(1, math.ceil(0.9 * need) if need < 16 else 16) <= course.workers <= max(enough + 1, math.ceil(1.2 * need))
    )
    if need <= 16:
        assert course.stalled_s(600.0) <= 0.05 * 300


def test_a_trainer_that_is_the_limit_gets_no_worker():
    assert simulate(scene(0.5, 0.4), Autoscaler(RULES)).changes == [(0.0, 1)]
    assert simulate(scene(0.5, 4.0, steps_per_block=20), Autoscaler(RULES)).changes == [(0.0, 1)]


def test_a_trainer_that_becomes_faster_or_slower_is_followed_within_a_minute_and_a_half():
    def pace(at_s: float) -> float:
        return 0.2 if at_s < 400 else 0.05 if at_s < 800 else 0.4

    course = stalls(scene(pace, 0.4, seconds=1200))
    assert course.between(300, 400) == [2]
    assert course.between(430, 800) == [8]
    assert course.between(890, 1200) == [1]
    assert course.stalled_s(425, 1200) < 0.001


def test_the_demand_of_a_stopped_trainer_decays_to_the_least():
    """And grows again when it goes on."""

    def pace(at_s: float) -> float:
        return math.inf if 300 <= at_s < 600 else 0.1

    course = simulate(scene(pace, 0.4, seconds=900), Autoscaler(RULES))
    assert course.between(290, 300) == [4]
    assert course.between(400, 600) == [1]
    assert course.between(800, 900) == [4]
    assert "no trainer took a batch for 60 s" in " ".join(course.reasons)


def test_one_slow_worker_is_made_up_for():
    course = stalls(scene(0.2, lambda block, worker: 2.0 if worker == 1 else 0.4, seconds=900))
    assert 3 <= course.workers <= 5
    assert course.stalled_s(200) <= 0.03 * 700
    assert len(course.between(200, 900)) == 1


def test_workers_that_do_not_help_are_given_back():
    """The store gives ten blocks a second, whoever asks."""
    course = stalls(scene(0.02, 0.4, most_blocks_per_s=10.0))
    assert course.workers == 4
    assert course.changes[-1][0] < 60
    assert "more workers did not help" in course.reasons[-1]


def test_a_trainer_without_a_pace_of_its_own_gets_all_there_is():
    course = stalls(scene(0.001, 0.4))
    assert [workers for _, workers in course.changes] == [1, 4, 16]


def test_a_single_pause_changes_nothing():
    """A block that takes 2 s at a time when the reserve is a second."""
    course = stalls(scene(0.1, lambda block, worker: 2.0 if block == 1000 else 0.08))
    assert course.changes == [(0.0, 1)]
    assert course.stalled_s() > 0


def test_reasons_say_what_was_measured():
    course = stalls(scene(lambda at_s: 0.05 if at_s < 100 else 0.2, 0.4))
    assert course.reasons[0].startswith("trainers wait ")
    assert course.reasons[-1] == "ring full for 60 s, 6 workers idle: 8 → 2"


def test_the_benchmark_shows_what_the_documentation_says():
    """By waiting, the number that arithmetic gives; by 80 % of the CPU, more workers wherever workers are the limit."""
    outcomes = {(each.scene, each.policy): each for each in compare()}
    for scene in {scene for scene, _ in outcomes}:
        waiting, cpu = outcomes[scene, "waiting"], outcomes[scene, "80 % CPU"]
        assert waiting.wait_s <= cpu.wait_s, scene
        if scene != "second worker 5 times as slow":
            assert str(waiting.workers) in waiting.need, scene
            assert waiting.worker_s <= cpu.worker_s, scene


LOAD = FeederLoad(
    ranks=1,
    seconds=10.0,
    blocks=100,
    blocks_per_s=5.0,
    busy_threads=2.0,
    use_blocks_per_s=5.0,
    pace_blocks_per_s=50.0,
    block_s=0.4,
    wait_fraction=0.9,
    starved=True,
    steps_ready=0,
    blocks_in_flight=3,
    busy_s_total=100.0,
)
SAMPLE = ScalingSample(now_s=0.0, load=LOAD, workers=1.0, threads_per_worker=2.0)


def test_more_than_the_window_keeps_busy_is_not_asked_for():
    assert Autoscaler(RULES).decide(SAMPLE).workers == 4
    assert Autoscaler(RULES).decide(replace(SAMPLE, most_useful=2)).workers == 2


def test_nothing_is_decided_before_the_workers_have_come_or_have_shown_what_they_achieve():
    for early in (
        replace(SAMPLE, load=replace(LOAD, seconds=3.0)),
        replace(SAMPLE, load=replace(LOAD, blocks=3)),
        replace(SAMPLE, workers=0.0),
    ):
        assert Autoscaler(RULES).decide(early) == ScalingDecision(workers=1)


def test_without_trainers_there_may_be_no_worker_and_with_one_there_is():
    own = Autoscaler(ScalingRules(least_workers=0))
    empty = LoadMeter().observe({}, 0.0)
    wanted = [own.decide(replace(SAMPLE, now_s=float(second), load=empty)).workers for second in range(70)]
    assert (wanted[0], wanted[-1]) == (1, 0)
    assert own.decide(replace(SAMPLE, now_s=70.0, load=replace(empty, ranks=1))).workers == 1
