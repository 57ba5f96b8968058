"""Run `feedline profile`, which describes a table and its columns, or what differs between two.

Runs in: the process of the command. Footers and a bounded sample of rows are read, in threads.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from feedline.commands.consoles import console_on, say
from feedline.commands.pipeline_arguments import AsJson, Source, names_pipeline
from feedline.commands.progress_line import ProgressLine
from feedline.config import PipelineSpec
from feedline.config.column_ranges import split_names
from feedline.errors import SpecError
from feedline.pipeline import Pipeline
from feedline.workbench.profile.drift import TableDrift, compare_tables
from feedline.workbench.profile.profile_page import drift_page, profile_page
from feedline.workbench.profile.profile_table import ProfileOptions, profile_table
from feedline.workbench.profile.profile_tables import print_drift, print_profile

_Names = str | tuple[str, ...]
Where = Annotated[str | None, typer.Option(help="Only rows that this expression keeps: \"ds == '2026-01-02'\".")]
OtherWhere = Annotated[
    str | None, typer.Option(help="Compare with these rows, of OTHER or of the same table (default: all of OTHER).")
]
Columns = Annotated[str | None, typer.Option(help="Read rows of these columns alone: a,b,hist_{0..5}.")]


def profile(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="The table: a folder, file, glob or URI; or a pipeline.yaml.")
    ],
    where: Where = None,
    columns: Columns = None,
    label: Annotated[str | None, typer.Option(help="The label (default: the likeliest column).")] = None,
    time: Annotated[str | None, typer.Option(help="The time of a row (default: the likeliest column).")] = None,
    session: Annotated[str | None, typer.Option(help="The column of sessions (default: the likeliest).")] = None,
    compare: Annotated[str | None, typer.Option(metavar="OTHER", help="Show the drift from TABLE to OTHER.")] = None,
    other_where: OtherWhere = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Of a pipeline.yaml: the drift from the rows of its fit to those of its runs.")
    ] = False,
    fail_above: Annotated[
        float | None, typer.Option(min=0, help="With a comparison: exit status 1 if a column's PSI is above this.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows to sample, at most.")] = 65_536,
    values: Annotated[bool, typer.Option("--values", help="Show frequent strings, which are values of rows.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with histograms, too.")] = None,
    source: Source = None,
    as_json: AsJson = False,
) -> None:
    """Describe a table: its layout and columns with their distributions, or the drift between two tables or days."""
    names, options = _options(table, source)
    options = replace(
        options,
        where=options.where if where is None else where,
        columns=None if columns is None else _split(columns),
        label=label,
        time=time,
        session=session,
        values=values,
        sample_rows=rows,
    )
    comparison = None
    if fit and (compare is not None or not names_pipeline(table)):
        raise SpecError("--fit compares the rows of one pipeline.yaml: got another table. Leave out --compare")
    if fit:
        comparison = (names, names, *_fit_and_run(_spec(table, source), options, other_where))
    elif compare is not None:
        comparison = (names, *_other(compare, options, other_where))
    elif other_where is not None:
        comparison = (names, names, options, replace(options, where=other_where))
    if comparison is None and fail_above is not None:
        raise SpecError("--fail-above needs a comparison: got none of --compare, --other-where and --fit. Name one")
    with ProgressLine():
        found = profile_table(names, options) if comparison is None else compare_tables(*comparison)
    if html is not None:
        html.write_text(drift_page(found) if isinstance(found, TableDrift) else profile_page(found), encoding="utf-8")
    console = console_on(stderr=as_json)
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
    elif isinstance(found, TableDrift):
        print_drift(found, console)
    else:
        print_profile(found, console)
    if isinstance(found, TableDrift) and fail_above is not None:
        _end(found, fail_above, console)


def _end(drift: TableDrift, limit: float, console: Console) -> None:
    above = drift.above(limit)
    if above:
        names = ", ".join(repr(column.name) for column in above[:10]) + (", ..." if len(above) > 10 else "")
        say(console, f"{len(above)} columns are above {limit:g}, or cannot be compared: {names}")
        raise typer.Exit(1)


def _options(table: str, source: str | None) -> tuple[_Names, ProfileOptions]:
    if not names_pipeline(table):
        if source is not None:
            raise SpecError("--source names one of a pipeline's tables: got a table. Name a pipeline.yaml")
        return table, ProfileOptions()
    spec = _spec(table, source).source
    options = ProfileOptions(
        where=spec.where,
        format=spec.format,
        version=spec.version,
        snapshot_id=spec.snapshot_id,
        as_of=None if spec.as_of is None else str(spec.as_of),
        partitions=None if spec.partitions is None else dict(spec.partitions),
    )
    return spec.table if isinstance(spec.table, str) else tuple(spec.table), options


def _fit_and_run(
    spec: PipelineSpec, options: ProfileOptions, other_where: str | None
) -> tuple[ProfileOptions, ProfileOptions]:
    """How to read the rows of a pipeline's fit, and those of its runs or of `other_where`."""
    seen, read = spec.fit.where or options.where, options.where if other_where is None else other_where
    if seen == read:
        raise SpecError(
            "--fit compares rows of a fit with others: got the same for both, as fit.where is not stated. "
            "Name the rows of a run by --other-where"
        )
    return replace(options, where=seen), replace(options, where=read)


def _other(
    table: str, options: ProfileOptions, other_where: str | None
) -> tuple[_Names, ProfileOptions, ProfileOptions]:
    names, other = _options(table, None)
    chosen = {name: getattr(options, name) for name in ("columns", "values", "sample_rows", "label", "time")}
    where = other.where if other_where is None else other_where
    return names, options, replace(other, **chosen, where=where)


def _spec(path: str, source: str | None) -> PipelineSpec:
    pipeline = Pipeline.from_yaml(path)
    return (pipeline if source is None else pipeline.of_source(source)).spec


def _split(text: str) -> tuple[str, ...]:
    try:
        return split_names(text, ranges=True)
    except ValueError as error:
        raise SpecError(f"--columns: {error}") from None
