"""Jobs that share a cluster get what they need while it is there, and their shares when it is not; pure."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from drawn_examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from job_reports import REPORT
from shared_cluster import SimulatedJob, simulate

from feedline.service.scheduler.job_book import (
    AHEAD_S,
    SILENT_S,
    ClusterSize,
    JobBook,
    VirtualStarts,
    claimed_threads,
    divide,
    divide_by_job,
)

CLAIM = st.one_of(st.floats(0, 100), st.just(math.inf))
CLAIMS = st.lists(st.tuples(CLAIM, st.sampled_from([0.5, 1.0, 2.0, 4.0])), min_size=1, max_size=8)


@given(claims=CLAIMS, threads=st.floats(0, 200))
@example(claims=[(1.0, 1.0), (math.inf, 1.0), (math.inf, 2.0)], threads=10.0)
def test_parts_are_max_min_fair(claims: list[tuple[float, float]], threads: float):
    """Held against the definition: nobody below its claim has less per weight than somebody else."""
    wanted, weights = [claim for claim, _ in claims], [weight for _, weight in claims]
    parts = divide(threads, wanted, weights)
    assert sum(parts) == pytest.approx(threads)
    for part, claim, weight in zip(parts, wanted, weights, strict=True):
        if part < claim - 1e-6:
            assert all(part / weight >= other / its - 1e-6 for other, its in zip(parts, weights, strict=True))


def test_a_job_on_two_hosts_weighs_as_much_as_one_on_a_single_host():
    hungry = replace(REPORT, starved=True, demand_threads=0.0)
    feeders = [replace(hungry, job="a", feeder=name) for name in ("a1", "a2")]
    parts = divide_by_job(12, [*feeders, replace(hungry, job="b", feeder="b", share=2.0)])
    assert parts == pytest.approx({"a1": 2, "a2": 2, "b": 8})


def test_a_trainer_that_has_stopped_claims_a_thread_whatever_it_needed_before():
    stopped = replace(REPORT, starved=False, wait_fraction=0.0, blocks_per_s=0.0, demand_threads=50.0)
    assert claimed_threads(stopped) == 1
    assert claimed_threads(replace(stopped, starved=True)) > 50
    assert claimed_threads(replace(stopped, starved=True, demand_threads=0.0)) == math.inf


def test_a_virtual_start_keeps_to_the_clock_for_fair_use_and_is_ahead_for_more():
    starts, busy_s = VirtualStarts(), 100.0
    assert starts.advance(replace(REPORT, busy_s_total=busy_s), 4.0, 10.0) == 10, "what it used before is no debt"
    for now_s in (12.0, 14.0):
        busy_s += 8
        assert starts.advance(replace(REPORT, busy_s_total=busy_s), 4.0, now_s) == now_s
    assert starts.advance(replace(REPORT, busy_s_total=busy_s + 16), 4.0, 16.0) == 18, "twice its part"
    assert starts.advance(replace(REPORT, busy_s_total=busy_s + 800), 4.0, 18.0) == 18 + AHEAD_S
    assert starts.advance(replace(REPORT, busy_s_total=busy_s + 800), 4.0, 60.0) == 60, "idle time is no credit"


def test_a_job_that_died_leaves_nothing_in_the_book():
    book, size = JobBook(), ClusterSize(workers=2, threads=8)
    dead, alive = replace(REPORT, job="dead", feeder="d"), replace(REPORT, job="alive", feeder="a", starved=True)
    book.record(dead, 0.0, size)
    assert book.record(alive, 0.0, size).jobs == 2
    answer = book.record(alive, SILENT_S, size)
    assert (answer.jobs, answer.threads) == (1, 8)
    assert (set(book._virtual_starts._starts_s), set(book._virtual_starts._busy_s)) == ({"alive"}, {"a"})


# -- simulated clusters -------------------------------------------------------------------------------------------


@examples(12)
@given(
    jobs=st.lists(
        st.tuples(st.sampled_from([0.1, 0.3, 0.9]), st.floats(0.5, 5), st.sampled_from([1.0, 2.0, 3.0])),
        min_size=2,
        max_size=4,
    ),
    offset_s=st.floats(-60, 60),
)
@example(jobs=[(0.1, 5, 1.0), (0.9, 0.5, 1.0)], offset_s=-30)
def test_jobs_that_all_wait_get_their_shares(jobs: list[tuple[float, float, float]], offset_s: float):
    """Whatever their blocks take, however fast their trainers are, and whatever their hosts' clocks say. eager: how
    many times the whole cluster a trainer could use."""
    threads = 12
    made = [
        SimulatedJob(str(index), block_s, block_s / (threads * (1 + eager)), share=share, offset_s=offset_s * index)
        for index, (block_s, eager, share) in enumerate(jobs)
    ]
    simulate(made, threads=threads, until_s=60)
    total = sum(job.share for job in made)
    for job in made:
        assert job.busy(20, 60) == pytest.approx(threads * job.share / total, rel=0.15), job.name


def test_without_answers_the_fastest_trainer_gets_most():
    """What the shares are for: the same jobs on a scheduler without the extension."""
    for extended, fair in ((False, False), (True, True)):
        jobs = [SimulatedJob("fast", 0.2, 0.005), SimulatedJob("slow", 0.2, 0.05)]
        simulate(jobs, threads=4, until_s=60, extended=extended)
        assert (jobs[0].busy(20, 60) == pytest.approx(2, rel=0.1)) == fair


@pytest.mark.parametrize("fast_s", [0.05, 0.01])  # enough threads for all, or not for the fast one
def test_a_slow_trainer_waits_for_nothing_and_a_stopped_one_costs_nothing(fast_s: float):
    fast, slow = SimulatedJob("fast", 0.2, fast_s), SimulatedJob("slow", 0.2, 0.2)
    stopped = SimulatedJob("stopped", 0.2, 0.1, stops=(20, 40))
    simulate([fast, slow, stopped], threads=8, until_s=60)
    assert slow.waits(10, 60) < 0.01
    assert fast.busy(25, 40) == pytest.approx(min(7, 0.2 / fast_s), rel=0.05), "all that the others leave"
    assert stopped.waits(40, 60) < 0.1, "and it goes on where it was"


def test_a_newcomer_gets_its_share_at_once_and_starves_nobody():
    old = [SimulatedJob(name, 0.2, 0.01) for name in ("a", "b")]
    newcomer = SimulatedJob("new", 0.2, 0.01, starts_s=60)
    simulate([*old, newcomer], threads=9, until_s=100)
    assert all(job.busy(40, 60) == pytest.approx(4.5, rel=0.1) for job in old)
    assert newcomer.busy(62, 70) == pytest.approx(3, rel=0.2)
    assert all(job.busy(begin, begin + 4) > 2 for job in old for begin in range(60, 96, 4))
