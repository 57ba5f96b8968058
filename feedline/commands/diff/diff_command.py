"""Run `feedline diff`: how two pipelines differ, or one with and without overrides.

Runs in: the process of the command. Both are planned on their tables as they are now.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feedline.commands.arguments.completions import complete_override, complete_pipeline
from feedline.commands.arguments.pipeline_arguments import AsJson
from feedline.commands.diff.diff_table import diff_table
from feedline.commands.diff.differences import describe_differences
from feedline.commands.display.consoles import print_facts
from feedline.commands.display.progress_line import ProgressLine
from feedline.errors import SpecError
from feedline.pipeline import Pipeline
from feedline.planning.binding.table_features import required_functions
from feedline.planning.plan import Plan
from feedline.planning.sources.mixed_plan import require_plain
from feedline.spec import PipelineSpec, load_spec
from feedline.spec.document.overrides import parse_overrides
from feedline.transforms.registry.user_functions import keep_pandas_out


def diff(
    a: Annotated[Path, typer.Argument(metavar="A.YAML", help="A pipeline.", autocompletion=complete_pipeline)],
    b: Annotated[
        Path | None,
        typer.Argument(
            metavar="B.YAML", help="Another (default: A with the overrides).", autocompletion=complete_pipeline
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key of B: --set batch.size=512", autocompletion=complete_override),
    ] = None,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="One of the pipelines' `sources` alone.")] = None,
    world_size: Annotated[int, typer.Option(min=1, help="Ranks of the whole job.")] = 1,
    cost: Annotated[bool, typer.Option("--cost", help="Measure what differing features take of the CPU.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two pipelines: rows, what is read, features, fingerprints, whether a run continues, cost."""
    if b is None and not overrides:
        raise SpecError("diff compares two pipelines: got one, without --set. Name another, or overrides of this one")
    specs = [load_spec(a), load_spec(b or a, parse_overrides(overrides or []))]
    with ProgressLine():
        plans = [_plan(spec if source is None else spec.for_source(source), world_size) for spec in specs]
        facts = describe_differences(*plans, world_size=world_size, with_cost=cost)
    print_facts(facts, diff_table, as_json=as_json, highlight=False)


def _plan(spec: PipelineSpec, world_size: int) -> Plan:
    keep_pandas_out(required_functions(spec))
    return require_plain(Pipeline(spec).plan(world_size=world_size), "diff")
