"""Keep the last report of each feeder of a scheduler, sum their demands, and divide the cluster among them.

Runs in: the scheduler. Pure: time and the cluster's size are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from feedline.service.scheduler.fair_shares import VirtualStarts, claimed_threads, divide_by_job
from feedline.service.scheduler.job_reports import JobAnswer, JobReport
from feedline.service.scheduler.routes import Routes, route_digest

# A feeder reports every two seconds; one that has been silent for so long has died.
SILENT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSize:
    """The workers of a cluster, and the threads of all of them."""

    workers: int
    threads: int

    @property
    def threads_per_worker(self) -> float:
        """At least 1, also without workers."""
        return max(1.0, self.threads / self.workers) if self.workers else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    report: JobReport
    reported_s: float


@dataclass(slots=True)
class JobBook:
    """The feeders that report to a scheduler."""

    _entries: dict[str, _Entry] = field(default_factory=dict)  # by feeder
    _threads_per_worker: float = 1.0  # of the last workers that there were
    _virtual_starts: VirtualStarts = field(default_factory=VirtualStarts)
    routes: Routes = field(default_factory=Routes)

    def record(
        self, report: JobReport, now_s: float, size: ClusterSize, workers: AbstractSet[str] = frozenset()
    ) -> JobAnswer:
        """Keep a report, and answer it. workers: the addresses of all, among which routes are chosen."""
        self._entries[report.feeder] = _Entry(report=report, reported_s=now_s)
        self._drop_silent(now_s)
        parts = self.threads_by_feeder(now_s, size)
        feeders = [entry.report for entry in self._entries.values()]
        job_threads = sum(parts[each.feeder] for each in feeders if each.job == report.job)
        need_threads = min(parts[report.feeder], claimed_threads(report))
        route = self.routes.update(report.feeder, need_threads / size.threads_per_worker, workers)
        return JobAnswer(
            now_s=now_s,
            virtual_start_s=self._virtual_starts.advance(report, job_threads, now_s),
            threads=parts[report.feeder],
            workers=size.workers,
            jobs=len({each.job for each in feeders}),
            route=None if report.route == route_digest(route) else sorted(route),
        )

    def threads_by_feeder(self, now_s: float, size: ClusterSize) -> dict[str, float]:
        """The fair part of each feeder, of the threads of all workers."""
        return divide_by_job(size.threads, self.reports(now_s))

    def reports(self, now_s: float) -> list[JobReport]:
        """The last reports of all feeders that are alive, by job and feeder."""
        self._drop_silent(now_s)
        reports = [entry.report for entry in self._entries.values()]
        return sorted(reports, key=lambda report: (report.job, report.feeder))

    def demand_workers(self, now_s: float, size: ClusterSize) -> int:
        """The workers that all feeders together need. The scheduler's own workers say how many threads one has."""
        if size.workers:
            self._threads_per_worker = size.threads_per_worker
        demands: dict[str, float] = {}
        limits: dict[str, tuple[int, float]] = {}  # equal in all reports of a job
        for report in self.reports(now_s):
            demands[report.job] = demands.get(report.job, 0.0) + report.demand_threads / self._threads_per_worker
            limits[report.job] = report.least_workers, math.inf if report.most_workers is None else report.most_workers
        workers = sum(min(max(demand, limits[job][0]), limits[job][1]) for job, demand in demands.items())
        return math.ceil(workers - 1e-6)

    def _drop_silent(self, now_s: float) -> None:
        self._entries = {
            feeder: entry for feeder, entry in self._entries.items() if now_s - entry.reported_s < SILENT_S
        }
        self.routes.forget(self._entries)
        self._virtual_starts.forget({feeder: entry.report for feeder, entry in self._entries.items()})
