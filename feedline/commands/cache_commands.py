"""Run `feedline cache ls|du|prune|verify`, which look after a cache's folder.

Runs in: the process of the command. Jobs may use the folder meanwhile.
"""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as RichTable

from feedline.commands.consoles import console_on, print_facts, say
from feedline.commands.exit_status import exit_on_signals
from feedline.commands.pipeline_arguments import AsJson
from feedline.commands.progress_line import ProgressLine
from feedline.errors import SpecError
from feedline.warehouse.cache.cache_folder import check_folder
from feedline.warehouse.cache.maintenance import (
    EntryTotals,
    FolderReport,
    PruneChoice,
    PruneReport,
    describe_folder,
    prune_entries,
    prune_files,
    verify_entries,
)
from feedline.warehouse.delete.deletion_log import logged_files
from feedline.warehouse.discovery.partitions import is_partition, keys_of_path, typed_columns

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}

CachePath = Annotated[Path, typer.Argument(metavar="CACHE", help="The cache's folder.")]
TableOption = Annotated[
    str | None, typer.Option("--table", help="Entries of the files of this table, folder or file alone.")
]

cache = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Look after a cache of computed features: list, prune and verify its entries.",
)


def folder_of(path: Path) -> str:
    """The folder of a cache. Raises SpecError where there is none."""
    if not path.is_dir():
        got = "a file" if path.exists() else "nothing there"
        raise SpecError(f"the cache {path} must be a folder: got {got}. Name the folder of a cache")
    folder = str(path.absolute())
    if not check_folder(folder):
        raise SpecError(f"the folder {path} is not a cache: got an empty folder. Name the folder of a cache")
    return folder


def _keys_of(paths: Sequence[str]) -> list[dict[str, Any]]:
    """The partition keys in the folders of each path, with their typed values; of a key that comes twice, the
    innermost."""
    folders = [
        {segment.partition("=")[0]: segment for segment in path.split("/")[:-1] if is_partition(segment)}
        for path in paths
    ]
    inner = ["/".join([*each.values(), "file"]) for each in folders]
    columns = typed_columns(inner)
    return [{key: columns[key][at].as_py() for key in keys_of_path(path)} for at, path in enumerate(inner)]


@cache.command("ls")
def list_cache(path: CachePath, table: TableOption = None, as_json: AsJson = False) -> None:
    """List the row groups that have entries: files, columns, bytes, last use."""
    folder = folder_of(path)
    report = describe_folder(folder, by_row_group=True, table=table)
    _print_report(report, as_json=as_json, by_row_group=True)


@cache.command("du")
def show_usage(path: CachePath, as_json: AsJson = False) -> None:
    """Show how much each table takes, and all together."""
    _print_report(describe_folder(folder_of(path), by_row_group=False), as_json=as_json, by_row_group=False)


@cache.command("prune")
def prune_cache(
    path: CachePath,
    table: TableOption = None,
    where: Annotated[
        str | None, typer.Option(help="Entries whose partition keys meet a condition: \"day < '2026-01-01'\".")
    ] = None,
    older_than: Annotated[str | None, typer.Option(help="Entries not used for this long: 12h, 30d, 2w.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All entries, of all versions.")] = False,
    deleted: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Entries of the files from which feedline delete took rows.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove the entries that meet all conditions.

    Exit status 1 if entries are left that --table, --where or --deleted may mean.
    """
    folder = folder_of(path)
    if deleted is not None:
        if everything or any(each is not None for each in (table, where, older_than)):
            raise SpecError("--deleted names the files by itself: got other conditions, too. Leave them out")
        with ProgressLine(), exit_on_signals():
            report = prune_files(folder, logged_files(deleted))
        _print_pruned(report, as_json=as_json)
        return
    choice = PruneChoice(
        table=table,
        where=where,
        older_than_s=None if older_than is None else parse_age(older_than),
        everything=everything,
    )
    with ProgressLine(), exit_on_signals():
        report = prune_entries(folder, choice, time.time(), _keys_of)
    _print_pruned(report, as_json=as_json)


def _print_pruned(report: PruneReport, *, as_json: bool) -> None:
    """Print what was removed; exit status 1 if anything is left that may be meant."""
    if as_json:
        print(json.dumps(asdict(report)))
    else:
        lines = [f"removed {report.files:,} files, {report.bytes:,} bytes; kept {report.kept:,}"]
        if len(report.names) > 1:
            lines += [
                f"removed, of the table that jobs named {name}: {count:,}" for name, count in report.names.items()
            ]
        lines += [f"kept, as it cannot be decided: {count:,} {reason}" for reason, count in report.undecided.items()]
        if report.failed:
            lines.append(f"left, as they cannot be removed: {report.failed:,}. Run it as their owner")
        say(console_on(), "\n".join(lines))
    if not report.is_met:
        raise typer.Exit(1)


@cache.command("verify")
def verify_cache(path: CachePath, as_json: AsJson = False) -> None:
    """Read all entries and remove damaged ones. Exit status 1 if there are any."""
    with ProgressLine(), exit_on_signals():
        report = verify_entries(folder_of(path))
    if as_json:
        print(json.dumps(asdict(report)))
    else:
        lines = [f"verified {report.files:,} files, {report.bytes:,} bytes: {len(report.damaged):,} damaged"]
        lines += [f"damaged: {each}" for each in report.damaged]
        lines += [f"cannot be read or removed: {each}" for each in report.unreadable]
        if report.other_versions:
            lines.append(f"of other versions, not verified: {report.other_versions:,} files")
        say(console_on(), "\n".join(lines))
    if report.damaged or report.unreadable:
        raise typer.Exit(1)


def parse_age(text: str) -> float:
    """Seconds of an age such as 12h or 30d. Raises SpecError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if match is None:
        raise SpecError(f"--older-than is not an age: got {text!r}, expected a number and s, m, h, d or w, as in 30d")
    return float(match[1]) * _UNITS_S[match[2]]


def _print_report(report: FolderReport, *, as_json: bool, by_row_group: bool) -> None:
    if as_json:
        print(json.dumps(asdict(report), default=str))
        return
    print_facts(report, lambda facts: _report_table(facts, by_row_group=by_row_group), as_json=False, highlight=False)
    if others := _other_files(report):
        say(console_on(), others)


def _report_table(report: FolderReport, *, by_row_group: bool) -> RichTable:
    table = RichTable()
    table.add_column("table", overflow="fold")
    if by_row_group:
        table.add_column("file", overflow="fold")
        table.add_column("row group", justify="right")
    for heading in ("files", "columns", "bytes", "last use (UTC)"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in report.groups:
        place = (each.path or "", str(each.row_group)) if by_row_group else ()
        table.add_row(each.table or "", *place, *_amounts(each))
    table.add_section()
    table.add_row("all", *(("", "") if by_row_group else ()), *_amounts(report.whole))
    return table


def _amounts(totals: EntryTotals) -> tuple[str, ...]:
    used = datetime.datetime.fromtimestamp(totals.used_s, tz=datetime.UTC)
    last = f"{used:%Y-%m-%d %H:%M}" if totals.files else ""
    return f"{totals.files:,}", f"{totals.columns:,}", f"{totals.bytes:,}", last


def _other_files(report: FolderReport) -> str:
    kinds: dict[str, Any] = {
        "cannot be read": report.unreadable,
        "of other versions": report.other_versions,
        "being written, or left by a writer that died": report.temporary,
    }
    return "; ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)
