"""Decide how many threads of workers a feeder's trainers need, and report it.

Runs in: the feeder, in the thread of its loop, once a second; not where blocks are computed by threads of the feeder.
"""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import Mapping

from feedline.service.scaling.load import FeederLoad, LoadMeter, TrainerLoad
from feedline.service.scheduler.job_reports import JobReport
from feedline.spec.cluster_section import ClusterSpec


class Demand:
    """The demand of one feeder. name, fingerprint: of the pipeline, the same on all hosts of a job."""

    def __init__(self, name: str, fingerprint: str, spec: ClusterSpec) -> None:
        host = platform.node()
        self._job = f"{name}-{fingerprint[:8]}"
        self._host = host
        self._feeder = f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._spec = spec
        self._meter = LoadMeter()

    def look(self, loads: Mapping[int, TrainerLoad], now_s: float) -> JobReport:
        """Take the trainers' counts, by session; returns the report of the moment."""
        load = self._meter.observe(loads, now_s)
        return self._report(load, load.pace_blocks_per_s * load.block_s)

    def _report(self, load: FeederLoad, demand_threads: float) -> JobReport:
        return JobReport(
            job=self._job,
            feeder=self._feeder,
            host=self._host,
            ranks=load.ranks,
            share=self._spec.share,
            policy="stall",
            demand_threads=demand_threads,
            least_workers=self._spec.workers or 0,
            most_workers=self._spec.workers,
            wait_fraction=load.wait_fraction,
            starved=load.starved,
            steps_ready=load.steps_ready,
            blocks_in_flight=load.blocks_in_flight,
            block_s=load.block_s,
            blocks_per_s=load.blocks_per_s,
            busy_s_total=load.busy_s_total,
        )
