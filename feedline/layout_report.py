"""What did `feedline optimize` do, and what do jobs read of a table? The figures for people.

Runs in: the CLI. `--json` prints the same figures as plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from feedline.warehouse.encodings import Choice
from feedline.warehouse.footprint import Footprint
from feedline.warehouse.optimize import Report
from feedline.warehouse.usage import Popularity

_SHOWN_PARTITIONS = 10


def describe_report(report: Report) -> dict[str, Any]:
    """The report as plain numbers and texts."""
    facts = asdict(report)
    for side, table in (("before", report.before), ("after", report.after)):
        del facts[side]["notes"]  # of the files' own, which no report is about
        facts[side]["ratio"] = table.ratio
        facts[side]["requests_per_row_group"] = table.requests_per_row_group
    return facts


def show_report(report: Report, console: Console) -> None:
    """The encodings that were chosen, the table before and after."""
    if report.choices:
        console.print(_choices(report.choices))
    console.print(_before_after(report))
    taken = f", {report.taken_away} taken away" if report.taken_away else ""
    console.print(
        f"{report.written} partitions written in {report.writing_s:.1f} s, after measuring for "
        f"{report.measuring_s:.1f} s; "
        f"{report.finished} were finished{taken}; {len(report.non_null)} of "
        f"{len(report.columns)} columns hold no null, and are stored without the marks for it",
        highlight=False,
        soft_wrap=True,
    )


def show_popularity(facts: Popularity, console: Console) -> None:
    """Which columns runs read, and the popularity curve."""
    if not facts.runs:
        console.print(f"no run on {facts.table} is in the usage record", highlight=False, soft_wrap=True)
        return
    console.print(
        f"{facts.table}: {facts.runs} run{'s' if facts.runs > 1 else ''} of {', '.join(facts.jobs)}, "
        f"from {str(facts.first)[:19]} to {str(facts.last)[:19]} UTC\n"
        f"a run reads {facts.column_share:.1%} of the columns and {facts.byte_share:.1%} of the bytes of its row "
        f"groups (mean); all together {facts.used_column_share:.1%} of the columns, {facts.used_byte_share:.1%} of the "
        "bytes",
        highlight=False,
        soft_wrap=True,
    )
    curve = Table(title="popularity", title_justify="left")
    curve.add_column("of all reads", justify="right")
    curve.add_column("are served by this share of the bytes", justify="right")
    for share, held in facts.curve:
        curve.add_row(f"{share:.0%}", f"{held:.1%}")
    console.print(curve)
    columns = Table(title="columns", title_justify="left")
    for heading in ("column", "runs", "bytes read", "bytes stored"):
        columns.add_column(heading, justify="left" if heading == "column" else "right")
    for column in facts.columns:
        if column.runs:
            columns.add_row(column.name, f"{column.runs:,}", f"{column.read_bytes:,}", f"{column.stored_bytes:,}")
    console.print(columns)
    unread = sum(1 for column in facts.columns if not column.runs)
    console.print(f"{unread} columns were never read", highlight=False)
    if facts.partitions and facts.partitions[0][0]:
        named = ", ".join(f"{folder} ({runs})" for folder, runs in facts.partitions[:_SHOWN_PARTITIONS])
        console.print(f"partitions by runs: {named}", highlight=False, soft_wrap=True)


def _choices(choices: Sequence[Choice]) -> Table:
    before, after = ([getattr(choice, side) for choice in choices] for side in ("default", "chosen"))
    totals = [
        f"{sum(one.bytes for one in side):,} bytes, {sum(one.ns_per_value * one.values for one in side) / 1e6:.1f} ms"
        for side in (before, after)
    ]
    table = Table(
        title=f"encodings, measured on a sample: {totals[0]} as writers leave it, {totals[1]} as chosen",
        title_justify="left",
        caption="bytes and ns are per value; in brackets the usual default: dictionary, zstd, nullable",
        caption_justify="left",
    )
    table.add_column("column", overflow="fold")
    for heading in ("stored as", "bytes", "ns to decode"):
        table.add_column(heading, justify="left" if heading == "stored as" else "right", no_wrap=True)
    for choice in choices:
        chosen, default = choice.chosen, choice.default
        values = max(chosen.values, 1)
        table.add_row(
            chosen.leaf,
            f"{chosen.encoding.lower()} {chosen.codec}",
            f"{chosen.bytes / values:.2f} ({default.bytes / values:.2f})",
            f"{chosen.ns_per_value:.2f} ({default.ns_per_value:.2f})",
        )
    return table


def _before_after(report: Report) -> Table:
    table = Table(title=f"{report.source} -> {report.target}", title_justify="left")
    for heading in ("", "before", "after"):
        table.add_column(heading, justify="right" if heading else "left")
    rows: list[tuple[str, Callable[[Footprint], str]]] = [
        ("files", lambda side: f"{side.files:,}"),
        ("bytes", lambda side: f"{side.bytes:,}"),
        ("row groups", lambda side: f"{side.row_groups:,}"),
        ("rows", lambda side: f"{side.rows:,}"),
        ("compression ratio", lambda side: f"{side.ratio:.2f}"),
    ]
    if report.projection:
        count = len(report.projection)
        rows += [
            (f"bytes of {count} columns", lambda side: f"{side.projection.bytes:,}"),
            ("  requests for them", lambda side: f"{side.projection.requests:,}"),
            ("  requests per row group", lambda side: f"{side.requests_per_row_group:.1f}"),
            ("  bytes of the requests", lambda side: f"{side.projection.requested_bytes:,}"),
        ]
    for name, render in rows:
        table.add_row(name, render(report.before), render(report.after))
    return table
