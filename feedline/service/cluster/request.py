"""What a process asks of its cluster, before there is one.

Pure; imports no Dask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feedline.config.cluster_section import ClusterSpec
from feedline.config.monitoring_section import MetricsSpec
from feedline.dataclass import dataclass
from feedline.transforms.registry.user_functions import RequiredFunction

if TYPE_CHECKING:
    from feedline.loader.wire.job_reports import JobReport
    from feedline.service.pool.spawner import Spawner


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """The cluster of `spec`, each of whose workers has so many threads; without Dask, those of this host in all.

    scratch: a folder for the workers' files (None: Dask's). early: return before it is up; what needs it waits for it,
    and raises the ClusterError of a failed start. spawner: starts processes of this host that compute blocks, at most
    `processes` (None: threads compute). threads_first: threads compute as long as they rarely wait for each other.
    elastic: the number of workers follows the reports within `cluster.workers`; else it is the most. report: the job's
    first, sent until there is another one. code: the user's functions, which workers in processes of their own must
    have. metrics: of the feeder; worker processes that are started here serve theirs beside it.
    """

    spec: ClusterSpec
    threads: int
    scratch: str | None = None
    early: bool = False
    spawner: Spawner | None = None
    processes: int = 1
    threads_first: bool = False
    elastic: bool = False
    report: JobReport | None = None
    code: Sequence[RequiredFunction] = ()
    metrics: MetricsSpec | None = None
