"""Reports of feeders, kept and summed by the scheduler; pure."""

from __future__ import annotations

from dataclasses import replace

from job_reports import REPORT

from feedline.service.scheduler.job_book import SILENT_S, ClusterSize, JobBook
from feedline.service.scheduler.job_reports import JobAnswer, JobReport

SIZE = ClusterSize(workers=4, threads=8)


def test_reports_and_answers_survive_the_wire_and_ignore_what_later_releases_add():
    assert JobReport.from_json({**REPORT.to_json(), "new": 1}) == REPORT
    answer = JobAnswer(now_s=1.0, virtual_start_s=2.0, threads=3.0, workers=4, jobs=5)
    assert JobAnswer.from_json({**answer.to_json(), "new": 1}) == answer


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


def test_a_feeder_that_has_died_demands_nothing_after_ten_seconds():
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
