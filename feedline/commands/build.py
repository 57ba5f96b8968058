"""Run `feedline build`, which makes a training table of logs.

Runs in: the process of the command, and its tasks on a Dask cluster on this machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from feedline.commands.cluster.connect import task_cluster
from feedline.commands.consoles import console_on, say
from feedline.commands.pipeline_arguments import AsJson
from feedline.commands.table_layout import parse_size
from feedline.config.build_spec import load_build_spec
from feedline.errors import SpecError
from feedline.resources.cgroups import available_cores
from feedline.warehouse.building.build import DUE, GONE, LATE, OPEN, BuildReport, PartitionState, look
from feedline.warehouse.building.build import build as build_table
from feedline.warehouse.optimize.optimize import TaskRunner

_NS = 10**9
_SHOWN_LATE = 3


def build(
    spec: Annotated[str, typer.Argument(metavar="SAMPLES", help="The samples.yaml.")],
    status: Annotated[bool, typer.Option("--status", help="Show partitions and their counts; build nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be built; build nothing.")] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="All events before it have arrived (default: the newest one, less lateness)."
        ),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build every partition again, as samples.yaml is now.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes (default: threads of this process).")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Worker threads (default: all cores).")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of all tasks (default: half of free memory).")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a training table of logs: impressions joined with outcomes and features, partition by partition."""
    console = console_on(stderr=as_json)
    samples = load_build_spec(spec)
    run = partial(
        look if status or dry_run else build_table,
        samples,
        now_ns=time.time_ns(),
        until_ns=None if until is None else _moment_ns(until),
        rebuild=rebuild,
    )
    memory_bytes = None if memory is None else parse_size("--memory", memory)
    report = _run(run, console, workers=workers, threads=threads or available_cores(), memory_bytes=memory_bytes)
    if as_json:
        print(json.dumps(describe(report)))
        return
    if status or report.built:
        shown = [each for each in report.partitions if status or each.folder in report.built]
        console.print(_partitions(shown, report))
    say(console, "\n".join(explain(report, dry_run=status or dry_run)))


def describe(report: BuildReport) -> dict[str, Any]:
    """The report as plain values, for `--json`; without the files that partitions were built from."""
    partitions = [
        {
            "partition": each.folder,
            "state": each.state,
            "counts": None if each.record is None else asdict(each.record.counts),
        }
        for each in report.partitions
    ]
    facts = asdict(report)
    return {**facts, "partitions": partitions}


def explain(report: BuildReport, *, dry_run: bool) -> list[str]:
    """What was built, or would be, and what is left, in words."""
    lines = []
    due = [each.folder for each in report.partitions if each.state in (DUE, LATE)]
    if dry_run:
        lines.append(f"{_count(len(due))} to build{': ' + _some(due) if due else ''}")
    else:
        rows = sum(each.record.counts.rows for each in report.partitions if each.folder in report.built and each.record)
        lines.append(f"{_count(len(report.built))} built, of {rows:,} rows")
    waiting = [each.folder for each in report.partitions if each.state == OPEN]
    if waiting:
        mark = report.watermark or "none, as the logs are empty"
        lines.append(f"{_count(len(waiting))} open, until the watermark ({mark}) has passed: {_some(waiting)}")
    gone = [each.folder for each in report.partitions if each.state == GONE]
    if gone:
        lines.append(
            f"{_count(len(gone))} built of files that the logs no longer have, and stay as they are: {_some(gone)}"
        )
    late = [each for each in report.partitions if _late(each)]
    if late:
        total = sum(map(_late, late))
        names = _some([each.folder for each in late])
        lines.append(f"{total:,} rows arrived late, after {_count(len(late))} had been built: {names}")
    if report.ahead:
        lines.append("some events are ahead of this machine's clock: they do not close partitions before that time")
    for name, rows in report.timeless.items():
        lines.append(f"{rows:,} rows of {name} have no time, and are left out")
    return lines


def _run(
    run: Callable[..., BuildReport], console: Console, *, workers: int | None, threads: int, memory_bytes: int | None
) -> BuildReport:
    """Run `run` on a Dask cluster of this machine: worker processes, or threads of this one."""
    stopped = "stopped: finished partitions stay; run the same command to continue"
    with task_cluster(console, stopped, workers=workers, threads=threads) as cluster:
        return run(runner=TaskRunner(map=cluster.map, threads=workers or threads, memory_bytes=memory_bytes))


def _moment_ns(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SpecError(f'--until is no ISO date or time: got {text!r}. Write "2026-01-31T12:00:00+00:00"') from None
    seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return round(seconds * 10**6) * (_NS // 10**6)


def _partitions(partitions: list[PartitionState], report: BuildReport) -> RichTable:
    """A line for each partition, with one more for each outcome."""
    table = RichTable(title=report.table, title_justify="left")
    headings = (
        "partition",
        "state",
        "log",
        "logged",
        "duplicates",
        "no key",
        "conflicting",
        "unmatched",
        "joined",
        "late",
    )
    for heading in (*headings, "rows"):
        left = heading in ("partition", "state", "log")
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    for each in partitions:
        if each.record is None:
            table.add_row(each.folder, each.state)
            continue
        counts = each.record.counts
        own = (counts.impressions, counts.duplicates, counts.keyless, counts.conflicting)
        numbers = [f"{count:,}" for count in own]
        table.add_row(each.folder, each.state, "impressions", *numbers, "", "", f"{counts.late:,}", f"{counts.rows:,}")
        for name, of in counts.outcomes.items():
            first = (of.logged, of.duplicates, of.keyless)
            last = (of.unmatched, of.joined, of.late)
            table.add_row("", "", name, *(f"{n:,}" for n in first), "", *(f"{n:,}" for n in last), "")
    return table


def _late(partition: PartitionState) -> int:
    if partition.record is None:
        return 0
    counts = partition.record.counts
    return counts.late + sum(each.late for each in counts.outcomes.values())


def _count(partitions: int) -> str:
    return f"{partitions:,} {'partition' if partitions == 1 else 'partitions'}"


def _some(folders: list[str]) -> str:
    more = f" and {len(folders) - _SHOWN_LATE:,} more" if len(folders) > _SHOWN_LATE else ""
    return ", ".join(folders[:_SHOWN_LATE]) + more
