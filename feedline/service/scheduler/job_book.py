"""Keep the last report of each feeder of a scheduler, sum their demands, and divide the cluster among them.

Runs in: the scheduler. Pure: time and the cluster's size are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from feedline.loader.wire.job_reports import JobAnswer, JobReport
from feedline.service.scheduler.fair_shares import VirtualStarts, claimed_threads, divide_by_job
from feedline.service.scheduler.routes import Routes, route_digest

# A feeder reports every two seconds, and is forgotten when its connection is lost. One that has been silent for so long
# is forgotten without that: no part of a network is dark for longer and comes back.
SILENT_S = 300.0
# After a pause of this process its feeders may have to connect again: for so long the cluster does not shrink. A
# half-open connection takes up to 17.5 s to be replaced (docs/decisions/0025-half-open-connections.md).
GRACE_S = 60.0
# After a start, the demand is unknown for so long: feeders and workers of a scheduler that died connect again.
START_S = 30.0
# Dividing the threads takes time for each feeder, and all of them report: beyond a few feeders, the parts are as old as
# this at most, for each feeder that there is. A new feeder's are computed at once.
_FEW, _AGE_S = 16, 0.002
_PAUSE_S = 5.0  # `tick` is called every second; a longer time between two calls was a pause


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSize:
    """The workers of a cluster, the threads of all of them, and the cores of their hosts (0: unknown)."""

    workers: int
    threads: int
    cores: int = 0

    @property
    def threads_per_worker(self) -> float:
        """At least 1, also without workers."""
        return max(1.0, self.threads / self.workers) if self.workers else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    report: JobReport
    reported_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """How a cluster's threads were divided, by feeder and by job."""

    computed_s: float
    size: ClusterSize
    parts: dict[str, float]
    job_threads: dict[str, float]


@dataclass(slots=True)
class JobBook:
    """The feeders that report to a scheduler."""

    _entries: dict[str, _Entry] = field(default_factory=dict)  # by feeder
    _threads_per_worker: float = 1.0  # of the last workers that there were
    _virtual_starts: VirtualStarts = field(default_factory=VirtualStarts)
    _shares: _Shares | None = None
    _ticked_s: float | None = None
    _certain_s: float = -math.inf  # from when on the demand may fall
    _known_s: float = -math.inf  # from when on it is known
    _demanded: int = 0  # workers, by the last answer
    routes: Routes = field(default_factory=Routes)

    def begin(self, now_s: float) -> None:
        self._known_s = now_s + START_S

    def is_known(self, now_s: float) -> bool:
        """Whether feeders of before the scheduler's start have had the time to report."""
        return now_s >= self._known_s

    def tick(self, now_s: float) -> None:
        """Notice pauses of this process. Called every second."""
        before_s, self._ticked_s = self._ticked_s, now_s
        if before_s is not None and now_s - before_s > _PAUSE_S:
            self._certain_s = now_s + GRACE_S
            # their silence was ours
            self._entries = {name: replace(entry, reported_s=now_s) for name, entry in self._entries.items()}

    def record(
        self, report: JobReport, now_s: float, size: ClusterSize, workers: AbstractSet[str] = frozenset()
    ) -> JobAnswer:
        """Keep a report, and answer it. workers: the addresses of all, among which routes are chosen."""
        self._entries[report.feeder] = _Entry(report=report, reported_s=now_s)
        shares = self._divided(report.feeder, now_s, size)
        threads = shares.parts[report.feeder]
        need_threads = min(threads, claimed_threads(report))
        route = self.routes.update(report.feeder, need_threads / size.threads_per_worker, workers)
        return JobAnswer(
            now_s=now_s,
            virtual_start_s=self._virtual_starts.advance(report, shares.job_threads.get(report.job, threads), now_s),
            threads=threads,
            workers=size.workers,
            jobs=len(shares.job_threads),
            cores=size.cores,
            route=None if report.route == route_digest(route) else tuple(sorted(route)),
        )

    def threads_by_feeder(self, now_s: float, size: ClusterSize) -> dict[str, float]:
        """The fair part of each feeder, of the threads of all workers."""
        return divide_by_job(size.threads, self.reports(now_s))

    def _divided(self, feeder: str, now_s: float, size: ClusterSize) -> _Shares:
        """The parts for a feeder's report, computed anew if they are too old."""
        shares, count = self._shares, len(self._entries)
        if (
            shares is not None
            and count > _FEW
            and (shares.size, feeder in shares.parts) == (size, True)
            and now_s - shares.computed_s < _AGE_S * count
        ):
            return shares
        parts = self.threads_by_feeder(now_s, size)
        job_threads: dict[str, float] = {}
        for name, threads in parts.items():
            job = self._entries[name].report.job
            job_threads[job] = job_threads.get(job, 0.0) + threads
        self._shares = _Shares(computed_s=now_s, size=size, parts=parts, job_threads=job_threads)
        return self._shares

    def reports(self, now_s: float) -> list[JobReport]:
        """The last reports of all feeders that are alive, by job and feeder."""
        self._entries = {name: each for name, each in self._entries.items() if now_s - each.reported_s < SILENT_S}
        self.routes.forget(self._entries)
        self._virtual_starts.forget({name: each.report for name, each in self._entries.items()})
        reports = [entry.report for entry in self._entries.values()]
        return sorted(reports, key=lambda report: (report.job, report.feeder))

    def forget_client(self, client: str) -> None:
        """Forget the feeder of a Dask client whose connection is lost."""
        self._entries = {name: entry for name, entry in self._entries.items() if entry.report.client != client}

    def demand_workers(self, now_s: float, size: ClusterSize) -> int:
        """The workers that all feeders together need; after a pause, no fewer than there are, or were needed before.

        The scheduler's own workers say how many threads one has.
        """
        if size.workers:
            self._threads_per_worker = size.threads_per_worker
        demands: dict[str, float] = {}
        limits: dict[str, tuple[int, float]] = {}  # equal in all reports of a job
        for report in self.reports(now_s):
            demands[report.job] = demands.get(report.job, 0.0) + report.demand_threads / self._threads_per_worker
            limits[report.job] = report.least_workers, math.inf if report.most_workers is None else report.most_workers
        workers = sum(min(max(demand, limits[job][0]), limits[job][1]) for job, demand in demands.items())
        demand = math.ceil(workers - 1e-6)
        self._demanded = demand if now_s >= self._certain_s else max(demand, self._demanded, size.workers)
        return self._demanded
