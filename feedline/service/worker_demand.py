"""Decide how many threads of workers a feeder's trainers need, and report it.

Runs in: the feeder, in the thread of its loop, once a second; not where blocks are computed by threads of the feeder.
"""

from __future__ import annotations

import logging
import os
import platform
import uuid
from collections.abc import Mapping

from feedline.config.cluster_section import ClusterSpec
from feedline.loader.wire.job_reports import JobAnswer, JobReport
from feedline.service.autoscale import (
    Autoscaler,
    FeederLoad,
    LoadMeter,
    ScalingRules,
    ScalingSample,
    TrainerLoad,
    is_calm,
)
from feedline.service.scheduler.job_book import ClusterSize

logger = logging.getLogger("feedline.scaling")

# Rates are measured anew when this feeder's own threads change by more than this share: a large cluster changes its
# size all the time.
_OTHER_SIZE = 0.2
# A feeder that does not wait demands little more than it uses of a cluster that it shares: most use a part of a thread.
_CALM, _LEAST_THREADS = 1.1, 0.05


class Demand:
    """The demand of one feeder. name, fingerprint: of the pipeline, the same on all hosts of a job. job, feeder: their
    names in reports."""

    def __init__(self, name: str, fingerprint: str, spec: ClusterSpec) -> None:
        self.job, self.feeder = job_name(name, fingerprint), feeder_name()
        self._host = platform.node()
        self._spec = spec
        self._meter = LoadMeter()
        self._counts_threads = spec.kind == "scheduler"  # the demands of many feeders make up a worker
        self._autoscaler = Autoscaler(scaling_rules(spec))
        self._available = 0.0  # threads, since when rates are measured
        self._is_heard = spec.kind != "scheduler"  # whether somebody may follow what is decided

    def look(
        self, loads: Mapping[int, TrainerLoad], now_s: float, size: ClusterSize, answer: JobAnswer | None
    ) -> JobReport:
        """Take the trainers' counts, by session; returns the report of the moment. size: of the cluster. answer: the
        scheduler's last one.

        A cluster of others counts in threads: the demands of all feeders are added up and then rounded to workers.
        """
        available = size.threads if answer is None else min(float(size.threads), answer.threads)
        if abs(available - self._available) > _OTHER_SIZE * self._available:
            self._available = available
            self._meter.restart()
        self._is_heard |= answer is not None
        load = self._meter.observe(loads, now_s)
        threads = 1.0 if self._counts_threads else size.threads_per_worker
        window = self._spec.window
        decision = self._autoscaler.decide(
            ScalingSample(
                now_s=now_s,
                load=load,
                workers=available / threads,
                threads_per_worker=threads,
                most_useful=None if window is None else max(1, round(window * max(1, load.ranks) / threads)),
            )
        )
        if decision.reason is not None and self._is_heard:
            logger.info("%s needed: %s", "threads" if self._counts_threads else "workers", decision.reason)
        demand_threads = decision.workers * threads
        if self._counts_threads and is_calm(load, self._spec.autoscale.wait):
            demand_threads = min(demand_threads, _CALM * load.use_blocks_per_s * load.block_s + _LEAST_THREADS)
        return self._report(load, demand_threads)

    def first_report(self) -> JobReport:
        """The report of a job that waits for its first worker: it needs one, or the least that its spec says."""
        return self._report(self._meter.observe({}, 0.0), 1.0)

    def _report(self, load: FeederLoad, demand_threads: float) -> JobReport:
        workers = self._spec.workers
        return JobReport(
            job=self.job,
            feeder=self.feeder,
            host=self._host,
            ranks=load.ranks,
            share=self._spec.share,
            demand_threads=demand_threads,
            least_workers=0 if workers is None else workers.min,
            most_workers=None if workers is None else workers.max,
            wait_fraction=load.wait_fraction,
            starved=load.starved,
            blocks_in_flight=load.blocks_in_flight,
            block_s=load.block_s,
            blocks_per_s=load.blocks_per_s,
            busy_s_total=load.busy_s_total,
        )


def job_name(name: str, fingerprint: str) -> str:
    return f"{name}-{fingerprint[:8]}"


def feeder_name() -> str:
    """A name of this process that no other has."""
    return f"{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def scaling_rules(spec: ClusterSpec) -> ScalingRules:
    """The thresholds of `cluster.autoscale`, and the limits of `cluster.workers`."""
    limits, thresholds = spec.workers, spec.autoscale
    is_shared = spec.kind == "scheduler"
    return ScalingRules(
        # Several feeders of a job share the limits of its scheduler, which applies them to their sum.
        least_workers=0 if limits is None or is_shared else limits.min,
        most_workers=None if limits is None or is_shared else limits.max,
        unit="threads" if is_shared else "workers",
        wait=thresholds.wait,
        grow_after_s=thresholds.grow_after_s,
        shrink_after_s=thresholds.shrink_after_s,
    )
