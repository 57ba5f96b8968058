"""A Dask scheduler's extension: it answers feeders' reports, and Dask's question how many workers there should be.

Runs in: the scheduler, on its event loop. Adaptive clusters ask for `adaptive_target` directly; the Kubernetes operator
asks `GET /api/v1/adaptive_target`, which is all that is served here: Dask's module for that path would serve an
unauthenticated `retire_workers` as well.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.ioloop import PeriodicCallback
from tornado.web import RequestHandler

from feedline.errors import ClusterError
from feedline.loader.wire.codec import WIRE_VERSION, pack, unpack
from feedline.loader.wire.job_reports import LOST_TOPIC, FeederShare, JobReport
from feedline.loader.wire.run_status import FeederStatus
from feedline.service.dask_patches.scheduler_patches import TaskQueue, finish_before_retirement, replace_adaptive_target
from feedline.service.dask_patches.steady_loop import steady_clock, steady_scheduler
from feedline.service.page.dashboard import DashboardOnDemand
from feedline.service.scheduler.job_book import START_S, ClusterSize, JobBook
from feedline.service.scheduler.scheduler_metrics import SCHEDULER_METRICS, SchedulerState, job_rows
from feedline.service.worker_cores import count_cores
from feedline.version import VERSION

# --------------------------------------------------------------------------------------------------------------------
# Where a Dask scheduler's process finds the statuses of its feeders: the one source of the live page and of metrics.
# source = statuses_of(scheduler) statuses = [] if source is None else source()

# Call it as often as needed, in any thread: it returns the last status of each feeder that is alive, by job and feeder.
StatusSource: TypeAlias = Callable[[], Sequence[FeederStatus]]


def offer_statuses(scheduler: Scheduler, source: StatusSource) -> None:
    """Make the statuses of a scheduler's feeders available in its process, among its extensions. Replaces an earlier
    source."""
    scheduler.extensions["feedline-status"] = source


def statuses_of(scheduler: Scheduler) -> StatusSource | None:
    """The source of a scheduler; None before its first feeder has begun, where it is one of threads."""
    source: StatusSource | None = scheduler.extensions.get("feedline-status")
    return source


# --------------------------------------------------------------------------------------------------------------------

logger = logging.getLogger("feedline.scheduler")

# Key of the scheduler's metadata that says that it has this extension, with its version and its wire's.
METADATA_KEY = "feedline"
_UNKNOWN = (
    f"the number of workers is unknown: the scheduler started less than {START_S:.0f} s ago, and jobs may connect "
    "again. Keep the size, and ask later"
)
# Why a worker is removed that did not say that it closes: its connection ended, it was silent, or it came again.
_LOST = ("handle-worker-cleanup", "check-worker-ttl", "feedline-forget")


class JobExtension(SchedulerPlugin):
    """The jobs of a scheduler. Once per scheduler: see `install`."""

    name = "feedline-jobs"
    idempotent = True

    def __init__(self, scheduler: Scheduler, *, clock: Callable[[], float] | None = None) -> None:
        self._scheduler = scheduler
        self._clock = clock or steady_clock()  # near what feeders without an answer count by
        self.book = JobBook()
        self._joined = self._left = self._lost = 0  # workers so far
        self._cores: int | None = None  # of all hosts; None: workers have changed since they were counted
        self._statuses: dict[str, bytes] = {}  # by feeder
        self._unpacked: dict[bytes, FeederStatus] = {}  # those that somebody has looked at
        self._queue = TaskQueue(scheduler)

    def feedline_report(self, report: bytes, status: bytes = b"") -> bytes:
        """Keep a feeder's `JobReport`, and its `FeederStatus` if it sends one; returns a `JobAnswer`, packed as
        well."""
        scheduler: Any = self._scheduler
        received = unpack(JobReport, report)
        now_s = self._clock()
        answer = self.book.record(received, now_s, self._size(), scheduler.workers.keys())
        if status:
            self._statuses[received.feeder] = status
        self._queue.bypass(bool(self.book.routes), f"feedline-routes-{now_s}")
        return pack(answer)

    def feedline_clock(self) -> float:
        return self._clock()

    def feedline_jobs(self) -> list[bytes]:
        return [pack(share) for share in self._feeder_shares()]

    def _feeder_shares(self) -> list[FeederShare]:
        now_s = self._clock()
        size = self._size()
        parts, route_of = self.book.threads_by_feeder(now_s, size), self.book.routes.size
        return [
            FeederShare(report=each, threads=parts[each.feeder], workers=route_of(each.feeder) or size.workers)
            for each in self.book.reports(now_s)
        ]

    def state(self) -> SchedulerState:
        size = self._size()
        return SchedulerState(
            workers=size.workers,
            threads=size.threads,
            wanted=self.adaptive_target() if self.book.is_known(self._clock()) else None,
            joined=self._joined,
            left=self._left,
            lost=self._lost,
            jobs=job_rows(self._feeder_shares()),
        )

    def statuses(self) -> list[FeederStatus]:
        """The last status of each feeder that is alive, by job and feeder; see `status_source`."""
        before, packed = self._unpacked, self._packed_statuses()
        self._unpacked = {each: before.get(each) or unpack(FeederStatus, each) for each in packed}
        return list(self._unpacked.values())

    def feedline_statuses(self) -> list[bytes]:
        return self._packed_statuses()

    def _packed_statuses(self) -> list[bytes]:
        alive = [report.feeder for report in self.book.reports(self._clock())]
        self._statuses = {feeder: self._statuses[feeder] for feeder in alive if feeder in self._statuses}
        return list(self._statuses.values())

    def adaptive_target(self, target_duration: object = None) -> int:
        """The workers that all jobs together need. target_duration: of Dask's interface; of no use here."""
        return self.book.demand_workers(self._clock(), self._size())

    def answer_target(self, target_duration: object = None) -> int:
        """The same for another process. target_duration: of Dask's Adaptive, which starts its scheduler.

        Anybody else gets an error for half a minute after the scheduler's start, and keeps the size: unknown is not 0.
        """
        if target_duration is None and not self.book.is_known(self._clock()):
            raise ClusterError(_UNKNOWN)
        return self.adaptive_target()

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Forget the feeder whose connection is lost. Dask calls this."""
        self.book.forget_client(client)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Say that a worker has joined. Dask calls this."""
        self._cores = None
        size = self._size()
        self._joined += 1
        logger.info("worker %s joined: %d workers, %d threads", worker, size.workers, size.threads)

    def remove_worker(self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **_: object) -> None:
        """Say that a worker has left, or is lost; of the latter, feeders hear. Dask calls this."""
        self._cores = None
        size = self._size()
        if stimulus_id.startswith(_LOST):
            self._lost += 1
            logger.warning("worker %s is lost: %d workers, %d threads", worker, size.workers, size.threads)
            scheduler.log_event(LOST_TOPIC, worker)
        else:
            self._left += 1
            logger.info("worker %s left: %d workers, %d threads", worker, size.workers, size.threads)

    def tick(self) -> None:
        self.book.tick(self._clock())

    def restart(self, scheduler: Scheduler) -> None:
        """Say again that there is an extension. Dask calls this when a client has cleared the scheduler."""
        scheduler.set_metadata(keys=[METADATA_KEY], value={"wire": WIRE_VERSION, "version": VERSION})

    def _size(self) -> ClusterSize:
        scheduler: Any = self._scheduler
        if self._cores is None:
            self._cores = count_cores(scheduler.workers.values())
        return ClusterSize(workers=len(scheduler.workers), threads=int(scheduler.total_nthreads), cores=self._cores)


