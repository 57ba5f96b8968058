"""Run `feedline transform`: the rows of a file through a pipeline's features.

Runs in: the process of the command, without Dask and torch, which a host that serves a model does not need. Therefore
`feedline.__main__` calls this module directly, not through `cli`, which has this command, too.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from feedline.commands.exit_status import exit_on_signals
from feedline.commands.pipeline_arguments import AsJson, Overrides, PipelinePath
from feedline.config import PipelineSpec, load_spec
from feedline.config.features import GROUPS
from feedline.config.overrides import parse_overrides
from feedline.errors import SpecError
from feedline.serving.encoder import SERVED_GROUPS, Serving
from feedline.serving.files import STREAM, transform_file
from feedline.serving.golden_check import check as check_vectors


def transform(
    pipeline: PipelinePath,
    source: Annotated[
        str | None,
        typer.Argument(metavar="IN", help="Rows: Parquet (file, folder, glob, URI), an Arrow file, - (a stream)."),
    ] = None,
    target: Annotated[
        str | None, typer.Argument(metavar="OUT", help="A file: .parquet, .arrow; - (an Arrow stream).")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check this installation against the golden vectors; without IN and OUT.")
    ] = False,
    ulps: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --check: float32 neighbours between floats (default: 0; 4 in another environment).",
        ),
    ] = None,
    groups: Annotated[str, typer.Option(help="Groups of features to compute.")] = ",".join(SERVED_GROUPS),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Turn rows of a file into features, exactly as training does. Needs only pipeline.yaml and its artifacts.

    With --check, exit status 1 if this installation computes other values than the one that fitted.
    """
    spec = load_spec(pipeline, parse_overrides(overrides or []))
    if check:
        if source is not None or target is not None:
            raise SpecError("--check reads its own rows: got IN as well. Omit IN and OUT")
        _check(spec, ulps, as_json=as_json)
        return
    if source is None or target is None or ulps is not None:
        raise SpecError("transform needs IN and OUT, or --check: write feedline transform PIPELINE.YAML IN OUT")
    selected = tuple(name.strip() for name in groups.split(",") if name.strip())
    if not selected or set(selected).difference(GROUPS):
        raise SpecError(f"--groups must name groups: got {groups!r}, expected some of {', '.join(GROUPS)}")
    if as_json and target == STREAM:
        raise SpecError("--json and OUT both write to standard output: got -, expected a file. Name one")
    serving = Serving(spec, groups=selected)
    if (reads := next((each for each in serving.features if each.history is not None), None)) is not None:
        message = f"transform has no events for features of histories: got {reads.name!r}"
        raise SpecError(f"{message}. Use Pipeline.transform(rows, histories=…), or leave the features out")
    with exit_on_signals():  # which removes unfinished output
        summary = transform_file(serving, source, target, overwrite=overwrite)
    if as_json:
        print(json.dumps(asdict(summary)))
    else:
        print(
            f"{summary.rows:,} rows in {summary.seconds:.1f} s, {len(summary.columns)} features, "
            f"{summary.bytes:,} bytes: {target}",
            file=sys.stderr if target == STREAM else sys.stdout,
        )


def _check(spec: PipelineSpec, ulps: int | None, *, as_json: bool) -> None:
    result = check_vectors(spec, ulps=ulps)
    print(json.dumps({**asdict(result), "passed": result.passed}) if as_json else result.text())
    if not result.passed:
        raise typer.Exit(1)
