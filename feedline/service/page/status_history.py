"""Keep the statuses of feeders over the last minutes, and turn their counters into rates.

Runs in: the process that serves the live page, while somebody looks at it. Pure: time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple

from feedline.dataclass import dataclass
from feedline.loader.limits.run_facts import RunFacts
from feedline.loader.wire.run_status import FeederStatus, RankStatus

POINTS = 600  # of a job's series: ten minutes of a page that is open
RATE_S = 10.0  # long enough to smooth uneven blocks, short enough to show a change
SILENT_S = 6.0  # a feeder that has sent no status for so long is said to be silent
_SHARED = "scheduler"  # the form of a cluster whose workers all feeders of a job share; else each has its own


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPoint:
    """A job at one moment, for its series. at_s: unix time of the process that serves the page. rows_per_s: of all
    ranks; trainer, slots: the greatest share of a rank's time that the trainer waited, and that batches waited for it;
    blocks, window: in flight and their limit, of all ranks; ring: fill of the emptiest one, of 1. workers, threads:
    those that its feeders share, and those that each has. None: unknown."""

    at_s: float
    rows_per_s: float | None
    trainer: float | None
    slots: float | None
    blocks: int
    window: int
    ring: float | None
    workers: int
    threads: int


class _Sample(NamedTuple):
    at_s: float
    rank: RankStatus


@dataclass(slots=True)
class _Feeder:
    status: FeederStatus
    seen_s: float
    samples: dict[int, deque[_Sample]] = field(default_factory=dict)  # by rank


@dataclass(slots=True)
class StatusHistory:
    now_s: float = 0.0
    _feeders: dict[str, _Feeder] = field(default_factory=dict)
    _points: dict[str, deque[JobPoint]] = field(default_factory=dict)  # by job
    _facts: dict[tuple[str, int], RunFacts | None] = field(default_factory=dict)  # since the last `add`

    def add(self, statuses: Sequence[FeederStatus], now_s: float) -> None:
        """Add the last status of each feeder that there is; those of the others are dropped."""
        self.now_s = now_s
        self._facts = {}
        known, self._feeders = self._feeders, {}
        for status in statuses:
            feeder = known.get(status.feeder)
            if feeder is None:
                feeder = _Feeder(status, now_s)
                _add_samples(feeder, status)
            elif status.now_s > feeder.status.now_s:
                feeder.status, feeder.seen_s = status, now_s
                _add_samples(feeder, status)
            self._feeders[status.feeder] = feeder
        jobs = self.jobs()
        self._points = {job: self._points.get(job, deque(maxlen=POINTS)) for job in jobs}
        for job in jobs:
            self._points[job].append(self._point(job))

    def jobs(self) -> list[str]:
        """The jobs that have feeders, in the order in which these came."""
        return list(dict.fromkeys(feeder.status.job for feeder in self._feeders.values()))

    def statuses(self, job: str) -> list[FeederStatus]:
        """The last status of each of a job's feeders, by their lowest rank."""
        of_job = [each.status for each in self._feeders.values() if each.status.job == job]
        return sorted(of_job, key=lambda status: min((rank.rank for rank in status.ranks), default=0))

    def silence_s(self, feeder: str) -> float:
        """Seconds since the last status of a feeder, if these are more than usual; else 0."""
        silent_s = self.now_s - self._feeders[feeder].seen_s
        return silent_s if silent_s > SILENT_S else 0.0

    def facts(self, feeder: str, rank: RankStatus) -> RunFacts | None:
        """What a rank has used over about `RATE_S`; None before its second status, and if it is not fed."""
        key = feeder, rank.rank
        if key not in self._facts:
            self._facts[key] = self._between(feeder, rank.rank)
        return self._facts[key] if rank.state == "feeding" else None

    def _between(self, feeder: str, rank: int) -> RunFacts | None:
        samples = self._feeders[feeder].samples.get(rank)
        if rank < 0 or samples is None or len(samples) < 2:
            return None
        (began_s, old), (ended_s, new) = samples[0], samples[-1]
        if ended_s <= began_s:  # two trainers of a rank, of which one is about to leave
            return None
        waited_s = new.stalled_s - old.stalled_s
        return RunFacts.between(new.stats, old.stats, wall_s=ended_s - began_s, trainer_wait_s=waited_s)

    def points(self, job: str) -> Sequence[JobPoint]:
        """The series of a job, a point for each `add`."""
        return self._points.get(job, ())

    def _point(self, job: str) -> JobPoint:
        statuses = self.statuses(job)
        ranks = [rank for status in statuses for rank in status.ranks]
        fed = [self.facts(status.feeder, rank) for status in statuses for rank in status.ranks]
        facts = [each for each in fed if each is not None]
        workers, threads = workers_of(statuses)
        return JobPoint(
            at_s=self.now_s,
            rows_per_s=sum(each.rows_per_s for each in facts) if facts else None,
            trainer=max((each.trainer_wait or 0.0 for each in facts), default=None),
            slots=max((each.slot_wait for each in facts), default=None),
            blocks=sum(rank.stats.blocks_in_flight for rank in ranks),
            window=sum(rank.stats.window for rank in ranks),
            ring=min((fill for rank in ranks if (fill := ring_fill(rank)) is not None), default=None),
            workers=workers,
            threads=threads,
        )


def ring_fill(rank: RankStatus) -> float | None:
    """The share of a ring's slots that hold batches which wait for the trainer; None without a ring, or a trainer."""
    has_ring = rank.stats.ring_slots and rank.state != "ended"
    return min(1.0, rank.ready / rank.stats.ring_slots) if has_ring else None


def workers_of(statuses: Sequence[FeederStatus]) -> tuple[int, int]:
    """The workers and threads of a job: those that its feeders share, and those that each has."""
    shared = [(each.workers, each.threads) for each in statuses if each.form == _SHARED]
    own = [(each.workers, each.threads) for each in statuses if each.form != _SHARED]
    workers = max((count for count, _ in shared), default=0) + sum(count for count, _ in own)
    return workers, max((count for _, count in shared), default=0) + sum(count for _, count in own)


def _add_samples(feeder: _Feeder, status: FeederStatus) -> None:
    """Add the counts of each rank; a new trainer, or a status without a batch, starts them afresh."""
    for rank in status.ranks:
        samples = feeder.samples.setdefault(rank.rank, deque())
        last = samples[-1].rank if samples else rank
        if not last.stats.rows or rank.stats.rows < last.stats.rows or rank.trainer != last.trainer:
            samples.clear()
        samples.append(_Sample(status.now_s, rank))
        while len(samples) > 2 and status.now_s - samples[1].at_s >= RATE_S:
            samples.popleft()
