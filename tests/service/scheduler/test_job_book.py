"""Reports of feeders, kept and summed by the scheduler; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from job_reports import REPORT

from feedline.loader.wire.job_reports import JobReport
from feedline.service.scheduler.job_book import GRACE_S, SILENT_S, START_S, ClusterSize, JobBook, divide_by_job

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
    assert (answer.workers, answer.jobs, answer.now_s) == (4, 1, 2.0)


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
            assert answer.jobs == 8
    assert divisions <= 10 / 0.5 + 1
    book.record(
        replace(reports[0], demand_threads=0.0, blocks_per_s=0.0, starved=False, wait_fraction=0.0), now_s, size
    )
    late = book.record(reports[1], now_s + 0.52, size)
    assert late.threads == pytest.approx(book.threads_by_feeder(now_s + 0.52, size)["f1"])
    divisions = 0
    assert book.record(replace(REPORT, job="new", feeder="new"), now_s + 0.53, size).jobs == 9
    assert book.record(reports[2], now_s + 0.54, ClusterSize(workers=500, threads=1000)).workers == 500
    assert divisions == 2
