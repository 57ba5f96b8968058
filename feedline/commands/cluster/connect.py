"""Connect a command to its pipeline's cluster.

Runs in: the process of the command.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from feedline.loader.ring.launch import feeder_threads
from feedline.loader.ring.rendezvous import job_fingerprint
from feedline.loader.wire.job_reports import JobReport
from feedline.planning.binding.table_features import required_functions
from feedline.resources.cgroups import available_cores
from feedline.resources.scratch import make_scratch
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.scaling.demand import Demand
from feedline.spec import PipelineSpec


def first_report(spec: PipelineSpec) -> JobReport:
    """What a command reports to the scheduler: it needs one worker, or the least that `cluster.workers` says."""
    return Demand(spec.name, job_fingerprint(spec), spec.cluster).first_report()


@contextmanager
def pipeline_cluster(spec: PipelineSpec) -> Iterator[Cluster | None]:
    """The pipeline's cluster, its workers checked; None if its blocks are computed by threads."""
    if spec.cluster.kind == "threads":
        yield None
        return
    scratch = make_scratch()
    try:
        # Worker processes of this machine inherit it: a terminal sends Ctrl-C to them, too, but this process ends them
        # in order. A scheduler or a platform may take minutes: a thread connects, and Ctrl-C interrupts the wait.
        own = spec.cluster.kind == "processes"
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if own else signal.getsignal(signal.SIGINT)
        try:
            threads, report = feeder_threads(spec, cores=available_cores()), first_report(spec)
            cluster = open_cluster(spec.cluster, threads=threads, scratch=scratch, early=not own, report=report)
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            cluster.check_workers(required_functions(spec))
            yield cluster
        finally:
            cluster.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
