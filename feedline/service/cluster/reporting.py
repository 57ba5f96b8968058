"""Send a feeder's reports to its scheduler, on the event loop of Dask's client.

Runs in: the feeder. The feeder's own loop hands a report over and never waits for the answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future as Handle
from typing import Any

from distributed import Client

from feedline.service.scheduler.extension import METADATA_KEY
from feedline.service.scheduler.job_reports import JobAnswer, JobReport

logger = logging.getLogger(__name__)

_EVERY_S = 2.0
_ANSWER_S = 10.0
_ASK_AGAIN_S = 60.0  # whether a scheduler has the extension by now


class Reporter:
    """Sends reports. `answer`: the scheduler's last one; None before the first, and from one without our extension."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent_s = float("-inf")
        self._sending: Handle[None] | None = None
        self._client: Client | None = None  # that was asked whether its scheduler has the extension
        self._is_extended = self._has_warned = False
        self._asked_s = float("-inf")
        self.answer: JobAnswer | None = None

    def send(self, client: Client, report: JobReport) -> None:
        """Send a report, unless one was sent less than two seconds ago or is under way."""
        now_s = self._clock()
        if now_s - self._sent_s < _EVERY_S or (self._sending is not None and not self._sending.done()):
            return
        self._sent_s = now_s
        loop: Any = client.loop
        self._sending = asyncio.run_coroutine_threadsafe(self._send(client, report), loop.asyncio_loop)

    async def _send(self, client: Client, report: JobReport) -> None:
        scheduler: Any = client.scheduler
        try:
            async with asyncio.timeout(_ANSWER_S):
                is_due = not self._is_extended and self._clock() - self._asked_s >= _ASK_AGAIN_S
                if client is not self._client or is_due:
                    self._is_extended = bool(await scheduler.get_metadata(keys=[METADATA_KEY], default=None))
                    self._client, self._asked_s = client, self._clock()
                    self.answer = None
                    if not self._is_extended and not self._has_warned:
                        self._has_warned = True
                        logger.warning(
                            "the Dask scheduler has no Feedline extension: it shares its workers without regard to "
                            "jobs, and does not scale them. Start it with `feedline scheduler`, or `dask scheduler "
                            "--preload feedline.service.scheduler.preload`"
                        )
                if self._is_extended:
                    self.answer = JobAnswer.from_json(await scheduler.feedline_report(report=report.to_json()))
        except (OSError, TimeoutError):  # the scheduler is away, or busy: the next report follows soon
            return
