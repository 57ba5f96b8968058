"""Divide a cluster's threads among its jobs, and count how far each has used up its part.

Runs in: the scheduler. Pure: time and counts are arguments.

Threads are divided by weighted max-min fairness, among jobs and then among the feeders of each. A job's virtual start
is the time, by the scheduler's clock, at which its next block would start if its part of the cluster computed its
blocks one after the other. See docs/decisions/0023-shares-of-a-cluster.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from feedline.loader.wire.job_reports import JobReport

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
    """The part of each feeder."""
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
    """The virtual starts of jobs."""

    _starts_s: dict[str, float] = field(default_factory=dict)  # by job
    _busy_s: dict[str, float] = field(default_factory=dict)  # by feeder, of its last report

    def advance(self, report: JobReport, job_threads: float, now_s: float) -> float:
        """Charge what a feeder has used since its last report to its job. Returns the job's virtual start.

        job_threads: the part of all feeders of the job.
        """
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
