"""Run `feedline jobs`: the jobs of a scheduler, what they use, and who waits.

Runs in: the process of the command.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.table import Table

from feedline.commands.cluster.connection_files import Address, Insecure, TlsCa, TlsCert, TlsKey, connection_files
from feedline.commands.display.consoles import console_on
from feedline.loader.wire.job_reports import FeederShare
from feedline.service.cluster.connection.job_listing import JobListing, list_jobs

# A trainer that waits as much as this share of its time is starved, also between two waits.
_STARVED = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job: sums over its feeders. threads: of workers that it uses; fair_threads: its part of the cluster;
    demand_threads: that it needs. route_workers: that compute the blocks of one feeder, of the feeder with most; all,
    without routes. connections: between feeders and workers, at most. wait_fraction: of the trainer that waits most."""

    job: str
    feeders: int
    hosts: int
    ranks: int
    share: float
    blocks_per_s: float
    threads: float
    fair_threads: float
    demand_threads: float
    route_workers: int
    connections: int
    blocks_in_flight: int
    wait_fraction: float
    starved: bool


def jobs(
    address: Address,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: Insecure = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """List the jobs of a scheduler: their rates, the threads of workers that they use, their fair parts, who waits."""
    listing = list_jobs(address, connection_files(address, tls_ca, tls_cert, tls_key, insecure=insecure))
    rows = job_rows(listing.feeders)
    if as_json:
        cluster = {"workers": listing.workers, "threads": listing.threads}
        print(json.dumps({**cluster, "jobs": [asdict(row) for row in rows]}))
    else:
        console_on().print(jobs_table(listing, rows), highlight=False)


def job_rows(feeders: Sequence[FeederShare]) -> list[JobRow]:
    """A row per job, those that wait most first."""
    by_job: dict[str, list[FeederShare]] = {}
    for feeder in feeders:
        by_job.setdefault(feeder.report.job, []).append(feeder)
    rows = [_row(job, members) for job, members in by_job.items()]
    return sorted(rows, key=lambda row: (-row.wait_fraction, row.job))


def _row(job: str, members: Sequence[FeederShare]) -> JobRow:
    reports = [member.report for member in members]
    waits = max(report.wait_fraction for report in reports)
    return JobRow(
        job=job,
        feeders=len(members),
        hosts=len({report.host for report in reports}),
        ranks=sum(report.ranks for report in reports),
        share=max(report.share for report in reports),
        blocks_per_s=sum(report.blocks_per_s for report in reports),
        threads=sum(report.blocks_per_s * report.block_s for report in reports),
        fair_threads=sum(member.threads for member in members),
        demand_threads=sum(report.demand_threads for report in reports),
        route_workers=max(member.workers for member in members),
        connections=sum(member.workers for member in members),
        blocks_in_flight=sum(report.blocks_in_flight for report in reports),
        wait_fraction=waits,
        starved=waits >= _STARVED,
    )


def jobs_table(listing: JobListing, rows: Sequence[JobRow]) -> Table:
    """The rows, below the size of the cluster."""
    used = sum(row.threads for row in rows)
    jobs = "1 job" if len(rows) == 1 else f"{len(rows)} jobs"
    title = f"{jobs} on {listing.workers} workers, {used:.1f} of {listing.threads} threads in use"
    table = Table(title=title, title_justify="left", expand=False)
    table.add_column("job", overflow="fold", min_width=12)
    for name in ("hosts", "ranks", "share", "blocks/s", "threads", "fair part", "needs", "route", "waits"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows:
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
            "starved" if row.starved else "",
        )
    return table
