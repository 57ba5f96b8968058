"""Run `feedline materialize`: the features of a plan's rows as zarr arrays or Parquet.

Runs in: the process of the command. The work is done by threads of this process, or by the Dask workers of `cluster`.
Ctrl-C and SIGTERM end it in order: OUT is as it was, or lacks the marker of a complete folder.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from feedline.commands.cluster.connect import pipeline_cluster
from feedline.commands.exit_status import exit_on_signals
from feedline.commands.pipeline_arguments import AsJson, Overrides, PipelinePath, Source, complete_words
from feedline.commands.progress_line import ProgressLine
from feedline.config import PipelineSpec, load_spec
from feedline.config.overrides import parse_overrides
from feedline.materialize.write_plan import MaterializeReport
from feedline.pipeline import Pipeline
from feedline.service.cluster.fit_workers import DaskWorkers


def materialize(
    pipeline: PipelinePath,
    out: Annotated[str, typer.Argument(metavar="OUT", help="A folder or URI, empty or missing.")],
    format: Annotated[
        str, typer.Option(help="zarr (version 3) or parquet.", autocompletion=complete_words("zarr", "parquet"))
    ] = "zarr",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier `feedline materialize` wrote to OUT.")
    ] = False,
    overrides: Overrides = None,
    source: Source = None,
    as_json: AsJson = False,
) -> None:
    """Write the finished features of all selected rows, in the table's order, as arrays or Parquet."""
    spec = load_spec(pipeline, parse_overrides(overrides or []))
    spec = spec if source is None else spec.for_source(source)
    report = _write(spec, out, format, overwrite=overwrite)
    if as_json:
        print(json.dumps(asdict(report)))
    else:
        print(
            f"{report.rows:,} rows in {report.seconds:.1f} s, {report.features} features, {report.bytes:,} bytes: "
            f"{report.output}"
        )


def _write(spec: PipelineSpec, out: str, format: str, *, overwrite: bool) -> MaterializeReport:
    with (
        ProgressLine() as line,
        exit_on_signals(lambda: line.note("stopped: OUT was not completed")),
        pipeline_cluster(spec) as cluster,
        warnings.catch_warnings(),
    ):
        warnings.showwarning = lambda message, *_: line.note(f"warning: {message}")
        write = partial(Pipeline(spec).materialize, out, format=format, overwrite=overwrite)
        return write() if cluster is None else write(workers=DaskWorkers(cluster), map=cluster.map)
