"""Reports of feeders, kept and summed by the scheduler, and the shares of jobs; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from drawn_examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from job_reports import REPORT
from shared_cluster import SimulatedJob, simulate

from feedline.loader.wire.job_reports import JobReport
from feedline.service.scheduler.job_book import (
    AHEAD_S,
    GRACE_S,
    SILENT_S,
    START_S,
    ClusterSize,
    JobBook,
    VirtualStarts,
    claimed_threads,
    divide,
    divide_by_job,
)

SIZE = ClusterSize(workers=4, threads=8)


def test_demands_of_all_feeders_add_up_in_threads_before_they_are_rounded_to_workers():
    book = JobBook()
    book.record(REPORT, 0.0, SIZE)
    book.record(replace(REPORT, feeder="b"), 0.0, SIZE)
    book.record(replace(REPORT, feeder="c", job="other", demand_threads=0.5), 0.0, SIZE)
    assert book.demand_workers(0.0, SIZE) == 4  # 6.5 threads, two of them per worker


def test_a_new_report_replaces_the_last_one_of_its_feeder():
    book = JobBook()
    book.record(REPORT, 0.0, SIZE)
    answer = book.record(replace(REPORT, demand_threads=16.0), 2.0, SIZE)
    assert book.demand_workers(2.0, SIZE) == 8
    assert (answer.threads, answer.now_s) == (8.0, 2.0)


def test_a_feeder_is_forgotten_with_its_connection_not_for_its_silence():
    book = JobBook()
    book.record(replace(REPORT, client="c1"), 0.0, SIZE)
    book.record(replace(REPORT, feeder="b", client="c2"), 0.0, SIZE)
    assert book.demand_workers(120.0, SIZE) == 3
    book.forget_client("c1")
    assert [report.feeder for report in book.reports(120.0)] == ["b"]
    assert book.demand_workers(120.0, SIZE) == 2


def test_a_pause_of_the_scheduler_takes_no_worker_away():
    """On waking up it finds all connections lost; then the feeders connect again."""
    book, large = JobBook(), ClusterSize(workers=40, threads=80)
    for second in range(10):
        book.tick(float(second))
        book.record(replace(REPORT, demand_threads=80.0, most_workers=None, client="c"), float(second), large)
    assert book.demand_workers(9.0, large) == 40
    book.tick(9.0 + 1000.0)
    assert [report.feeder for report in book.reports(1009.0)] == ["a"], "their silence was ours"
    book.forget_client("c")
    none = ClusterSize(workers=3, threads=6)
    assert book.demand_workers(1009.0, none) == 40
    book.tick(1010.0)
    assert book.demand_workers(1010.0, none) == 40
    for second in range(1011, 1009 + int(GRACE_S) + 1):
        book.tick(float(second))
    assert book.demand_workers(1009.0 + GRACE_S, none) == 0


def test_after_a_start_the_demand_is_unknown():
    book = JobBook()
    book.begin(100.0)
    assert not book.is_known(100.0 + START_S - 1)
    assert book.is_known(100.0 + START_S)
    assert JobBook().is_known(0.0)


def test_a_feeder_that_is_silent_for_minutes_demands_nothing():
    book = JobBook()
    book.record(REPORT, 0.0, SIZE)
    book.record(replace(REPORT, feeder="b"), 5.0, SIZE)
    assert [report.feeder for report in book.reports(SILENT_S)] == ["b"]
    assert book.demand_workers(SILENT_S, SIZE) == 2
    assert book.demand_workers(SILENT_S + 5.0, SIZE) == 0


def test_without_workers_those_of_before_say_how_many_threads_one_has():
    book = JobBook()
    none = ClusterSize(workers=0, threads=0)
    book.record(REPORT, 0.0, SIZE)
    assert book.demand_workers(0.0, none) == 3  # never saw one
    assert book.demand_workers(0.0, SIZE) == 2
    assert book.demand_workers(0.0, none) == 2


def test_a_report_of_many_feeders_costs_no_division_of_its_own(monkeypatch: pytest.MonkeyPatch):
    """256 feeders report every two seconds; parts are half a second old at most, and a new feeder has one at once."""
    divisions = 0

    def divide(threads: float, reports: Sequence[JobReport]) -> dict[str, float]:
        nonlocal divisions
        divisions += 1
        return divide_by_job(threads, reports)

    monkeypatch.setattr("feedline.service.scheduler.job_book.divide_by_job", divide)
    book, size = JobBook(), ClusterSize(workers=400, threads=800)
    reports = [replace(REPORT, job=f"j{number % 8}", feeder=f"f{number}") for number in range(256)]
    for report in reports:
        assert book.record(report, 0.0, size).threads > 0
    divisions, now_s = 0, 0.0
    for _ in range(5):
        for report in reports:
            now_s += 2 / 256
            answer = book.record(report, now_s, size)
            assert answer.threads == pytest.approx(800 / 256, rel=0.3)
    assert divisions <= 10 / 0.5 + 1
    book.record(
        replace(reports[0], demand_threads=0.0, blocks_per_s=0.0, starved=False, wait_fraction=0.0), now_s, size
    )
    late = book.record(reports[1], now_s + 0.52, size)
    assert late.threads == pytest.approx(book.threads_by_feeder(now_s + 0.52, size)["f1"])
    divisions = 0
    book.record(replace(REPORT, job="new", feeder="new"), now_s + 0.53, size)
    book.record(reports[2], now_s + 0.54, ClusterSize(workers=500, threads=1000))
    assert divisions == 2


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
    assert book.record(alive, 0.0, size).threads < 8
    answer = book.record(alive, SILENT_S, size)
    assert answer.threads == 8
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
