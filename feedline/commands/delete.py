"""Run `feedline delete`, which deletes rows of a table.

Runs in: the process of the command, in threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from feedline.commands.cache_commands import folder_of
from feedline.commands.consoles import console_on, say
from feedline.commands.exit_status import exit_on_signals
from feedline.commands.pipeline_arguments import AsJson
from feedline.commands.progress_line import ProgressLine
from feedline.resources.cgroups import available_cores
from feedline.warehouse.delete.delete import DeleteReport
from feedline.warehouse.table import Table


def delete(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table's folder, a path or URI.")],
    where: Annotated[
        str,
        typer.Option(help="Which rows: a condition, as source.where, also 'user_id in file(\"ids.parquet\")'."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only find the rows; change nothing.")] = False,
    caches: Annotated[
        list[Path] | None,
        typer.Option("--cache", metavar="DIR", help="A cache to take the entries of such files from; repeatable."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Look for the rows again, in the table, in caches and in copies.")
    ] = False,
    copies: Annotated[
        list[str] | None,
        typer.Option("--copy", metavar="TABLE", help="A copy that --verify looks for the rows in; repeatable."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads (default: all cores).")] = None,
    as_json: AsJson = False,
) -> None:
    """Delete rows of a table, such as those of users in a list: only row groups that hold them are written anew.

    Exit status 1 if rows or entries of caches are left.
    """
    folders = [folder_of(each) for each in caches or ()]
    console = console_on()
    stopped = "stopped: finished files stay; run the same command to continue"
    with exit_on_signals(lambda: console.print(stopped)), ProgressLine():
        report = Table(table).delete(
            where,
            dry_run=dry_run,
            caches=folders,
            copies=copies or (),
            verify=verify,
            threads=threads or available_cores(),
        )
    if as_json:
        print(json.dumps(asdict(report)))
    else:
        say(console, "\n".join(_lines(report)))
    if not report.is_met:
        raise typer.Exit(1)


def _lines(report: DeleteReport) -> Iterator[str]:
    verb = "to delete" if report.dry_run else "deleted"
    yield (
        f"{report.rows:,} rows {verb}, of {report.held_row_groups:,} of {report.row_groups:,} row groups: "
        f"{report.files_rewritten:,} of {report.files:,} files {'to write' if report.dry_run else 'written'} anew, "
        f"{report.files_removed:,} {'to remove' if report.dry_run else 'removed'}"
    )
    yield (
        f"row groups without such rows by partition keys: {report.by_partition:,}, by statistics: "
        f"{report.by_statistics:,}, by bloom filters: {report.by_bloom:,}; read to find the rows: {report.read:,}; of "
        f"such rows alone: {report.whole:,}"
    )
    if report.dry_run:
        yield f"row groups with such rows: {report.held_bytes:,} bytes"
        return
    if report.column_files_rewritten or report.column_files_removed:
        yield (
            f"column files: {report.column_files_rewritten:,} written anew, {report.column_files_removed:,} old ones "
            "removed"
        )
    yield (
        f"row groups with such rows: {report.held_bytes:,} bytes before, {report.encoded_bytes:,} bytes anew; "
        f"{report.copied_bytes:,} bytes of others copied as they were"
    )
    if report.linked:
        yield f"{report.linked:,} files have another name on this disk (a hard link), under which the rows stay"
    for folder, pruned in report.caches.items():
        yield f"cache {folder}: removed {pruned.files:,} files, {pruned.bytes:,} bytes"
        yield from (f"  left, as it cannot be decided: {count:,} {why}" for why, count in pruned.undecided.items())
        if pruned.failed:
            yield f"  left, as they cannot be removed: {pruned.failed:,}. Run it as their owner"
    for name, count in (report.left or {}).items():
        what = "entries of files with such rows" if name in report.caches else "such rows"
        yield f"verified: {count:,} {what} left in {name}"
    yield f"log: {report.log}"
