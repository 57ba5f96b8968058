"""Define the command line: each command parses its arguments, calls one library function, and prints its result.

Runs in: the process of the command. Exit status: 0 done, 1 a job failed, 2 wrong input, 130 Ctrl-C, 143 SIGTERM. A
command imports what it needs when it runs: everything together takes 1.5 s of CPU time, the help none of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from feedline.commands.command_list import LOOK, OPERATE, PREPARE, RUN, CommandList
from feedline.commands.consoles import console_on, print_facts, say
from feedline.commands.exit_status import Stop, end_with
from feedline.commands.pipeline_arguments import (
    AsJson,
    Overrides,
    PipelinePath,
    Source,
    complete_features,
    complete_pipeline,
    complete_words,
    rejoin_override,
)
from feedline.commands.progress_line import ProgressLine
from feedline.errors import SpecError
from feedline.version import VERSION

if TYPE_CHECKING:
    from feedline.config import PipelineSpec

_HELP = """Feed PyTorch trainers from a Parquet warehouse, and look after the tables that feed them.

Exit status: 0 done, 1 a job failed, 2 wrong input, 130 Ctrl-C, 143 SIGTERM."""
app = typer.Typer(cls=CommandList, no_args_is_help=True, pretty_exceptions_enable=False, help=_HELP)


def main() -> NoReturn:
    """The program `feedline`."""
    rejoin_override(os.environ)
    end_with(app)


def _print_version(requested: bool) -> None:
    if requested:
        version()
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print Feedline's version and compiled kernels.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass  # `--version` has ended the program by now


def _load(pipeline: Path, overrides: list[str] | None, source: str | None = None) -> PipelineSpec:
    """The pipeline, with the overrides of `--set`, or that of one of its sources alone."""
    from feedline.config import load_spec
    from feedline.config.overrides import parse_overrides

    spec = load_spec(pipeline, parse_overrides(overrides or []))
    return spec if source is None else spec.for_source(source)


@app.command(rich_help_panel=RUN)
def run(
    pipeline: PipelinePath,
    sink: Annotated[
        str,
        typer.Option(
            help="trainer: serve trainers on this host; null: drain the ring.",
            autocompletion=complete_words("trainer", "null"),
        ),
    ] = "trainer",
    overrides: Overrides = None,
    ranks: Annotated[str | None, typer.Option(help="Ranks of this host, such as 0-7 or 0,2 (default: all).")] = None,
    world_size: Annotated[
        int | None, typer.Option(min=1, help="Ranks of the whole job (default: those of this host).")
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Deliver a column group: this feature, or those of this group; repeatable.",
            autocompletion=complete_features,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Feed trainers on this host, or measure how fast that would be (--sink null)."""
    from feedline.commands.run import RunRequest, parse_ranks, print_summary, run_null, run_trainers
    from feedline.config import load_spec
    from feedline.config.chosen_features import choose_features
    from feedline.config.overrides import parse_overrides

    if sink not in ("trainer", "null"):
        raise SpecError(f"--sink is unknown: got {sink!r}, expected trainer or null")
    spec = load_spec(pipeline, parse_overrides(overrides or []))
    here = parse_ranks(ranks, world_size)
    request = RunRequest(
        spec=spec,
        ranks=here,
        world_size=world_size or len(here),
        column_group=() if features is None else choose_features(spec, features),
    )
    console = console_on(stderr=as_json)
    stop = Stop()
    with stop.on_signals():
        summary = (run_null if sink == "null" else run_trainers)(request, console, stop)
    if as_json:
        print(json.dumps(dataclasses.asdict(summary)))
    else:
        print_summary(summary, console)
    if stop.status is not None:
        raise typer.Exit(stop.status)


RowsPerSecond = Annotated[
    float, typer.Option(min=0, help="Rows per second of a rank, to compare with what a Dask scheduler handles.")
]
Save = Annotated[
    bool, typer.Option("--save", help="Also save snapshot and counts in work_dir, and fit for `fit: auto`.")
]


