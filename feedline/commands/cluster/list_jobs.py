"""Run `feedline jobs`: the jobs of a scheduler, what they use, and who waits.

Runs in: the process of the command.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

from rich.table import Table

from feedline.commands.cluster.connection_files import Address, Insecure, TlsCa, TlsCert, TlsKey, connection_files
from feedline.commands.consoles import console_on
from feedline.commands.pipeline_arguments import AsJson
from feedline.service.scheduler.job_listing import JobListing, JobProgress, list_jobs, progress_by_job, states_by_job
from feedline.service.scheduler.scheduler_metrics import JobRow, job_rows


def jobs(
    address: Address,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
) -> None:
    """List the jobs of a scheduler: their rates, the threads of workers that they use, their fair parts, who waits."""
    listing = list_jobs(address, connection_files(address, tls_ca, tls_cert, tls_key, insecure=insecure))
    rows = job_rows(listing.feeders)
    if as_json:
        cluster = {"workers": listing.workers, "threads": listing.threads}
        progress = {job: asdict(each) for job, each in progress_by_job(listing.statuses).items()}
        states = states_by_job(listing.statuses)
        listed = [{**asdict(row), "state": states.get(row.job), "progress": progress.get(row.job)} for row in rows]
        print(json.dumps({**cluster, "jobs": listed}))
    else:
        console_on().print(jobs_table(listing, rows), highlight=False)


def jobs_table(listing: JobListing, rows: Sequence[JobRow]) -> Table:
    """The rows, below the size of the cluster."""
    used = sum(row.threads for row in rows)
    jobs = "1 job" if len(rows) == 1 else f"{len(rows)} jobs"
    title = f"{jobs} on {listing.workers} workers, {used:.1f} of {listing.threads} threads in use"
    table = Table(title=title, title_justify="left", expand=False)
    table.add_column("job", overflow="fold", min_width=12)
    for name in (
        "hosts",
        "ranks",
        "share",
        "blocks/s",
        "threads",
        "fair part",
        "needs",
        "route",
        "waits",
        "step",
        "left",
        "lost",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    progress, states = progress_by_job(listing.statuses), states_by_job(listing.statuses)
    for row in rows:
        state = states.get(row.job, "feeding")
        counts = (row.hosts, row.ranks)
        numbers = (row.blocks_per_s, row.threads, row.fair_threads)
        table.add_row(
            row.job,
            *map(str, counts),
            f"{row.share:g}",
            *(f"{number:.1f}" for number in numbers),
            f"{row.demand_threads:.1f}" if row.demand_threads else "?",
            f"{row.route_workers}" if row.route_workers < listing.workers else "all",
            f"{row.wait_fraction:.0%}",
            *_progress_cells(progress.get(row.job)),
            state if state != "feeding" else "starved" if row.starved else "",
        )
    return table


def _progress_cells(progress: JobProgress | None) -> tuple[str, str, str]:
    """The step of the slowest rank, the time that is left, and connections that were lost."""
    if progress is None:
        return "", "", ""
    left = "?" if progress.left_s is None else str(timedelta(seconds=round(progress.left_s)))
    epoch = f"{progress.epoch + 1}/{progress.epochs}: " if progress.epochs > 1 else ""
    if not progress.epochs:  # its trainers decide how many there are
        epoch, left = f"epoch {progress.epoch + 1}: ", f"{left} of it"
    return f"{epoch}{progress.step:,}/{progress.steps:,}", left, str(progress.lost or "")
