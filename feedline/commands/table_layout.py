"""Run `feedline optimize`, which rewrites a table, and `feedline usage`, which shows what runs read of it.

Runs in: the process of the command. `optimize` runs its tasks on a Dask cluster on this machine.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic_core import PydanticCustomError
from rich.console import Console
from rich.table import Table as RichTable

from feedline.commands.cluster.connect import task_cluster
from feedline.commands.consoles import console_on, say
from feedline.commands.pipeline_arguments import AsJson, complete_words, names_pipeline
from feedline.commands.progress_line import ProgressLine
from feedline.config import load_spec
from feedline.config.column_ranges import split_names
from feedline.config.sections import parse_bytes
from feedline.errors import SpecError
from feedline.expressions.column_parts import source_columns
from feedline.pipeline import Pipeline
from feedline.planning.read_columns import read_columns_of
from feedline.resources.cgroups import available_cores
from feedline.warehouse.optimize.footprint import Footprint
from feedline.warehouse.optimize.optimize import OptimizeReport
from feedline.warehouse.optimize.recipe import ROWS, Settings
from feedline.warehouse.optimize.usage import Popularity, load_uses, popularity
from feedline.warehouse.parquet.dedup_columns import FLAG_PREFIX
from feedline.warehouse.parquet.encodings import GOALS, Choice
from feedline.warehouse.reading.seen_rows import source_names
from feedline.warehouse.storage.locations import redact
from feedline.warehouse.table import Table

_MAX_PARTITIONS = 10
_MAX_COLUMNS = 3  # the ones that grew most
_NOTABLE_SHARE = 0.1  # of a growth: smaller contributions are not reported as its cause

RowGroupBytes = Annotated[
    str | None, typer.Option(help="Decoded bytes of a row group, at most: 64MiB (default: no limit).")
]
DedupOption = Annotated[
    list[str] | None,
    typer.Option(help="A group of columns to store once per run of equal rows: 'user=user_id,hist_{0..5}'."),
]
GoalOption = Annotated[
    str,
    typer.Option(
        "--for",
        help="Goal of the encodings: decode (with the decoder of this process), balanced, size.",
        autocompletion=complete_words(*GOALS),
    ),
]
WorkDir = Annotated[str, typer.Option(help="The work_dir of the runs, with their usage record.")]


def optimize(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The table: a folder, a file, a glob; a path or URI.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="An empty or missing folder, or an earlier run's.")],
    cluster_by: Annotated[str, typer.Option(help="Rows of a key together, keys in hashed order: session_id.")] = "",
    sort_by: Annotated[str, typer.Option(help="The order of a key's rows: ts.")] = "",
    history: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Write histories: all rows of a key together, --sort-by its time first."),
    ] = None,
    rows: Annotated[
        str,
        typer.Option(
            help="Rows of DST: keep, request (a row of each request), impression (a row of each candidate).",
            autocompletion=complete_words(*ROWS),
        ),
    ] = "keep",
    by: Annotated[str, typer.Option(help="What makes a request, with --rows request: request_id.")] = "",
    candidates: Annotated[
        str, typer.Option(help="Columns that are lists in a request (default: those that differ within one).")
    ] = "",
    order: Annotated[str, typer.Option(help="Columns first in files: keep, popular, or a,b,c.")] = "keep",
    goal: GoalOption = "balanced",
    row_group_rows: Annotated[int, typer.Option(help="Rows of a row group.")] = 65_536,
    row_group_bytes: RowGroupBytes = None,
    file_bytes: Annotated[str, typer.Option(help="Bytes of a file, at most (one row group may be more).")] = "256MiB",
    small_partitions: Annotated[
        str, typer.Option(help="Partitions smaller than a row group: merge their files, or keep them apart.")
    ] = "merge",
    flatten: Annotated[list[str] | None, typer.Option(help="A map column whose keys become columns.")] = None,
    flatten_coverage: Annotated[float, typer.Option(help="Share of rows that must have such a key.")] = 0.01,
    keep_nullable: Annotated[bool, typer.Option(help="Leave columns without nulls nullable.")] = False,
    dedup: DedupOption = None,
    expand: Annotated[bool, typer.Option(help="Store every column in every row, whatever the source does.")] = False,
    projection: Annotated[str, typer.Option(help="Columns whose reading is compared: a,b,c or a pipeline.yaml.")] = "",
    work_dir: WorkDir = ".feedline",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes (default: threads of this process).")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Worker threads (default: all cores).")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of all tasks (default: half of free memory).")] = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite a table so that reading it is cheap: clustered, compacted, each column in its best encoding."""
    if goal not in GOALS:
        raise SpecError(f"--for is unknown: got {goal!r}, expected one of {', '.join(GOALS)}")
    console = console_on(stderr=as_json)
    table = Table(source)
    settings = Settings.of(
        cluster_by=_names("--cluster-by", cluster_by),
        sort_by=_names("--sort-by", sort_by),
        history=history,
        rows=rows,
        by=_names("--by", by),
        candidates=_names("--candidates", candidates, ranges=True),
        order=order if order in ("keep", "popular") else _names("--order", order),
        goal=goal,
        row_group_rows=row_group_rows,
        row_group_bytes=None if row_group_bytes is None else parse_size("--row-group-bytes", row_group_bytes),
        file_bytes=parse_size("--file-bytes", file_bytes),
        small_partitions=small_partitions,
        flatten=flatten or (),
        flatten_coverage=flatten_coverage,
        keep_nullable=keep_nullable,
        dedup=_parse_groups(dedup or ()),
        expand=expand,
    )
    run = partial(
        table.optimize,
        target,
        settings,
        work_dir=work_dir,
        projection=_projection_columns(projection, table),
        memory_bytes=None if memory is None else parse_size("--memory", memory),
    )
    report = _run_optimize(run, console, workers=workers, threads=threads or available_cores())
    if as_json:
        print(json.dumps(describe_report(report)))
    else:
        _show_report(report, console)


