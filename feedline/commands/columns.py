"""Run `feedline columns`, which adds columns to a table, drops and lists them, without rewriting the table.

Runs in: the process of the command. `add` computes and writes on a Dask cluster on this machine, in threads of this
process unless worker processes are asked for.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from functools import lru_cache
from typing import Annotated

import pyarrow as pa
import pyarrow.types as pat
import typer
from rich.console import Console
from rich.table import Table as RichTable

from feedline.commands.cluster.connect import task_cluster
from feedline.commands.consoles import console_on, say
from feedline.commands.pipeline_arguments import AsJson
from feedline.config import PipelineSpec, load_spec
from feedline.config.column_ranges import split_names
from feedline.dataclass import dataclass
from feedline.errors import SpecError
from feedline.loader.encoding.encoded_rows import arrow_table
from feedline.planning.table_features import compile_spec, planned_schema
from feedline.resources.cgroups import available_cores
from feedline.serving.encoder import Serving
from feedline.warehouse.columns.change import add_columns, drop_columns, table_now
from feedline.warehouse.columns.column_list import ColumnList, list_columns
from feedline.warehouse.columns.values import ColumnSource, ExpressionValues, joined_values
from feedline.warehouse.optimize.usage import load_uses
from feedline.warehouse.reading.fragment import nearest_hint
from feedline.warehouse.storage.locations import absolute, redact

_PIPELINE = re.compile(r"(?P<path>.+\.ya?ml):(?P<feature>[^/:\s]+)(\s+as\s+(?P<name>\S+)\s*)?\Z")
_EXPRESSION = re.compile(r"(?P<expression>.+)\s+as\s+(?P<name>\S+)\s*\Z", re.DOTALL)
_SHOWN_PARTITIONS = 3

columns = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Add columns to a table, drop and list them, without rewriting it: in column files beside its own.",
)

TablePath = Annotated[
    str, typer.Argument(metavar="TABLE", help="The folder of a table of Parquet files; a path or URI.")
]


@columns.command()
def add(
    table: TablePath,
    origin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="'EXPR as NAME', another table (with --key and --columns), or 'pipeline.yaml:feature as NAME'.",
        ),
    ],
    key: Annotated[str, typer.Option(help="Columns of both tables that identify a row of the other one: a,b.")] = "",
    names: Annotated[str, typer.Option("--columns", metavar="COLUMNS", help="Columns of the other table: a,b,c.")] = "",
    where: Annotated[
        str | None, typer.Option(help="A condition on partition keys: files to which the columns are added.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the columns where files have them.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes (default: threads of this process).")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Worker threads (default: all cores).")] = None,
    as_json: AsJson = False,
) -> None:
    """Add columns to all files of a table, or to those of some partitions."""
    console = console_on(stderr=as_json)
    source = _source(origin, key, names)
    stopped = "stopped: the table is as it was"
    with task_cluster(console, stopped, workers=workers, threads=threads or available_cores()) as cluster:
        report = add_columns(table, source, where=where, replaced=replace, map=cluster.map)
    if as_json:
        print(json.dumps(asdict(report)))
        return
    added = ", ".join(f"{name} ({kind})" for name, kind in report.columns.items())
    say(
        console,
        f"added {added} to {report.files:,} of {report.table_files:,} files of {report.table}: {report.rows:,} rows, "
        f"{report.bytes:,} bytes written",
    )


@columns.command()
def drop(
    table: TablePath,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The columns.")],
    as_json: AsJson = False,
) -> None:
    """Drop columns: the table does not have them any more. Their bytes go when `feedline optimize` writes it again."""
    report = drop_columns(table, tuple(dict.fromkeys(names)))
    if as_json:
        print(json.dumps(asdict(report)))
        return
    say(
        console_on(),
        f"dropped {', '.join(report.columns)} from {report.table}: {report.bytes:,} bytes stay in its files until "
        "feedline optimize writes it again",
    )


@columns.command("list")
def list_(
    table: TablePath,
    usage: Annotated[bool, typer.Option("--usage", help="Show runs that read each column, unread ones first.")] = False,
    work_dir: Annotated[str, typer.Option(help="The work_dir of the runs, with their usage record.")] = ".feedline",
    as_json: AsJson = False,
) -> None:
    """List the columns that were added: what they cover and take and, with --usage, when runs read them."""
    listing, snapshot = table_now(absolute(table))
    facts = list_columns(listing, snapshot, load_uses(work_dir, snapshot.uri) if usage else ())
    if as_json:
        print(json.dumps(asdict(facts)))
    else:
        _show(facts, console_on(), usage=usage)


def _show(facts: ColumnList, console: Console, *, usage: bool) -> None:
    table = RichTable(title=f"{redact(facts.table)}: columns of column files", title_justify="left")
    headings = ["column", "type", "from", "partitions", "rows", "bytes", *(["runs", "last read"] if usage else [])]
    for heading in headings:
        table.add_column(heading, justify="right" if heading in ("rows", "bytes", "runs") else "left", overflow="fold")
    for column in facts.columns:
        share = f"{len(column.partitions):,} of {facts.partitions:,}: {_range(column.partitions)}"
        cells = [column.name, column.type, column.source, share, f"{column.rows:,}", f"{column.bytes:,}"]
        table.add_row(*cells, *([f"{column.runs:,}", (column.last_read or "never")[:19]] if usage else []))
    console.print(table)
    lines = []
    if usage:
        unread = [column for column in facts.columns if column.last_read is None]
        held = sum(column.bytes for column in unread)
        lines.append(
            f"{len(unread)} of {len(facts.columns)} columns were never read: {held:,} bytes ({facts.runs} runs)"
        )
    if facts.dropped:
        lines.append(f"dropped, though files of the table hold them: {', '.join(facts.dropped)}")
    if facts.unread_bytes:
        lines.append(f"{facts.unread_bytes:,} bytes are in column files that are read no more")
    if lines:
        say(console, "\n".join(lines))


def _range(partitions: tuple[str, ...]) -> str:
    if len(partitions) <= _SHOWN_PARTITIONS:
        return ", ".join(partitions)
    return f"{partitions[0]} … {partitions[-1]}"


# -- where values come from -------------------------------------------------------------------------------------------


def _source(origin: str, key: str, names: str) -> ColumnSource:
    keys, columns_of_table = _names("--key", key), _names("--columns", names)
    expression, pipeline = _EXPRESSION.match(origin), _PIPELINE.match(origin)
    if expression is None and pipeline is None:
        if not keys or not columns_of_table:
            raise SpecError(
                f"--from {origin!r} is a table, without --key or --columns: got {key!r} and {names!r}, expected both. "
                "Name them; or write an expression with a name, --from 'price / 2 as half', or pipeline.yaml:feature"
            )
        return joined_values(absolute(origin), keys, columns_of_table)
    if keys or columns_of_table:
        raise SpecError(f"--key and --columns belong to a table: got them with --from {origin!r}. Leave them out")
    if pipeline is not None:
        feature = pipeline["feature"]
        return FeatureValues(pipeline=absolute(pipeline["path"]), feature=feature, name=pipeline["name"] or feature)
    assert expression is not None
    return ExpressionValues(expression=expression["expression"].strip(), name=expression["name"])


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureValues:
    """One column: a feature of a pipeline, as training and serving compute it, with its fitted artifacts."""

    pipeline: str
    feature: str
    name: str

    @property
    def text(self) -> str:
        return f"{redact(self.pipeline)}:{self.feature} as {self.name}"

    def inputs(self, schema: pa.Schema) -> tuple[str, ...]:
        """As `ColumnSource.inputs`."""
        spec = _spec(self)
        return compile_spec(spec, planned_schema(spec, schema), spec.features).columns

    def compute(self, rows: pa.Table) -> pa.Table:
        """As `ColumnSource.compute`."""
        encoded, columns_of_batch = _serving(self).encode(rows)
        values = arrow_table(encoded, columns_of_batch).column(self.feature)
        narrow = pa.list_(values.type.value_type) if pat.is_large_list(values.type) else values.type
        return pa.table({self.name: values.cast(narrow)})


@lru_cache(maxsize=8)
def _spec(source: FeatureValues) -> PipelineSpec:
    """The pipeline with that feature alone."""
    spec = load_spec(source.pipeline, {})
    feature = next((each for each in spec.features if each.name == source.feature), None)
    if feature is None:
        hint = nearest_hint(source.feature, [each.name for each in spec.features])
        raise SpecError(f"feature {source.feature!r} is not in {source.pipeline}. {hint}")
    if feature.history is not None:
        raise SpecError(
            f"feature {source.feature!r} is a list of events of a history: expected one of the row's own columns. "
            "Histories are joined while rows are read, and need no column"
        )
    return spec.model_copy(update={"features": (feature,)})


@lru_cache(maxsize=8)
def _serving(source: FeatureValues) -> Serving:
    spec = _spec(source)
    return Serving(spec, groups=(spec.features[0].group,))


def _names(option: str, text: str) -> tuple[str, ...]:
    if not text:
        return ()
    try:
        return split_names(text)
    except ValueError as error:
        raise SpecError(f"{option}: {error}") from None
