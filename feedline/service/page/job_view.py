"""What the live page shows of a job: numbers of its feeders and ranks, put together.

Runs in: the process that serves the page, once a second while somebody looks. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from statistics import median
from typing import NamedTuple

from feedline.dataclass import dataclass
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.limits.run_facts import RunFacts
from feedline.loader.wire.facts import BlockStats
from feedline.loader.wire.run_status import FeederDecision, FeederStatus, PlanStatus, RankStatus, state_of_ranks
from feedline.service.page.status_history import JobPoint, StatusHistory

# A rank is the straggler if its trainer waits for this much more of the time than the median rank's.
_STRAGGLER_SHARE = 0.05
_DECISIONS = 3  # of each topic: those of windows are many
_EPOCH = " in epoch "  # what follows of a warning changes from epoch to epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """A rank in the table. epochs: 0 if unknown; done: of all steps of all epochs, of 1; eta_s: to the last step of the
    last epoch; of this epoch, where epochs are unknown. facts: of the last seconds. None: unknown, or not fed.
    silent_s: since its feeder's last status, if that is unusual."""

    status: RankStatus
    host: str
    epochs: int
    done: float | None
    facts: RunFacts | None
    eta_s: float | None
    silent_s: float
    straggler: bool = False


class StageShare(NamedTuple):
    """A stage of computing blocks: its seconds in all threads, and its share of those of all stages. The names are
    those of `loader/limits`."""

    name: str
    seconds: float
    share: float


