"""The commands about a table's layout: `feedline optimize` writes it anew, `feedline usage` says what is read of it.

Runs in: the process of the command, as `cli` has it. `optimize` starts a Dask cluster of this machine for its tasks.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic_core import PydanticCustomError
from rich.console import Console

from feedline.commands.layout_report import describe_report, show_popularity, show_report
from feedline.errors import SpecError
from feedline.expressions.column_parts import source_columns
from feedline.pipeline import Pipeline
from feedline.planning.plan import read_columns_of
from feedline.resources import available_cores, make_scratch
from feedline.service.cluster.cluster import Cluster
from feedline.spec import load_spec
from feedline.spec.sections import ClusterSpec, parse_bytes
from feedline.warehouse.optimize.optimize import OptimizeReport
from feedline.warehouse.optimize.usage import load_uses, popularity
from feedline.warehouse.parquet.encodings import GOALS
from feedline.warehouse.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
WorkDir = Annotated[str, typer.Option(help="Where runs of Feedline keep their usage record.")]


def optimize(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The table: a folder, a file, a glob; a path or URI.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="An empty or missing folder, or an earlier run's.")],
    cluster_by: Annotated[str, typer.Option(help="Rows of a key together, keys in hashed order: session_id.")] = "",
    sort_by: Annotated[str, typer.Option(help="The order of a key's rows: ts.")] = "",
    order: Annotated[str, typer.Option(help="Columns first in files: keep, popular, or a,b,c.")] = "keep",
    goal: Annotated[str, typer.Option("--for", help="What encodings are chosen for: decode, balanced, size.")] = (
        "balanced"
    ),
    row_group_rows: Annotated[int, typer.Option(help="Rows of a row group.")] = 65_536,
    row_group_bytes: Annotated[str | None, typer.Option(help="Decoded bytes of a row group, at most: 64MiB.")] = None,
    file_bytes: Annotated[str, typer.Option(help="Bytes of a file, at most (one row group may be more).")] = "256MiB",
    small_partitions: Annotated[
        str, typer.Option(help="Partitions smaller than a row group: merge their files, or keep them apart.")
    ] = "merge",
    flatten: Annotated[list[str] | None, typer.Option(help="A map column whose keys become columns.")] = None,
    flatten_coverage: Annotated[float, typer.Option(help="Share of rows that must have such a key.")] = 0.01,
    keep_nullable: Annotated[bool, typer.Option(help="Leave columns without nulls nullable.")] = False,
    projection: Annotated[str, typer.Option(help="Columns (a,b,c) or a pipeline.yaml whose reading is compared.")] = "",
    work_dir: WorkDir = ".feedline",
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes, instead of threads.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads: all cores, unless said.")] = None,
    memory: Annotated[str | None, typer.Option(help="What tasks may use: half of what is free, unless said.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a table anew so that reading it is cheap: clustered, compacted, each column in its best encoding."""
    if goal not in GOALS:
        raise SpecError(f"--for is unknown: got {goal!r}, expected one of {', '.join(GOALS)}")
    console = Console(stderr=as_json)
    table = Table(source)
    asked: dict[str, Any] = {
        "cluster_by": _listed(cluster_by),
        "sort_by": _listed(sort_by),
        "order": order if order in ("keep", "popular") else _listed(order),
        "goal": goal,
        "row_group_rows": row_group_rows,
        "row_group_bytes": None if row_group_bytes is None else _bytes("--row-group-bytes", row_group_bytes),
        "file_bytes": _bytes("--file-bytes", file_bytes),
        "small_partitions": small_partitions,
        "flatten": flatten or (),
        "flatten_coverage": flatten_coverage,
        "keep_nullable": keep_nullable,
        "work_dir": work_dir,
        "projection": _projected(projection, table),
        "memory_bytes": None if memory is None else _bytes("--memory", memory),
    }
    report = _optimized(table, target, asked, console, workers=workers, threads=threads or available_cores())
    if as_json:
        print(json.dumps(describe_report(report)))
    else:
        show_report(report, console)


def usage(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table, or a pipeline.yaml that names it.")],
    work_dir: WorkDir = ".feedline",
    as_json: AsJson = False,
) -> None:
    """Show what runs of Feedline read of a table: columns, bytes, the popularity curve."""
    if _is_pipeline(table):
        pipeline = Pipeline.from_yaml(table)
        snapshot, work_dir = pipeline.snapshot(), pipeline.spec.work_dir  # the files that its runs read
    else:
        snapshot = Table(table).snapshot()
    facts = popularity(load_uses(work_dir, snapshot.uri), snapshot)
    if as_json:
        print(json.dumps(asdict(facts)))
    else:
        show_popularity(facts, Console())


def _optimized(
    table: Table, target: str, asked: dict[str, Any], console: Console, *, workers: int | None, threads: int
) -> OptimizeReport:
    """Run it on a Dask cluster of this machine: worker processes, or threads of this one."""
    scratch = make_scratch()
    cluster = Cluster(ClusterSpec(workers=workers), threads=1 if workers else threads, scratch=scratch)
    interrupted = False
    try:
        cluster.check_workers()
        return table.optimize(
            target,
            **asked,
            map=cluster.map,
            threads=workers or threads,
            say=lambda text: console.print(text, highlight=False, soft_wrap=True),
        )
    except KeyboardInterrupt:
        interrupted = True
        console.print("stopped: finished partitions stay, the same command goes on from there")
        raise typer.Exit(130) from None
    finally:
        if not interrupted or workers:  # threads end with this process
            cluster.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _projected(text: str, table: Table) -> tuple[str, ...]:
    """The columns that a list names, or that a pipeline reads of files."""
    if not _is_pipeline(text):
        return _listed(text)
    spec = load_spec(Path(text), {})
    snapshot = table.snapshot()
    read = set(source_columns(snapshot.schema, sorted(read_columns_of(spec, snapshot.schema).columns(snapshot.schema))))
    return tuple(name for name in snapshot.file_columns if name in read)


def _is_pipeline(text: str) -> bool:
    return text.endswith((".yaml", ".yml"))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _bytes(option: str, text: str) -> int:
    try:
        return parse_bytes(int(text) if text.isdigit() else text)
    except PydanticCustomError as error:
        context = error.context or {}
        raise SpecError(f"{option} is no size: got {text!r}, expected {context.get('expected')}") from None