@app.command(rich_help_panel=LOOK)
def plan(
    pipeline: PipelinePath,
    overrides: Overrides = None,
    world_size: Annotated[int, typer.Option(min=1, help="Ranks of the whole job.")] = 1,
    ops: Annotated[
        bool, typer.Option("--ops", help="Show each feature's chain instead: types, shared steps, cost.")
    ] = False,
    dedup: Annotated[
        bool, typer.Option("--dedup", help="Propose groups of features to deduplicate instead, and measure them.")
    ] = False,
    step: Annotated[
        int | None, typer.Option(min=0, help="Show the files, row groups and rows of this step instead.")
    ] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="With --step: of this rank (default: all).")] = None,
    epoch: Annotated[int, typer.Option(min=0, help="With --step: of this epoch.")] = 0,
    state: Annotated[
        Path | None, typer.Option(help="With --step: the plan of a state, the JSON of a dataset's state_dict.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Show how it differs from another pipeline's instead.", autocompletion=complete_pipeline),
    ] = None,
    rows_per_s: RowsPerSecond = 0.0,
    save: Save = False,
    source: Source = None,
    as_json: AsJson = False,
) -> None:
    """Show what a run would do: what is pruned and why, what is read, rows, steps, memory."""
    from feedline.commands.plan import views
    from feedline.loader.state import read_state
    from feedline.pipeline import Pipeline
    from feedline.planning.table_features import required_functions
    from feedline.transforms.registry.user_functions import keep_pandas_out

    spec = _load(pipeline, overrides, source)
    keep_pandas_out(required_functions(spec))
    if step is None and (rank is not None or epoch or state is not None):
        raise SpecError("--rank, --epoch and --state describe a step: got no --step. Name one")
    if save:
        if step is not None or ops or dedup or against is not None:
            raise SpecError("--save shows the plan: got --step, --ops, --dedup or --against beside it. Leave out one")
        views.print_saved_plan(spec, world_size, rows_per_s, as_json=as_json)
        return
    own = Pipeline(spec)
    with ProgressLine():
        resolved = own.plan(world_size=world_size) if state is None else own.plan_for(read_state(state))
        other = None if against is None else Pipeline(_load(against, None, source)).plan(world_size=world_size)
    if step is not None:
        views.print_step(resolved, epoch=epoch, step=step, rank=rank, world_size=world_size, as_json=as_json)
    elif other is not None:
        views.print_against(resolved, other, world_size, as_json=as_json)
    elif ops:
        from feedline.workbench.explain.op_costs import print_ops

        print_ops(resolved, as_json=as_json)
    elif dedup:
        views.print_groups(resolved, as_json=as_json)
    else:
        views.print_plan(resolved, world_size, rows_per_s, as_json=as_json)


@app.command(rich_help_panel=LOOK)
def head(
    pipeline: PipelinePath,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, max=1_000, help="Number of rows.")] = 5,
    overrides: Overrides = None,
    source: Source = None,
    as_json: AsJson = False,
) -> None:
    """Show the first rows of the table beside their features; ids of vocabularies with their values."""
    from feedline.commands.head import json_facts, preview, preview_table

    with ProgressLine():
        facts = preview(_load(pipeline, overrides, source), rows)
    print_facts(json_facts(facts) if as_json else facts, preview_table, as_json=as_json)


@app.command(rich_help_panel=RUN)
def rebase(
    pipeline: PipelinePath,
    state: Annotated[
        Path, typer.Argument(metavar="STATE", help="The run's state: the JSON of a dataset's state_dict.")
    ],
    output: Annotated[Path | None, typer.Option(help="The file of the new state (default: standard output).")] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Plan the rest of a state's epoch on the current table, and write the state that continues there."""
    from feedline.loader.plan_descriptions import describe_rebase
    from feedline.loader.state import read_state
    from feedline.loader.wire.codec import to_values
    from feedline.pipeline import Pipeline

    with ProgressLine():
        plan = Pipeline(_load(pipeline, overrides)).rebase(before := read_state(state))
    after = plan.state_after(before)
    rest = None if after == before else plan.facts().rest
    say(Console(stderr=True), "the table has not changed" if rest is None else describe_rebase(rest))
    if output is not None:
        output.write_text(json.dumps(after) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps({"state": after, "rest": None if rest is None else to_values(rest)}))
    elif output is None:
        print(json.dumps(after))


@app.command(rich_help_panel=PREPARE)
def snapshot(
    pipeline: PipelinePath,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The snapshot's file: a path or URI.")],
    overrides: Overrides = None,
    source: Source = None,
) -> None:
    """Write a snapshot of the current table to one file, for `source.snapshot: FILE`."""
    from feedline.planning.table_snapshot import freeze

    with ProgressLine():
        frozen = freeze(_load(pipeline, overrides, source), file)
    print(f"snapshot {frozen.id}: {len(frozen.files):,} files, {frozen.rows:,} rows: {file}")


@app.command(rich_help_panel=LOOK)
def schema(
    pipeline: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PIPELINE.YAML]",
            help="The pipeline whose batches are described.",
            autocompletion=complete_pipeline,
        ),
    ] = None,
    samples: Annotated[
        bool, typer.Option("--samples", help="The JSON Schema of samples.yaml, which feedline build reads.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the JSON Schema to this file: pipeline.schema.json")
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show the tensors of a pipeline's batches: positions, widths, rows of embeddings. Without a pipeline, print the
    JSON Schema of pipeline.yaml, or of samples.yaml, for editors."""
    from feedline.commands.schema import describe_schema, schema_table, write_json_schema
    from feedline.config.build_spec import json_schema
    from feedline.pipeline import Pipeline

    if pipeline is None:
        if overrides:
            raise SpecError("--set overrides a pipeline's keys: got no pipeline. Name one, or omit --set")
        document = json_schema() if samples else Pipeline.json_schema()
        if output is not None:
            write_json_schema(output, document)
        else:
            print(json.dumps(document, indent=2))
        return
    for option, given in (("--output", output is not None), ("--samples", samples)):
        if given:
            raise SpecError(f"{option} is of the JSON Schema of any file: got a pipeline. Leave one of the two out")
    spec = _load(pipeline, overrides)
    with ProgressLine():
        facts = describe_schema(Pipeline(spec).schema, spec.batch.size)
    print_facts(facts, schema_table, as_json=as_json, highlight=False)


@app.command(rich_help_panel=OPERATE)
def version() -> None:
    """Print Feedline's version and compiled kernels."""
    from feedline.native.kernels import kernels_text

    print(f"{VERSION}\nkernels: {kernels_text()}")
