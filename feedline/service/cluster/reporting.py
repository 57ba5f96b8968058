"""Send a job's reports to its scheduler, from the event loop of Dask's client.

Runs in: every process that computes on a cluster whose workers are processes. The feeder's own loop leaves its reports
here, and never waits for the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import field, replace
from typing import Any

from distributed import Client
from tornado.ioloop import PeriodicCallback

from feedline.dataclass import dataclass
from feedline.loader.wire.codec import WIRE_VERSION, pack, unpack
from feedline.loader.wire.job_reports import LOST_TOPIC, JobAnswer, JobReport
from feedline.loader.wire.run_status import FeederStatus
from feedline.service.cluster.fair_share import FairShare
from feedline.service.scheduler.extension import METADATA_KEY
from feedline.service.scheduler.routes import route_digest
from feedline.version import VERSION

logger = logging.getLogger(__name__)

# Longer than a worker is likely to be out of the route, or between two blocks that were submitted before it left.
IDLE_S = 10.0


@dataclass(slots=True)
class IdleConnections:
    """Since when workers that are not of the route have connections that carry nothing.

    Dask keeps a connection to each worker that a result was fetched from until it has 512. Those of workers that left
    the feeder's route would add up to all workers of a cluster.
    """

    _since_s: dict[str, float] = field(default_factory=dict)  # by address

    def close_others(self, pool: Any, route: Collection[str], now_s: float) -> None:
        """Close connections to workers outside of the route that were idle for `IDLE_S`. Called every few seconds.

        pool: `distributed.core.ConnectionPool`. route: empty if all workers compute for the client.
        """
        idle: set[str] = set()
        if route:
            idle = {
                address
                for address, open_ones in pool.available.items()
                if open_ones and address not in route and not pool.occupied.get(address)
            }
        self._since_s = {address: self._since_s.get(address, now_s) for address in idle}
        for address, since_s in self._since_s.items():
            if now_s - since_s >= IDLE_S:
                pool.remove(address, reason="idle")


# For so long the most that was asked for stays: longer than the pause between two waves.
HELD_S = 10.0


@dataclass(slots=True)
class PassDemand:
    """The threads of workers that all passes of a process can use: counts, footers, fits.

    A pass can use a thread for each task that has not ended, and asks for more than one only when it has lasted
    `grow_after_s`, as long as a trainer would have to wait: docs/decisions/0022-workers-follow-waiting-trainers.md.
    """

    grow_after_s: float
    _since_s: float | None = None  # the beginning of the pass
    _recent: deque[tuple[float, float]] = field(default_factory=deque)  # times and demands

    def look(self, open_tasks: int, now_s: float) -> float:
        """The threads that the tasks which have not ended can use; 0 without a pass. Called every few seconds."""
        if open_tasks and self._since_s is None:
            self._since_s = now_s
        demand = 0.0
        if open_tasks and self._since_s is not None:
            demand = float(open_tasks) if now_s - self._since_s >= self.grow_after_s else 1.0
        self._recent.append((now_s, demand))
        while self._recent[0][0] < now_s - HELD_S:
            self._recent.popleft()
        most = max(each for _, each in self._recent)
        if not most:
            self._since_s = None
        return most


_scaling_logger = logging.getLogger("feedline.scaling")

_EVERY_S = 2.0
_ANSWER_S = 10.0
_GREETING_S = 2.0


class Reporter:
    """Sends the last report, and the feeder's status, every two seconds while there is a connection, and hands the
    answers to `share`.

    A cluster without workers starts one for the first report, so it must not wait for the first trainer.
    report: the one that is sent (None: none yet). status: the feeder's, if there is one. passes: what they demand;
    `open_tasks`: each counts the tasks of a pass that have not ended. is_remote: whether the scheduler is in another
    process, which logs lost workers there.
    """

    def __init__(
        self,
        share: FairShare,
        report: JobReport | None,
        passes: PassDemand,
        *,
        is_remote: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.report = report
        self.status: Callable[[], FeederStatus] | None = None
        self.open_tasks: list[Callable[[], int]] = []
        self._passes = passes
        self._pass_threads = 0.0
        self._share = share
        self._clock = clock
        self._is_remote = is_remote
        self._heard: object = None  # the connection over which lost workers are heard of
        self._client: Client | None = None  # that was asked whether its scheduler has the extension
        self._is_extended = False
        self._idle = IdleConnections()

    def greet(self, client: Client) -> None:
        """Ask a scheduler that was just connected to for its clock, and for a route if there is a report, so that the
        first blocks have their place among those of other jobs. One that does not answer is asked later."""
        with contextlib.suppress(OSError, TimeoutError):
            client.sync(self._send, client, callback_timeout=_GREETING_S)

    def follow(self, client: Client) -> None:
        """Send reports to the scheduler of a client until that is closed."""
        loop: Any = client.loop
        loop.add_callback(self._begin, client)

    async def _begin(self, client: Client) -> None:
        async def send() -> None:
            if client.status == "running":
                await self._send(client)
            elif client.status == "closed":
                callback.stop()

        callback = PeriodicCallback(send, 1000 * _EVERY_S)
        callback.start()
        await send()

    async def _meet(self, client: Client) -> None:
        """Find out whether the scheduler has the extension, and by how much its clock differs."""
        scheduler: Any = client.scheduler
        facts = await scheduler.get_metadata(keys=[METADATA_KEY], default=None)
        self._is_extended = facts is not None and facts.get("wire") == WIRE_VERSION
        self._share.begin(float(await scheduler.feedline_clock()) - time.time() if self._is_extended else 0.0)
        self._client = client
        if facts is None:
            logger.warning(
                "the Dask scheduler has no Feedline extension: it shares its workers without regard to jobs, and does "
                "not scale them. Start it with `feedline scheduler`, or `dask scheduler --preload "
                "feedline.service.scheduler.preload`"
            )
        elif not self._is_extended:
            logger.warning(
                "the Dask scheduler has Feedline %s, which does not understand the reports of %s: it shares its "
                "workers without regard to this job, and does not scale them for it. Install one version everywhere",
                facts["version"],
                VERSION,
            )
        elif facts["version"] != VERSION:
            logger.info("the Dask scheduler has Feedline %s, this process %s", facts["version"], VERSION)

    def next_report(self) -> JobReport | None:
        """The last report, with the demand of passes if that is larger. Such a job is starved: it takes what it gets of
        the threads that it shares with others."""
        open_tasks = sum(count() for count in tuple(self.open_tasks))
        before, self._pass_threads = self._pass_threads, self._passes.look(open_tasks, self._clock())
        report = self.report
        if report is None or self._pass_threads <= report.demand_threads:
            return report
        if self._pass_threads > max(before, 1.0):
            _scaling_logger.info("workers needed: %d tasks of a count or fit are open", open_tasks)
        return replace(report, demand_threads=self._pass_threads, starved=True)

    async def _send(self, client: Client) -> None:
        scheduler: Any = client.scheduler
        try:
            async with asyncio.timeout(_ANSWER_S):
                if client is not self._client:
                    await self._meet(client)
                self._hear_losses(client)
                if self._is_extended and (report := self.next_report()) is not None:
                    report = replace(report, route=route_digest(self._share.route), client=client.id)
                    status = b"" if self.status is None else pack(self.status())
                    answer = await scheduler.feedline_report(report=pack(report), status=status)
                    self._share.update(unpack(JobAnswer, answer), self._clock())
                    self._idle.close_others(client.rpc, self._share.route, self._clock())
        except (OSError, TimeoutError):  # the scheduler is away, or busy: the next report follows soon
            return

    def _hear_losses(self, client: Client) -> None:
        """Subscribe to the losses of workers, anew over each connection: another scheduler knows no subscriptions."""
        if self._is_remote and self._is_extended and client.scheduler_comm is not self._heard:
            self._heard = client.scheduler_comm
            client.subscribe_topic(LOST_TOPIC, self._say_lost)

    def _say_lost(self, event: tuple[float, str]) -> None:
        _, worker = event
        if not self._share.route or worker in self._share.route:
            logger.warning("worker %s is lost: blocks that it had are computed on others", worker)
