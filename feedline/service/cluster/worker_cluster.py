"""Compute blocks on the workers of a Dask cluster: processes of this machine, or a cluster elsewhere.

Runs in: the feeder.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from feedline.blocks.environment import check_environment
from feedline.blocks.jobs import check_job
from feedline.blocks.reach import Reach
from feedline.blocks.request import Job
from feedline.resources.instructions import choose_cpu
from feedline.service.cluster.blame import EXCLUDED_S, Exclusions
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.reserved_port import ReservedPort
from feedline.service.cluster.worker_checks import WorkerRead, check_reach, check_workers, read_again
from feedline.spec.cluster_section import ClusterSpec
from feedline.transforms.registry.user_functions import RequiredFunction, check_functions

if TYPE_CHECKING:
    from feedline.loader.wire.job_reports import JobReport

logger = logging.getLogger(__name__)

# The search for a scheduler that does not answer ends with the process; its own processes start soon.
_GIVE_UP_S = {"scheduler": 1.0, "provider": 30.0}


class WorkerCluster(Cluster):
    """Workers in processes of their own, on this host or others.

    early: return before the cluster is up; what needs it waits for it, and raises the ClusterError of a failed start.
    Workers are then checked before their first task, with `code`, the user's functions. elastic: the number of workers
    follows the reports within `cluster.workers`; else it is the most. report: the job's first.
    """

    packed = True

    def __init__(
        self,
        spec: ClusterSpec,
        *,
        threads: int,
        scratch: str | None,
        early: bool,
        elastic: bool,
        report: JobReport | None,
        code: Sequence[RequiredFunction],
    ) -> None:
        port = ReservedPort() if spec.dashboard and not spec.is_elsewhere else None
        cpu = choose_cpu(spec.cpu, shared=spec.is_elsewhere)
        self._code = tuple(code)
        self._exclusions = Exclusions()
        self._give_up_s = _GIVE_UP_S.get(spec.kind)
        if spec.provider is not None:  # some classes cannot be imported in another thread than the main one
            from feedline.service.cluster.provider import load_provider  # noqa: PLC0415 -- imports Dask

            load_provider(spec.provider)
        options = {"scratch": scratch, "elastic": elastic, "report": report}
        super().__init__(spec, threads=threads, cpu=cpu, port=port, early=early, options=options)
        if early:
            self.connect()

    def threads(self) -> int:
        return self.share.threads(self.connection.threads())

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
        self._check(check_environment, self.environment)
        if code:
            self._check(check_functions, tuple(code))

    def check_job(self, job: Job, reach: Reach | None = None) -> None:
        self._check_once()
        self.connection.await_scheduler()
        if reach is not None and self._spec.is_elsewhere:
            check_reach(self.client, reach, self.exclude, self.share.route)
        self._check(check_job, job)

    def _check(self, check: Callable[[Any], None], argument: Any) -> None:
        check_workers(self.client, check, argument, self.exclude, self.share.route)

    def _check_once(self) -> None:
        if self._unchecked:
            self.check_workers(self._code)

    def map(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        self._check_once()
        if not self._spec.is_elsewhere:
            return self._connected.map(function, arguments, self.preferences)
        results = self._connected.map(WorkerRead(function), arguments, self.preferences)
        return read_again(function, arguments, results, self._leave_out)

    def _leave_out(self, worker: str, why: str) -> bool:
        """Exclude a worker; whether others are left."""
        self.exclude(worker, why)
        return self.eligible_workers(beyond_route=True) is not None
