"""Run `feedline audit`: compare columns of lists of a pipeline's table with those that histories rebuild.

Runs in: the process of the command; rows are compared in threads there, or on the cluster of pipeline.yaml.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from feedline.commands.cluster.connect import pipeline_cluster
from feedline.commands.consoles import print_facts
from feedline.commands.exit_status import exit_on_signals
from feedline.commands.pipeline_arguments import AsJson, Overrides, PipelinePath, Source
from feedline.commands.progress_line import ProgressLine
from feedline.config import PipelineSpec, load_spec
from feedline.config.overrides import parse_overrides
from feedline.errors import SpecError
from feedline.fitting.history_audit import AuditReport
from feedline.pipeline import Pipeline
from feedline.service.cluster.fit_workers import DaskWorkers

_SHOWN_GROUPS = 40  # values of --by
_COUNTS = ("rows", "equal", "missing", "extra", "out_of_order", "leaks")


def audit(
    pipeline: PipelinePath,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="FEATURE=COLUMN", help="A feature that reads a history, and the column to compare."),
    ] = None,
    times: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column of lists with the events' times, to find leaks.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Count by its values, of times by day (default: the first partition key)."),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Compare about so many rows, spread over the table (default: all).")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit status 1 if anything differs.")] = False,
    overrides: Overrides = None,
    source: Source = None,
    as_json: AsJson = False,
) -> None:
    """Compare columns of lists that a table has with the features that rebuild them from histories."""
    pairs = _pairs(compare or [])
    spec = load_spec(pipeline, parse_overrides(overrides or []))
    spec = spec if source is None else spec.for_source(source)
    report = _audit(spec, compare=pairs, by=by, times=times, rows=rows)
    print_facts(report.facts(), audit_tables, as_json=as_json, highlight=False)
    if strict and not report.clean:
        raise typer.Exit(1)


def _audit(spec: PipelineSpec, **options: Any) -> AuditReport:
    """Compare in threads, or on the cluster. Ctrl-C and SIGTERM end it in order."""
    with ProgressLine(), exit_on_signals(), pipeline_cluster(spec) as cluster:
        run = partial(Pipeline(spec).audit, **options)
        return run() if cluster is None else run(workers=DaskWorkers(cluster), map=cluster.map)


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        feature, _, column = (part.strip() for part in text.partition("="))
        if not feature or not column:
            raise SpecError(f"--compare must be FEATURE=COLUMN: got {text!r}. Write --compare items=item_history")
        if feature in pairs:
            raise SpecError(
                f"--compare names feature {feature!r} twice: got {pairs[feature]!r} and {column!r}. Name one"
            )
        pairs[feature] = column
    return pairs


def audit_tables(facts: dict[str, Any]) -> RenderableType:
    """Render an audit: a table for each column, with a line for each value of `by`."""
    part = "" if facts["rows"] == facts["selected"] else f" of {facts['selected']:,}"
    head = f"{facts['table']}: compared {facts['rows']:,}{part} rows in {facts['seconds']:.1f} s"
    verdict = "nothing differs" if facts["clean"] else "lists differ"
    return Group(escape(f"{head}: {verdict}"), *(_column_table(each, facts["by"]) for each in facts["columns"]))


def _column_table(column: dict[str, Any], by: str | None) -> RenderableType:
    title = f"{column['column']}, rebuilt by {column['feature']} from history {column['history']}"
    table = Table(title=escape(title), title_justify="left")
    counts = [name for name in _COUNTS if name != "leaks" or column["total"]["leaks"] is not None]
    table.add_column(escape(by or ""))
    for name in counts:
        table.add_column(name.replace("_", " "), justify="right", no_wrap=True)
    table.add_column("first difference", overflow="fold")
    differing = [group for group in column["groups"] if group["first"] is not None]
    shown = (differing if len(column["groups"]) > _SHOWN_GROUPS else column["groups"])[:_SHOWN_GROUPS]
    for group in shown if by is not None else []:
        value = "null" if group["value"] is None else str(group["value"])
        table.add_row(escape(value), *(f"{group[name]:,}" for name in counts), escape(_place(group["first"])))
    if by is not None and len(column["groups"]) > len(shown):
        table.add_row(f"… {len(column['groups']) - len(shown):,} more", *[""] * (len(counts) + 1))
    total = column["total"]
    table.add_row("all rows", *(f"{total[name]:,}" for name in counts), escape(_place(total["first"])))
    return Group(table, *map(escape, _difference(total["first"])))


def _place(first: dict[str, Any] | None) -> str:
    return "" if first is None else f"{first['file']}, row group {first['row_group']}, row {first['row']}"


def _difference(first: dict[str, Any] | None) -> list[str]:
    """The ends of the lists of the first row that differs."""
    if first is None:
        return []
    ends = (f"  {name} {_end(first[key])}" for name, key in (("the table has", "stored"), ("rebuilt are  ", "rebuilt")))
    return [f"{_place(first)}:", *ends]


def _end(end: dict[str, Any]) -> str:
    last = ", ".join("null" if each is None else str(each) for each in end["last"])
    return f"{end['length']:,} events: [{'… ' if end['length'] > len(end['last']) else ''}{last}]"