class _TargetHandler(RequestHandler):
    def initialize(self, extension: JobExtension) -> None:
        self._extension = extension

    def get(self) -> None:
        self.set_header("Content-Type", "application/json")
        try:
            self.write(json.dumps({"workers": self._extension.answer_target()}))
        except ClusterError as error:
            self.set_status(503)  # the operator keeps the size
            self.write(json.dumps({"error": str(error)}))


def install(scheduler: Scheduler) -> JobExtension:
    """Extend a scheduler that has started, or return the extension that it has."""
    existing: Any = scheduler.plugins.get(JobExtension.name)
    if existing is not None:
        assert isinstance(existing, JobExtension)
        return existing
    extension = JobExtension(scheduler)
    scheduler.add_plugin(extension)
    scheduler.handlers["feedline_report"] = extension.feedline_report
    scheduler.handlers["feedline_clock"] = extension.feedline_clock
    scheduler.handlers["feedline_jobs"] = extension.feedline_jobs
    scheduler.handlers["feedline_statuses"] = extension.feedline_statuses
    offer_statuses(scheduler, extension.statuses)
    replace_adaptive_target(scheduler, extension.adaptive_target, extension.answer_target)
    extension.restart(scheduler)
    extension.book.begin(extension.feedline_clock())
    callback = PeriodicCallback(extension.tick, 1000)
    scheduler.periodic_callbacks["feedline-tick"] = callback
    callback.start()
    finish_before_retirement(scheduler)
    steady_scheduler(scheduler)
    application: Any = getattr(scheduler, "http_application", None)  # None: without an HTTP server
    if application is not None:
        application.add_handlers(r".*", [(r"/api/v1/adaptive_target", _TargetHandler, {"extension": extension})])
        from feedline.service.monitoring.prometheus_server import add_to_dask  # noqa: PLC0415 -- most have none

        add_to_dask("scheduler", SCHEDULER_METRICS, extension.state)  # to `/metrics`, answered on the scheduler's loop
        application.add_application(DashboardOnDemand(scheduler, extension.statuses))
    return extension
