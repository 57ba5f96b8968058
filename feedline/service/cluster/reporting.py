"""Send a feeder's reports to its scheduler, on the event loop of Dask's client.

Runs in: the feeder. The feeder's own loop hands a report over and never waits for the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future as Handle
from typing import Any

from distributed import Client

from feedline.service.dispatch.fair_share import FairShare
from feedline.service.scheduler.extension import METADATA_KEY
from feedline.service.scheduler.job_reports import JobAnswer, JobReport

logger = logging.getLogger(__name__)

_EVERY_S = 2.0
_ANSWER_S = 10.0
_GREETING_S = 2.0


class Reporter:
    """Sends reports, and hands the answers to `share`."""

    def __init__(self, share: FairShare, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._sent_s = float("-inf")
        self._sending: Handle[None] | None = None
        self._client: Client | None = None  # that was asked whether its scheduler has the extension
        self._is_extended = False

    def send(self, client: Client, report: JobReport) -> None:
        """Send a report, unless one was sent less than two seconds ago or is under way."""
        now_s = self._clock()
        if now_s - self._sent_s < _EVERY_S or (self._sending is not None and not self._sending.done()):
            return
        self._sent_s = now_s
        loop: Any = client.loop
        self._sending = asyncio.run_coroutine_threadsafe(self._send(client, report), loop.asyncio_loop)

    def greet(self, client: Client) -> None:
        """Ask a scheduler that was just connected to for its clock, so that the first blocks have their place among
        those of other jobs. A scheduler that does not answer is asked later."""
        with contextlib.suppress(OSError, TimeoutError):
            client.sync(self._meet, client, callback_timeout=_GREETING_S)

    async def _meet(self, client: Client) -> None:
        """Find out whether the scheduler has the extension, and by how much its clock differs."""
        scheduler: Any = client.scheduler
        self._is_extended = bool(await scheduler.get_metadata(keys=[METADATA_KEY], default=None))
        self._share.begin(float(await scheduler.feedline_clock()) - time.time() if self._is_extended else 0.0)
        self._client = client
        if not self._is_extended:
            logger.warning(
                "the Dask scheduler has no Feedline extension: it shares its workers without regard to jobs, and does "
                "not scale them. Start it with `feedline scheduler`, or `dask scheduler --preload "
                "feedline.service.scheduler.preload`"
            )

    async def _send(self, client: Client, report: JobReport) -> None:
        scheduler: Any = client.scheduler
        try:
            async with asyncio.timeout(_ANSWER_S):
                if client is not self._client:
                    await self._meet(client)
                if self._is_extended:
                    answer = await scheduler.feedline_report(report=report.to_json())
                    self._share.update(JobAnswer.from_json(answer), self._clock())
        except (OSError, TimeoutError):  # the scheduler is away, or busy: the next report follows soon
            return
