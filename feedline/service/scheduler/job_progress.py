"""How far jobs are, from the last statuses of their feeders: for `feedline jobs`.

Runs in: processes that ask a scheduler. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feedline.loader.wire.run_status import FeederStatus, RankStatus, state_of_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """One job. epoch, step, steps: of the rank that has done least. epochs: 0 if unknown. left_s: until the last rank
    has done all epochs, or this one where they are unknown, at the pace of its steps and waits so far (None: unknown).
    lost, regained: connections of its feeders to the scheduler.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    left_s: float | None
    lost: int
    regained: int


def progress_by_job(statuses: Sequence[FeederStatus]) -> dict[str, JobProgress]:
    """The progress of each job; none of one whose trainers have not begun."""
    found = {job: _progress(members) for job, members in _by_job(statuses).items()}
    return {job: each for job, each in found.items() if each is not None}


def states_by_job(statuses: Sequence[FeederStatus]) -> dict[str, str]:
    """The state that says most of each job."""
    return {
        job: state_of_ranks(rank.state for each in members for rank in each.ranks)
        for job, members in _by_job(statuses).items()
    }


def _by_job(statuses: Sequence[FeederStatus]) -> dict[str, list[FeederStatus]]:
    by_job: dict[str, list[FeederStatus]] = {}
    for status in statuses:
        by_job.setdefault(status.job, []).append(status)
    return by_job


def _progress(members: Sequence[FeederStatus]) -> JobProgress | None:
    ranks = [(each, rank) for each in members for rank in each.ranks if rank.state == "feeding" and rank.stats.steps]
    if not ranks:
        return None
    feeder, last = min(ranks, key=lambda pair: (pair[1].stats.epoch, pair[1].stats.step))
    left = [seconds for each, rank in ranks if (seconds := _seconds_left(each, rank)) is not None]
    return JobProgress(
        epoch=last.stats.epoch,
        epochs=feeder.epochs_known(last.stats.epoch),
        step=last.stats.step,
        steps=last.stats.steps,
        left_s=max(left) if len(left) == len(ranks) else None,
        lost=sum(each.lost for each in members),
        regained=sum(each.regained for each in members),
    )


def _seconds_left(feeder: FeederStatus, rank: RankStatus) -> float | None:
    stats = rank.stats
    if not rank.step_s or not stats.batches:
        return None
    steps = max(1, feeder.epochs_known(stats.epoch) - stats.epoch) * stats.steps - stats.step
    return max(0, steps) * (rank.step_s + stats.wait_blocks_s / stats.batches)
