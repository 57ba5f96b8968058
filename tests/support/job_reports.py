"""A feeder's report to its scheduler, for tests to vary."""

from __future__ import annotations

from feedline.loader.wire.job_reports import JobReport

REPORT = JobReport(
    job="ctr",
    feeder="a",
    host="h",
    ranks=1,
    share=1.0,
    demand_threads=3.0,
    least_workers=1,
    most_workers=8,
    wait_fraction=0.25,
    starved=False,
    blocks_in_flight=5,
    block_s=0.5,
    blocks_per_s=4.0,
    busy_s_total=100.0,
)
