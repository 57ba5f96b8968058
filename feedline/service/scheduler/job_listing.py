"""Ask a scheduler for its jobs, and how far they are from the last statuses of their feeders.

Runs in: the process of a command, without a Dask client: a question, an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from distributed import Security
from distributed.core import rpc

from feedline.config.cluster_section import TlsSpec
from feedline.dataclass import dataclass
from feedline.errors import ClusterError
from feedline.loader.wire.codec import WIRE_VERSION, unpack
from feedline.loader.wire.job_reports import FeederShare
from feedline.loader.wire.run_status import FeederStatus, RankStatus, state_of_ranks
from feedline.service.certificates import security_of
from feedline.service.refused_connection import explain_refusal
from feedline.service.scheduler.extension import METADATA_KEY
from feedline.version import VERSION


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


_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobListing:
    """The workers of a cluster, their threads, and the feeders that it serves, by job, with the statuses that they have
    sent."""

    workers: int
    threads: int
    feeders: Sequence[FeederShare]
    statuses: Sequence[FeederStatus] = ()


def list_jobs(address: str, tls: TlsSpec | None) -> JobListing:
    """The jobs of a scheduler. Raises ClusterError if none answers, or it does not know its jobs."""
    security = security_of(tls, listens=False)
    try:
        return asyncio.run(asyncio.wait_for(_ask(address, security), _ANSWER_S))
    except (OSError, TimeoutError) as error:
        raise ClusterError(
            explain_refusal(address, tls)
            or f"no Dask scheduler answers at {address}: {error or 'no answer'}. Name the address that the scheduler "
            "has logged"
        ) from None


async def _ask(address: str, security: Security) -> JobListing:
    scheduler: Any = rpc(address, timeout=_ANSWER_S / 2, connection_args=security.get_connection_args("client"))
    try:
        facts = await scheduler.get_metadata(keys=[METADATA_KEY], default=None)
        if not facts:
            raise ClusterError(
                f"the scheduler at {address} knows of no jobs: it has no Feedline extension. Start it with `feedline "
                f"scheduler`, or `dask scheduler --preload feedline.service.scheduler.preload`"
            )
        if facts.get("wire") != WIRE_VERSION:
            raise ClusterError(
                f"the scheduler at {address} has Feedline {facts['version']}, whose jobs "
                f"this command cannot read: it is of {VERSION}. Run the `feedline jobs` of the scheduler's release"
            )
        answer = await scheduler.feedline_jobs()
        statuses = await scheduler.feedline_statuses()
        threads = await scheduler.ncores()
    finally:
        await scheduler.close_rpc()
    feeders = [unpack(FeederShare, each) for each in answer]
    return JobListing(
        workers=len(threads),
        threads=sum(threads.values()),
        feeders=feeders,
        statuses=[unpack(FeederStatus, each) for each in statuses],
    )