class SourcedText(NamedTuple):
    source: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedRank:
    """The rank whose trainer waits most, with what it used over the last seconds, and its feeder."""

    rank: RankStatus
    feeder: FeederStatus
    facts: RunFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as the page shows it. first: the status of its first feeder. cores, cpu_s, lost, regained, restarts: of all
    feeders; seconds: since the first one's start. now: the last point of its series.

    rows, held_bytes, ready, slots: of all ranks: delivered; of finished blocks; batches and slots of the rings. done:
    of the rank with the least, of 1; eta_s: of the last one to end; of_epoch: both are of the epoch, as epochs are
    unknown. stages, work: of computing its blocks so far. slowest: of the ranks that are fed. decisions: the newest
    first.
    """

    job: str
    first: FeederStatus
    state: str
    hosts: tuple[str, ...]
    cores: float
    cpu_s: float
    seconds: float
    now: JobPoint
    ranks: tuple[RankRow, ...]
    rows: int
    held_bytes: int
    ready: int
    slots: int
    done: float | None
    eta_s: float | None
    of_epoch: bool
    stages: tuple[StageShare, ...]
    work: BlockStats
    lost: int
    regained: int
    restarts: int
    slowest: LimitedRank | None
    decisions: tuple[FeederDecision, ...]
    plan: PlanStatus | None
    findings: tuple[SourcedText, ...]
    errors: tuple[SourcedText, ...]

    @property
    def silent(self) -> tuple[RankRow, ...]:
        """The ranks whose feeders are silent before these have ended."""
        return tuple(row for row in self.ranks if row.silent_s and row.status.state != "ended")

    @property
    def stragglers(self) -> tuple[RankRow, ...]:
        return tuple(row for row in self.ranks if row.straggler)


def view_job(history: StatusHistory, job: str) -> JobView | None:
    """Put together what is known of a job; None if it has no feeder."""
    statuses = history.statuses(job)
    if not statuses:
        return None
    ranks = [rank for status in statuses for rank in status.ranks]
    rows = mark_stragglers([_rank_row(history, status, rank) for status in statuses for rank in status.ranks])
    work = _sum([rank.stats.delivery for rank in ranks])
    decisions = [each for status in statuses for each in status.decisions]
    return JobView(
        job=job,
        first=statuses[0],
        state=state_of_ranks(rank.state for rank in ranks),
        hosts=tuple(dict.fromkeys(status.host for status in statuses)),
        cores=sum(status.cores for status in statuses),
        cpu_s=sum(status.cpu_s for status in statuses),
        seconds=max(status.now_s - status.started_s for status in statuses),
        now=history.points(job)[-1],
        ranks=rows,
        rows=sum(rank.stats.rows for rank in ranks),
        held_bytes=sum(rank.held_bytes for rank in ranks),
        ready=sum(rank.ready for rank in ranks),
        slots=sum(rank.stats.ring_slots for rank in ranks),
        done=min((row.done for row in rows if row.done is not None), default=None),
        eta_s=max((row.eta_s for row in rows if row.eta_s is not None), default=None),
        of_epoch=any(row.done is not None and not row.epochs for row in rows),
        stages=_stages(work.times),
        work=work,
        lost=sum(status.lost for status in statuses),
        regained=sum(status.regained for status in statuses),
        restarts=sum(status.restarts for status in statuses),
        slowest=_slowest(history, statuses),
        decisions=_last_decisions(decisions),
        plan=next((rank.plan for rank in ranks if rank.plan is not None), None),
        findings=_findings(ranks),
        errors=tuple(SourcedText(f"rank {rank.rank}", rank.error) for rank in ranks if rank.error),
    )


def _last_decisions(decisions: Sequence[FeederDecision]) -> tuple[FeederDecision, ...]:
    """The newest ones of each topic, the newest first."""
    newest = sorted(decisions, key=lambda each: each.at_s, reverse=True)
    kept = [[each for each in newest if each.topic == topic][:_DECISIONS] for topic in {each.topic for each in newest}]
    return tuple(sorted(chain.from_iterable(kept), key=lambda each: each.at_s, reverse=True))


def _findings(ranks: Sequence[RankStatus]) -> tuple[SourcedText, ...]:
    """The last warning of each kind, with the ranks that have it."""
    last: dict[str, str] = {}
    found: dict[str, list[int]] = {}
    for rank in ranks:
        for text in rank.findings:
            kind = text.partition(_EPOCH)[0]
            last[kind] = text
            found.setdefault(kind, []).append(rank.rank)
    return tuple(SourcedText(_named(sorted(set(found[kind]))), text) for kind, text in last.items())


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:4])) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"


def _slowest(history: StatusHistory, statuses: Sequence[FeederStatus]) -> LimitedRank | None:
    ranks = [
        LimitedRank(rank=rank, feeder=status, facts=facts)
        for status in statuses
        for rank in status.ranks
        if (facts := history.facts(status.feeder, rank)) is not None
    ]
    return max(ranks, key=lambda each: each.facts.trainer_wait or 0.0, default=None)


def _stages(times: BlockTimes) -> tuple[StageShare, ...]:
    """The stages of blocks; none before the first."""
    seconds = {
        "store wait": times.fetch_s,
        "decoding": max(0.0, times.read_s - times.fetch_s),
        "ops": times.transform_s,
        "encoding": times.encode_s,
    }
    total = sum(seconds.values())
    return tuple(StageShare(name, part, part / total) for name, part in seconds.items()) if total > 0 else ()


def _sum(delivery: Sequence[BlockStats]) -> BlockStats:
    cached = [each.cached for each in delivery if each.cached is not None]
    return BlockStats(
        blocks=sum(each.blocks for each in delivery),
        nbytes_read=sum(each.nbytes_read for each in delivery),
        times=BlockTimes.total(each.times for each in delivery),
        resubmitted=sum(each.resubmitted for each in delivery),
        cached=sum(cached, CacheCounts()) if cached else None,
    )


def mark_stragglers(rows: Sequence[RankRow]) -> tuple[RankRow, ...]:
    """The rows by rank, those marked as stragglers that delay the others.

    Ranks of a synchronous training advance together: the one that delays them is the one that is steps behind, or else
    the one whose trainer waits for its batches, while the others' wait for it, and those that wait nearly as long: two
    ranks that are alike would take turns. Steps are those of batches in the ring: a rank is behind if it is by more
    than a ring holds.
    """
    ordered = sorted(rows, key=lambda row: row.status.rank)
    fed = {row.status.rank: (row.status.stats, row.facts) for row in ordered if row.facts is not None}
    if len(fed) < 2:
        return tuple(ordered)
    place = {rank: stats.epoch * stats.steps + stats.step for rank, (stats, _) in fed.items()}
    last = min(place, key=place.__getitem__)
    if max(place.values()) - place[last] > fed[last][0].ring_slots:
        slow = [last]
    else:
        shares = {rank: facts.trainer_wait or 0.0 for rank, (_, facts) in fed.items()}
        least = max(shares.values()) - _STRAGGLER_SHARE
        slow = [rank for rank, share in shares.items() if share > least >= median(shares.values())]
    return tuple(replace(row, straggler=row.status.rank in slow) for row in ordered)


def _rank_row(history: StatusHistory, status: FeederStatus, rank: RankStatus) -> RankRow:
    stats, facts = rank.stats, history.facts(status.feeder, rank)
    left, epochs = None, status.epochs_known(stats.epoch)
    if stats.steps and not rank.awaits_plan:
        left = max(0, stats.steps - stats.step + max(epochs - stats.epoch - 1, 0) * stats.steps)
    return RankRow(
        status=rank,
        host=status.host,
        epochs=epochs,
        done=None if left is None else 1 - left / max(1, stats.steps * max(epochs, 1)),
        facts=facts,
        eta_s=left / facts.steps_per_s if left is not None and facts is not None and facts.steps_per_s > 0 else None,
        silent_s=history.silence_s(status.feeder),
    )
