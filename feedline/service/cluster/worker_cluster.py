"""Compute blocks on the workers of a Dask cluster: processes of this machine, or a cluster elsewhere.

Runs in: the feeder.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from feedline.blocks.environment import check_environment
from feedline.blocks.jobs import check_job
from feedline.blocks.reach import Reach
from feedline.blocks.request import Job
from feedline.service.cluster.blame import EXCLUDED_S, Exclusions
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.worker_checks import WorkerRead, check_reach, check_workers, read_again
from feedline.transforms.registry.user_functions import RequiredFunction, check_functions

logger = logging.getLogger(__name__)


class WorkerCluster(Cluster):
    """Workers in processes of their own, on this host or others."""

    packed = True

    @cached_property
    def _exclusions(self) -> Exclusions:
        return Exclusions()

    def threads(self) -> int:
        return self.share.threads(self.connection.threads())

    def cores_per_trainer(self) -> float:
        return self.share.cores(self.threads_per_trainer(), self.connection.threads())

    def eligible_workers(self, *, beyond_route: bool = False) -> frozenset[str] | None:
        now_s = time.monotonic()
        if not beyond_route and (allowed := self._exclusions.allowed(self.share.route, now_s)):
            return allowed
        return self._exclusions.eligible_workers(self.members(), now_s) if self._exclusions.any(now_s) else None

    def exclude(self, worker: str, why: str) -> None:
        members = self.members() if worker else ()
        if len(members) > 1 and self._exclusions.exclude(worker, members, time.monotonic()):
            logger.warning("worker %s gets no blocks for %.0f s: %s", worker, EXCLUDED_S, why)

    def check_workers(self, code: Sequence[RequiredFunction] = ()) -> None:
        self._unchecked = False
        self.connection.await_workers()
        self.connection.refresh_members()
        self._check(check_environment, self.environment)
        if code:
            self._check(check_functions, tuple(code))

    def check_job(self, job: Job, reach: Reach | None = None) -> None:
        self._check_once()
        self.connection.await_scheduler()
        self.connection.refresh_members()
        if reach is not None and self._spec.is_elsewhere:
            check_reach(self.client, reach, self.exclude, self.share.route)
        self._check(check_job, job)

    def _check(self, check: Callable[[Any], None], argument: Any) -> None:
        check_workers(self.client, check, argument, self.exclude, self.share.route)

    def map(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        self._check_once()
        if not self._spec.is_elsewhere:
            return self._connected.map(function, arguments, self.preferences)
        results = self._connected.map(WorkerRead(function), arguments, self.preferences)
        return read_again(function, arguments, results, self._leave_out)

    def _leave_out(self, worker: str, why: str) -> bool:
        """Exclude a worker; whether others are left."""
        self.connection.refresh_members()
        self.exclude(worker, why)
        return self.eligible_workers(beyond_route=True) is not None