def usage(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table, or a pipeline.yaml that names it.")],
    work_dir: WorkDir = ".feedline",
    source: Annotated[str | None, typer.Option(metavar="NAME", help="Of a pipeline's `sources`, this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what runs of Feedline read of a table: columns, bytes, partitions."""
    with ProgressLine():
        if names_pipeline(table):
            pipeline = Pipeline.from_yaml(table)
            pipeline = pipeline if source is None else pipeline.of_source(source)
            snapshot, work_dir = pipeline.snapshot(), pipeline.spec.work_dir  # the files of its runs
        else:
            snapshot = Table(table).snapshot()
        facts = popularity(load_uses(work_dir, snapshot.uri), snapshot)
    if as_json:
        print(json.dumps(asdict(facts)))
    else:
        _show_popularity(facts, console_on())


def _run_optimize(
    run: Callable[..., OptimizeReport], console: Console, *, workers: int | None, threads: int
) -> OptimizeReport:
    """Run `run` on a Dask cluster of this machine: worker processes, or threads of this one."""
    stopped = "stopped: finished partitions stay; run the same command to continue"
    with task_cluster(console, stopped, workers=workers, threads=threads) as cluster:
        return run(map=cluster.map, threads=workers or threads)


def _projection_columns(text: str, table: Table) -> tuple[str, ...]:
    """The columns of a list of names, or those that a pipeline reads from files."""
    if not names_pipeline(text):
        return _names("--projection", text)
    spec, snapshot = load_spec(Path(text), {}), table.snapshot()
    tables = [source_names(each.source.table, "hive") for each in spec.per_source()]
    own = [each for each, names in zip(spec.per_source(), tables, strict=True) if redact(snapshot.uri) in names]
    if spec.is_mixed and not own:
        raise SpecError(f"--projection names a pipeline of other tables: got {text}, expected {redact(snapshot.uri)}")
    needed = {
        name for each in own or [spec] for name in read_columns_of(each, snapshot.schema).columns(snapshot.schema)
    }
    read = set(source_columns(snapshot.schema, sorted(needed)))
    return tuple(name for name in snapshot.file_columns if name in read)


def _names(option: str, text: str, *, ranges: bool = False) -> tuple[str, ...]:
    try:
        return split_names(text, ranges=ranges)
    except ValueError as error:
        raise SpecError(f"{option}: {error}") from None


def _parse_groups(texts: Sequence[str]) -> dict[str, list[str]]:
    """The columns of groups such as `user=user_id,hist_{0..5}`."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        name, equals, columns = text.partition("=")
        if not equals or name in groups:
            got = f"group {name!r} twice" if equals else repr(text)
            raise SpecError(f"--dedup is not a group: got {got}, expected one list, --dedup user=column,column")
        groups[name] = list(_names(f"--dedup {name}", columns, ranges=True))
    return groups


def parse_size(option: str, text: str) -> int:
    try:
        return parse_bytes(int(text) if text.isdigit() else text)
    except PydanticCustomError as error:
        context = error.context or {}
        raise SpecError(f"{option} is not a size: got {text!r}, expected {context.get('expected')}") from None


def describe_report(report: OptimizeReport) -> dict[str, Any]:
    """The report as plain values, for `--json`."""
    facts = asdict(report)
    for side, table in (("before", report.before), ("after", report.after)):
        del facts[side]["notes"]  # of the files themselves
        facts[side]["ratio"] = table.ratio
        facts[side]["requests_per_row_group"] = table.requests_per_row_group
    facts["groups"] = [asdict(saving) | {"factor": saving.factor} for saving in report.groups]
    return facts


def _show_report(report: OptimizeReport, console: Console) -> None:
    """Print the chosen encodings, the table before and after, and the causes of growth."""
    if report.choices:
        console.print(_choices(report.choices))
    console.print(_before_after(report))
    if report.groups:
        console.print(_stored_groups(report))
    lines = explain_growth(report)
    if report.requests is not None:
        kind = "impressions of requests" if report.settings.rows == "impression" else "requests"
        lines.append(f"rows are {kind}; candidates: {', '.join(report.requests.candidates)}")
    removed = f", {report.taken_away} removed" if report.taken_away else ""
    lines.append(
        f"{report.written} partitions written in {report.writing_s:.1f} s, after measuring for "
        f"{report.measuring_s:.1f} s; {report.finished} were finished{removed}; {len(report.non_null)} of "
        f"{len(report.columns)} columns hold no null and are stored as not nullable"
    )
    if report.outdated:
        lines.append(
            f"{report.outdated} finished partitions were encoded for another decoder than {report.decoder}, which "
            "reads here: to choose their encodings again, write to an empty folder"
        )
    say(console, "\n".join(lines))


def explain_growth(report: OptimizeReport) -> list[str]:
    """Explain by how much the table grew, in which columns most, and why; empty if it did not grow.

    Columns made of a map's keys count as part of the map.
    """
    before, after = report.before, report.after
    total = after.bytes - before.bytes
    if total <= 0:
        return []
    sizes: Counter[str] = Counter()
    for name, size in after.column_bytes.items():
        sizes[_map_of(name, report) or name] += size
    growth = {name: size - before.column_bytes.get(name, 0) for name, size in sizes.items()}
    growth = {name: more for name, more in sorted(growth.items(), key=lambda item: -item[1]) if more > 0}
    lines = [f"the table grew by {total:,} bytes ({total / max(before.bytes, 1):.1%}):"]
    for name in list(growth)[:_MAX_COLUMNS]:
        why = "; ".join(_reasons(name, sizes[name], report))
        lines.append(f"  {name}: {before.column_bytes.get(name, 0):,} -> {sizes[name]:,} bytes, {why}")
    if rest := list(growth.values())[_MAX_COLUMNS:]:
        lines.append(f"  other columns ({len(rest)}): by {sum(rest):,} bytes")
    footers = total - (after.compressed_bytes - before.compressed_bytes)
    if footers > _NOTABLE_SHARE * total:
        groups = f"{before.row_groups:,} -> {after.row_groups:,} row groups of {len(report.columns):,} columns"
        lines.append(f"  outside columns: by {footers:,} bytes, the footers of {groups}")
    if not report.choices:
        lines.append("  encodings were not measured: nothing had to be written, see the report of the run that did")
    elif report.settings.goal != "size":
        lines.append("  --for size makes it as small as possible in this order of rows")
    return lines


def _reasons(name: str, size: int, report: OptimizeReport) -> list[str]:
    """Explain why a column (or a map with its keys' columns) is larger, relative to the default encoding of the same
    rows.

    Bytes of the chosen encoding beyond the default one are due to the choice; bytes of the default one beyond the
    source are due to another order of rows, smaller row groups, or a source stored better than by default.
    """
    before, after = report.before, report.after
    keys = sum(_map_of(column, report) == name for column in report.flattened)
    if keys:
        return [f"{keys} of its keys became columns (--flatten)"]
    if name.startswith(FLAG_PREFIX):
        return ["the flags of a group that is stored once per run (--dedup)"]
    if name not in before.column_bytes:
        return ["a partition key, stored as a column because folder names do not tell its type"]
    old, new = ("+".join(side.column_encodings[name]) for side in (before, after))
    reasons = [f"{old} -> {new}"] if old != new else []
    choices = [choice for choice in report.choices if choice.chosen.column == name]
    chosen, default = (sum(getattr(choice, side).bytes for choice in choices) for side in ("chosen", "default"))
    if not chosen:
        return reasons or [f"{new} as before"]
    usual = size * default / chosen
    more = _NOTABLE_SHARE * (size - before.column_bytes[name])
    if size - usual > more:
        reasons.append(
            f"--for {report.settings.goal} chose it for its decoding time, at {chosen / default:.2f} times the bytes "
            "of dictionary zstd"
        )
    if usual - before.column_bytes[name] > more:
        reasons += _circumstances(report)
    return reasons


def _circumstances(report: OptimizeReport) -> list[str]:
    """What makes a column larger in the same encoding; by default, a better encoding in the source."""
    before, after, causes = report.before, report.after, []
    if report.settings.keys:
        causes.append(f"compresses worse in the order of {', '.join(report.settings.keys)}")
    if after.rows * before.row_groups < before.rows * after.row_groups:
        causes.append(f"row groups are smaller ({before.row_groups:,} -> {after.row_groups:,} of them)")
    return causes or ["the source's encoding or compression level was tighter than any that optimize tries here"]


def _map_of(name: str, report: OptimizeReport) -> str | None:
    """The map column from whose key this column was made; None if there is none."""
    if name not in report.flattened:
        return None
    maps = [column for column in report.settings.flatten if name.startswith(f"{column}.")]
    return max(maps, key=len, default=None)


def _show_popularity(facts: Popularity, console: Console) -> None:
    """Print which columns and partitions runs read."""
    if not facts.runs:
        say(console, f"the usage record has no run on {facts.table}")
        return
    text = (
        f"{facts.table}: {facts.runs} run{'s' if facts.runs > 1 else ''} of {', '.join(facts.jobs)}, "
        f"from {str(facts.first)[:19]} to {str(facts.last)[:19]} UTC\n"
        f"a run reads {facts.column_share:.1%} of the columns and {facts.byte_share:.1%} of the bytes of its row "
        f"groups (mean); together {facts.used_column_share:.1%} of the columns, {facts.used_byte_share:.1%} of the "
        "bytes"
    )
    say(console, text)
    columns = RichTable(title="columns", title_justify="left")
    for heading in ("column", "runs", "bytes read", "bytes stored"):
        columns.add_column(heading, justify="left" if heading == "column" else "right")
    for column in facts.columns:
        if column.runs:
            columns.add_row(column.name, f"{column.runs:,}", f"{column.read_bytes:,}", f"{column.stored_bytes:,}")
    console.print(columns)
    unread = sum(1 for column in facts.columns if not column.runs)
    console.print(f"{unread} columns were never read", highlight=False)
    if facts.partitions and facts.partitions[0][0]:
        named = ", ".join(f"{folder} ({runs})" for folder, runs in facts.partitions[:_MAX_PARTITIONS])
        say(console, f"partitions by runs: {named}")


def _choices(choices: Sequence[Choice]) -> RichTable:
    before, after = ([getattr(choice, side) for choice in choices] for side in ("default", "chosen"))
    totals = [
        f"{sum(one.bytes for one in side):,} bytes, {sum(one.ns_per_value * one.values for one in side) / 1e6:.1f} ms"
        for side in (before, after)
    ]
    table = RichTable(
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


def _stored_groups(report: OptimizeReport) -> RichTable:
    table = RichTable(title="stored once per run of equal rows", title_justify="left")
    for heading in ("group", "columns", "rows", "runs", "factor", "bytes before", "bytes after"):
        table.add_column(heading, justify="left" if heading == "group" else "right")
    for one in report.groups:
        counts = (len(one.columns), one.rows, one.runs)
        sizes = (f"{one.bytes_before:,}", f"{one.bytes_after:,}")
        table.add_row(one.group, *(f"{count:,}" for count in counts), f"{one.factor:.2f}", *sizes)
    return table


def _before_after(report: OptimizeReport) -> RichTable:
    table = RichTable(title=f"{report.source} -> {report.target}", title_justify="left")
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
