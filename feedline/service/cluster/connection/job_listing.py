"""Ask a scheduler for its jobs.

Runs in: the process of a command, without a Dask client: a question, an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Security
from distributed.core import rpc

from feedline.errors import ClusterError
from feedline.loader.wire.codec import WIRE_VERSION, unpack
from feedline.loader.wire.job_reports import FeederShare
from feedline.loader.wire.run_status import FeederStatus
from feedline.service.scheduler.extension import METADATA_KEY
from feedline.service.tls.refused_connection import explain_refusal
from feedline.service.tls.security import security_of
from feedline.spec.cluster_section import TlsSpec
from feedline.version import VERSION

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
