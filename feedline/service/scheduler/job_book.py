"""Keep the last report of each feeder of a scheduler, sum their demands, and divide the cluster among them.

Runs in: the scheduler. Pure: time and the cluster's size are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, replace

from feedline.dataclass import dataclass
from feedline.loader.wire.job_reports import JobAnswer, JobReport
from feedline.service.scheduler.routes import Routes, route_digest

# --------------------------------------------------------------------------------------------------------------------
# Divide a cluster's threads among its jobs, and count how far each has used up its part. Pure: time and counts are
# arguments. Threads are divided by weighted max-min fairness, among jobs and then among the feeders of each. A job's
# virtual start is the time, by the scheduler's clock, at which its next block would start if its part of the cluster
# computed its blocks one after the other. See docs/decisions/0023-shares-of-a-cluster.md.

# The most by which a virtual start is ahead of the clock: for so long may a job that has used more come last.
AHEAD_S = 5.0
# A trainer that waits as much as this share of its time needs more than it gets.
_WAITS = 0.02
# Room for a feeder to need more than it uses, until its next report: a part of its use, and a thread.
_ROOM, _ROOM_THREADS = 1.25, 1.0


def claimed_threads(report: JobReport) -> float:
    """The threads that a feeder can use until its next report: as many as its trainers need if they wait (all, as long
    as that is unknown), else little more than it uses now, whatever it used or needed before."""
    used = report.blocks_per_s * report.block_s
    if report.starved or report.wait_fraction > _WAITS:
        if not report.demand_threads:
            return math.inf
        used = max(used, report.demand_threads)
    return _ROOM * used + _ROOM_THREADS


def divide(threads: float, claims: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The weighted max-min fair parts of `threads`: their sum, also if the claims are less."""
    # threads 10, claims [1, inf, inf], weights [1, 1, 2]: a level of 2.5 meets the first; 9 left at 3 -> [1, 3, 6].
    # threads 10, claims [1, 2], weights [1, 1]: both are met; the 7 left are shared -> [4.5, 5.5].
    parts = [0.0] * len(claims)
    open_claims, left = list(range(len(claims))), threads
    while open_claims:
        level = left / sum(weights[index] for index in open_claims)
        met = [index for index in open_claims if claims[index] <= level * weights[index]]
        for index in met or open_claims:
            parts[index] = claims[index] if met else level * weights[index]
            left -= parts[index]
        open_claims = [index for index in open_claims if index not in met] if met else []
    total = sum(weights)
    return [part + max(0.0, left) * weight / total for part, weight in zip(parts, weights, strict=True)]


def divide_by_job(threads: float, reports: Sequence[JobReport]) -> dict[str, float]:
    jobs: dict[str, list[JobReport]] = {}
    for report in reports:
        jobs.setdefault(report.job, []).append(report)
    claims = [sum(map(claimed_threads, feeders)) for feeders in jobs.values()]
    weights = [max(report.share for report in feeders) for feeders in jobs.values()]
    parts: dict[str, float] = {}
    for part, feeders in zip(divide(threads, claims, weights), jobs.values(), strict=True):
        own = divide(part, [claimed_threads(report) for report in feeders], [1.0] * len(feeders))
        parts |= dict(zip((report.feeder for report in feeders), own, strict=True))
    return parts


@dataclass(slots=True)
class VirtualStarts:
    _starts_s: dict[str, float] = field(default_factory=dict)  # by job
    _busy_s: dict[str, float] = field(default_factory=dict)  # by feeder, of its last report

    def advance(self, report: JobReport, job_threads: float, now_s: float) -> float:
        """Charge what a feeder has used since its last report to its job. Returns the job's virtual start.

        job_threads: the part of all feeders of the job.
        """
        # A part of 4 threads, reports at 10, 12 and 14 s of 100, 108 and 124 busy seconds: starts 10 (no debt), 10 + 8
        # / 4 = 12, on the clock, and 12 + 16 / 4 = 16, 2 s ahead.
        used_s = max(0.0, report.busy_s_total - self._busy_s.get(report.feeder, report.busy_s_total))
        self._busy_s[report.feeder] = report.busy_s_total
        start_s = self._starts_s.get(report.job, now_s) + used_s / max(job_threads, 1e-3)
        self._starts_s[report.job] = start_s = min(max(start_s, now_s), now_s + AHEAD_S)
        return start_s

    def forget(self, others: Mapping[str, JobReport]) -> None:
        """Forget all feeders but these, and jobs without feeders."""
        jobs = {report.job for report in others.values()}
        self._starts_s = {job: start_s for job, start_s in self._starts_s.items() if job in jobs}
        self._busy_s = {feeder: busy_s for feeder, busy_s in self._busy_s.items() if feeder in others}


# --------------------------------------------------------------------------------------------------------------------

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
        return max(1.0, self.threads / self.workers) if self.workers else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    report: JobReport
    reported_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    computed_s: float
    size: ClusterSize
    parts: dict[str, float]
    job_threads: dict[str, float]


@dataclass(slots=True)
class JobBook:
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
