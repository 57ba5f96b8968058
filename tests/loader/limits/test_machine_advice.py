"""What is predicted of more threads, workers, caches is what the bound says of the changed machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.limits.linear_bound import Resource, ResourceLimits, limits_of
from feedline.loader.limits.machine_advice import Advice, sorted_advice, threads_needed
from feedline.loader.limits.run_facts import Capacity, RunFacts
from feedline.loader.limits.verdict import judge

Staged = Callable[..., RunFacts]


@examples(25)
@given(st.floats(1e-6, 1e-2), st.floats(10, 1e6), st.integers(1, 32))
def test_threads_needed_are_the_fewest_with_which_the_trainer_is_the_limit(use: float, rate: float, have: int):
    resources = (
        Resource(name="threads", capacity=have, uses={"ops": use}, unit="thread-s"),
        Resource(name="trainer", capacity=1, uses={"trainer": 1 / rate}, unit="s"),
    )
    limits = ResourceLimits(resources=resources, measured=min(have / use, rate))
    needed = threads_needed(limits)
    assert needed is not None
    assert needed / use >= rate * (1 - 1e-9)
    assert (needed - 1) / use < rate * (1 + 1e-9)


def test_sleeping_ops_get_as_many_workers_as_the_trainer_needs(staged: Staged):
    """Two workers deliver 1 M rows/s, the trainer takes 2.5 M: five."""
    capacity = Capacity(cores=64, threads=2, workers=2, form="scheduler", own_cores=False)
    first = judge([staged(wait_s=0.6, slept_s=2.0)], capacity).advice[0]
    assert first.change == "5 workers at the scheduler"
    here = judge([staged(wait_s=0.6, slept_s=2.0)], replace(capacity, form="processes", own_cores=True))
    assert here.advice[0].change == "cluster: {workers: 5}"
    assert first.rows_ratio == pytest.approx(2.5)
    assert first.rows_interval is not None
    assert first.rows_interval.low < 2.5 < first.rows_interval.high


@pytest.mark.parametrize(
    ("form", "change"),
    [
        ("scheduler", "workers of the scheduler on other hosts: 5 cores in all"),
        ("provider", "cluster: {workers: N} on other hosts: 5 cores in all"),
    ],
)
def test_workers_that_share_busy_cores_get_other_hosts(staged: Staged, form: str, change: str):
    """Two cores deliver 1 M rows/s to a trainer that takes 2.5 M: workers on the same host would gain nothing."""
    capacity = Capacity(cores=2, threads=8, workers=4, form=form, own_cores=False)
    verdict = judge([staged(wait_s=0.6, ops_s=2.0)], capacity)
    assert verdict.limit == "cores"
    assert verdict.sentence.endswith("with 2 cores.")
    assert (verdict.advice[0].change, verdict.advice[0].caveat) == (change, "")
    assert verdict.advice[0].rows_ratio == pytest.approx(2.5)


def test_waiting_threads_get_more_threads(staged: Staged):
    first = judge([staged(wait_s=0.75, decode_s=0.2, fetch_s=1.8)], Capacity(cores=2, threads=2)).advice[0]
    assert (first.kind, first.change) == ("threads", "cluster: {threads: 8}")
    assert first.rows_ratio == pytest.approx(4.0)


def test_more_threads_end_where_the_interpreters_lock_does(staged: Staged):
    """Two threads that wait for a store deliver 1 M rows/s; their lock, loop and client allow ten times of that."""
    facts = staged(wait_s=None, decode_s=0.06, fetch_s=1.94, loop_cpu_s=0.04, other_cpu_s=0.03)
    first = judge([facts], Capacity(cores=2, threads=2, lock_share=0.5)).advice[0]
    assert first.change == "cluster: {threads: 20}"
    assert first.rows_ratio == pytest.approx(10.0)


def test_threads_that_use_up_the_interpreters_lock_get_processes(staged: Staged):
    facts = staged(wait_s=0.5, decode_s=1.0, ops_s=0.4, slept_s=1.0, loop_cpu_s=0.1, other_cpu_s=0.05)
    verdict = judge([facts], Capacity(cores=64, threads=8, lock_share=0.6))
    assert (verdict.limit, verdict.stage) == ("lock", "decoding")
    assert "of the interpreter's lock, which threads of a process share; the limit is" in verdict.sentence
    assert verdict.sentence.endswith("with one process.")
    [advice] = [each for each in verdict.advice if each.kind in ("threads", "processes", "workers")]
    assert advice.change == "cluster: {processes: 8, threads: 1}"
    assert advice.rows_ratio == pytest.approx(2.0), "the trainer's own pace"


def test_one_thread_that_the_feeders_own_threads_keep_from_the_lock_gets_processes(staged: Staged):
    facts = staged(wait_s=None, decode_s=0.6, loop_cpu_s=0.3, other_cpu_s=0.15)
    verdict = judge([facts], Capacity(cores=64, threads=1, lock_share=0.9))
    assert verdict.limit == "lock"
    [advice] = [each for each in verdict.advice if each.kind == "processes"]
    assert advice.change == "cluster: {processes: 2, threads: 1}"
    assert advice.rows_ratio == pytest.approx(2.0)


def test_workers_bring_a_lock_each(staged: Staged):
    capacity = Capacity(cores=64, threads=16, workers=2, form="processes", lock_share=0.9)
    verdict = judge([staged(wait_s=0.5, decode_s=2.0, ops_s=0.2, slept_s=1.0)], capacity)
    assert verdict.limit == "lock"
    assert verdict.sentence.endswith("with 2 worker processes.")
    assert (verdict.advice[0].kind, verdict.advice[0].rows_ratio) == ("workers", pytest.approx(1.5))


def test_more_threads_are_advised_in_steps_where_the_lock_was_not_measured(staged: Staged):
    first = judge([staged(wait_s=0.99, decode_s=0.01, fetch_s=1.99)], Capacity(cores=64, threads=2)).advice[0]
    assert (first.kind, first.change) == ("threads", "cluster: {threads: 8}")
    assert first.rows_ratio == pytest.approx(4.0)


def test_busy_cores_get_no_threads_but_other_hosts(staged: Staged):
    kinds = {
        each.kind: each
        for each in judge([staged(wait_s=0.5, decode_s=1.0, ops_s=1.0)], Capacity(cores=2, threads=2)).advice
    }
    assert "threads" not in kinds
    sending_s = 100 / 0.65e9 * 1_000_000  # of the second's rows, 100 bytes each
    assert kinds["workers"].rows_ratio == pytest.approx(2.0), "the trainer's own pace"
    alone = judge([staged(wait_s=None, decode_s=1.0, ops_s=1.0)], Capacity(cores=2, threads=2)).advice
    ratio = next(each.rows_ratio for each in alone if each.kind == "workers")
    assert ratio == pytest.approx(2.0 * 2.0 / (2.0 + sending_s))
    assert "scheduler" in kinds["workers"].change


def test_a_source_cache_takes_the_stores_waiting_away_if_there_is_another_epoch(staged: Staged):
    facts = staged(wait_s=0.8, decode_s=0.4, fetch_s=1.6)
    several = judge([facts], Capacity(cores=2, threads=2, epochs=2)).advice
    source = next(each for each in several if each.kind == "store")
    assert source.rows_ratio == pytest.approx(5.0)
    assert not any(each.kind == "store" for each in judge([facts], Capacity(cores=2, threads=2)).advice)


def test_a_cold_cache_is_said_to_be_cold(staged: Staged):
    facts = staged(wait_s=0.5, ops_s=1.9, computed=10)
    cold = judge([facts], Capacity(cores=2, threads=2, cached=True, epochs=3)).advice
    assert any("the cache is cold" in each.change and each.rows_ratio == pytest.approx(2.0) for each in cold)
    warm = judge([staged(wait_s=0.5, ops_s=1.9, found=99, computed=1)], Capacity(cores=2, threads=2, cached=True))
    assert not any(each.kind == "cache" for each in warm.advice)


def test_threads_that_wait_for_each_other_may_gain_by_processes(staged: Staged):
    capacity = Capacity(cores=8, threads=4)
    facts = staged(wait_s=0.5, decode_s=1.0, ops_s=1.0, slept_s=1.0)
    waiting = replace(facts, times=facts.times + BlockTimes(read_s=1.0))  # as long as it decodes, and so within ops
    assert waiting.lock_wait_s == pytest.approx(2.0)
    advice = {each.kind: each for each in judge([waiting], capacity).advice}
    assert "threads" not in advice, "they would wait for each other, too"
    assert advice["processes"].change == "cluster: {processes: 4, threads: 1}"
    assert advice["processes"].rows_ratio == pytest.approx(2.0)
    sleeping = judge([staged(wait_s=0.5, decode_s=1.0, ops_s=1.0, slept_s=2.0)], capacity).advice
    assert [each.kind for each in sleeping if each.kind in ("threads", "processes")] == ["threads"]


def test_threads_that_sleep_and_wait_for_each_other_get_as_many_more_as_sleep(staged: Staged):
    facts = staged(wait_s=0.9, decode_s=0.5, fetch_s=2.0, ops_s=0.5)
    facts = replace(facts, times=facts.times + BlockTimes(read_s=1.0))  # of 4 s, 2 wait for the store
    advice = {each.kind: each for each in judge([facts], Capacity(cores=64, threads=4)).advice}
    assert advice["threads"].change == "cluster: {threads: 8}"
    assert advice["threads"].rows_ratio == pytest.approx(2.0)


def test_no_advice_promises_more_than_the_trainer_takes(staged: Staged):
    for wait_s in (0.1, 0.4, 0.9):
        facts = staged(wait_s=wait_s, decode_s=0.5, fetch_s=0.9, slept_s=0.5)
        for each in judge([facts], Capacity(cores=2, threads=2, epochs=2)).advice:
            assert each.rows_ratio <= 1 / (1 - wait_s) + 1e-9


def test_unused_threads_need_no_more():
    assert threads_needed(limits_of(RunFacts(wall_s=1, rows=1), Capacity(cores=1, threads=1))) is None


@pytest.mark.parametrize(
    ("fetch_s", "bytes_per_s", "own_cores", "words"),
    [
        (1.8, None, True, "--store-mb-s"),
        (1.8, None, False, "--store-mb-s"),
        (1.8, 1e12, True, None),
        (0.2, None, True, None),  # hardly waits for the store
    ],
)
def test_more_threads_name_what_is_unknown_of_the_store(
    staged: Staged, fetch_s: float, bytes_per_s: float | None, own_cores: bool, words: str | None
):
    form = "threads" if own_cores else "scheduler"
    capacity = Capacity(cores=8, threads=2, form=form, own_cores=own_cores, store_bytes_per_s=bytes_per_s)
    advice = judge([staged(wait_s=0.75, decode_s=0.1, fetch_s=fetch_s, slept_s=1.8 - fetch_s)], capacity).advice
    [more] = [each for each in advice if each.kind in ("threads", "workers")]
    assert (words in more.caveat) if words else not more.caveat


def advice(change: str, ratio: float = 1.0, saved: float = 0.0) -> Advice:
    return Advice(kind="workers", change=change, reason="", rows_ratio=ratio, cpu_s_saved=saved)


def test_the_largest_gain_comes_first():
    given = [
        advice("cpu", saved=3.0),
        advice("none"),
        advice("most", 2.0),
        advice("some", 1.3, 1.0),
        advice("noise", 1.01),
    ]
    assert [each.change for each in sorted_advice(given)] == ["most", "some", "cpu"]


def test_equal_gains_are_ordered_by_saved_cpu():
    assert [each.change for each in sorted_advice([advice("a", 1.2), advice("b", 1.2, 2.0)])] == ["b", "a"]
