"""What computes a feeder's blocks: the interface of its two back ends, and what they share.

Runs in: the feeder. The back ends are this host, with threads and worker processes of the feeder, and the workers of a
Dask cluster that was started here or is named by its address; `open_cluster` has both, and chooses.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from feedline.blocks.environment import Environment, Reach, environment_at
from feedline.blocks.request import Job
from feedline.resources.instructions import choose_cpu
from feedline.service.cluster.attempts import Submission
from feedline.service.cluster.fair_share import FairShare
from feedline.service.cluster.local_tasks import LocalTask
from feedline.service.cluster.request import ClusterRequest
from feedline.service.cluster.task_places import TaskPlaces
from feedline.service.monitoring.finished_block import ObserveBlock
from feedline.service.scheduler.job_book import ClusterSize
from feedline.transforms.registry.user_functions import RequiredFunction

if TYPE_CHECKING:
    from feedline.service.cluster.dask_cluster import DaskCluster
    from feedline.service.cluster.result_fetcher import FetchedTask

BlockTask: TypeAlias = "FetchedTask | LocalTask"


class Cluster(ABC):
    """What computes the blocks of a pipeline, whose workers are checked before their first task.

    packed: whether results leave this host. share: of a cluster with other jobs. trainers: that the feeder serves.
    on_block: called with each block that has arrived. number: of the connection to a scheduler, counted from 0.
    dashboard: the address of Dask's, or None. dask: the Dask cluster, if it is up: for reports to its scheduler.
    """

    packed: ClassVar[bool]
    number: int = 0
    dashboard: str | None = None
    dask: DaskCluster | None = None

    def __init__(self, request: ClusterRequest) -> None:
        self.trainers = 1
        self.on_block: ObserveBlock | None = None
        self.share = FairShare()
        self._request, self._spec = request, request.spec
        self._cpu = choose_cpu(self._spec.cpu, shared=self._spec.is_elsewhere)

    # -- blocks ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, submission: Submission) -> BlockTask | None:
        """Start a block's task; None if the scheduler does not answer."""

    def fileno(self) -> int:
        """What the feeder's loop waits for, before it calls `advance`; -1: nothing."""
        return -1

    def advance(self) -> None:  # noqa: B027 -- nothing to do where nothing is waited for
        """Take the results that have come."""

    @abstractmethod
    def map(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        """function(argument) for each argument, in order, on the cluster; repeated if the scheduler is lost."""

    # -- workers --------------------------------------------------------------------------------------------------

    @abstractmethod
    def threads(self) -> int:
        """This job's part of the threads of all workers, as of a few seconds ago; at least 1, also without workers."""

    @abstractmethod
    def size(self) -> ClusterSize:
        """The workers, those of the feeder counted by processes, and their threads."""

    @property
    def form(self) -> str:
        """What computes blocks now: of the kinds of `ClusterSpec`."""
        return self._spec.kind

    @abstractmethod
    def members(self) -> frozenset[str]:
        """The addresses of all workers, as of a few seconds ago."""

    @abstractmethod
    def eligible_workers(self, *, beyond_route: bool = False) -> frozenset[str] | None:
        """The workers that may get blocks: of the route, if it has any; else all that are not excluded (None: all)."""

    @abstractmethod
    def exclude(self, worker: str, why: str) -> None:
        """Give a worker's host no blocks for a while; logs the first time."""

    @abstractmethod
    def check_workers(self, code: Sequence[RequiredFunction] = ()) -> None:
        """Wait for a worker, and check that workers have our versions and the user's functions. Raises ClusterError if
        there is no worker, or no fit one."""

    @abstractmethod
    def check_job(self, job: Job, reach: Reach | None = None) -> None:
        """Send a job to the route's workers, which check that they can compute it. Raises ClusterError if none can.

        reach: what workers on other hosts must read; unchecked if this process cannot read it either.
        """

    @abstractmethod
    def places_of(
        self, keys: Collection[str], among: frozenset[str] | None = None, *, stacks: bool
    ) -> Future[TaskPlaces | None]:
        """Where tasks are, once it is known; see `SchedulerConnection.places_of`."""

    @property
    def environment(self) -> Environment:
        """The environment that every worker must have, so that blocks have the same bytes on each."""
        return environment_at(self._cpu)

    def now_s(self) -> float:
        """The scheduler's clock, which compares the blocks of all jobs; seconds since 1970."""
        return self.share.now_s(time.monotonic(), time.time())

    def threads_per_trainer(self) -> int:
        """The threads that each of the feeder's trainers can count on: their equal share, rounded up."""
        return -(-self.threads() // self.trainers)

    def cores_per_trainer(self) -> float:
        """The cores of the workers' hosts that each of the feeder's trainers can count on; 0: unknown."""
        return 0.0

    @property
    def fixed_window(self) -> int | None:
        return self._spec.window

    # -- its life -------------------------------------------------------------------------------------------------

    def alive(self) -> bool:
        return True

    @abstractmethod
    def look(self, *, waiting: bool) -> None:
        """Look after the cluster, once a second. waiting: a trainer waits. Raises ClusterError."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection, and the cluster if it was started here; tasks in threads of this process end before."""
