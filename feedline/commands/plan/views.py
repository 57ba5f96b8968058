"""Print what `feedline plan` shows of a plan: the plan itself, or another view of it, as a table or as JSON.

Runs in: the process of the command.
"""

from __future__ import annotations

import dataclasses
import json

from feedline.commands.consoles import console_on, print_facts, say
from feedline.commands.dedup_table import print_proposals
from feedline.commands.plan.against import against_table, describe_against
from feedline.commands.plan.mixed import describe_plan, described_plan
from feedline.commands.plan.step import describe_step, step_table
from feedline.planning.dedup.proposals import describe_proposals
from feedline.planning.plan import Plan
from feedline.spec import PipelineSpec


def print_plan(plan: Plan, world_size: int, rows_per_s: float, *, as_json: bool) -> None:
    """What a run would do."""
    print_facts(describe_plan(plan, world_size, rows_per_s), described_plan, as_json=as_json)


def print_against(plan: Plan, other: Plan, world_size: int, *, as_json: bool) -> None:
    """How the plan differs from another."""
    here, there = (each.source_for("plan --against") for each in (plan, other))
    print_facts(describe_against(here, there, world_size=world_size), against_table, as_json=as_json)


def print_groups(plan: Plan, *, as_json: bool) -> None:
    """Deduplicated groups, and proposals for more."""
    facts = describe_proposals(plan.source_for("plan --dedup"))
    print(json.dumps(facts)) if as_json else print_proposals(facts, console_on())


def print_step(plan: Plan, *, epoch: int, step: int, rank: int | None, world_size: int, as_json: bool) -> None:
    """The rows of one step."""
    facts = describe_step(plan, epoch=epoch, step=step, rank=rank, world_size=world_size)
    print_facts(facts, step_table, as_json=as_json, highlight=False)


def print_saved_plan(spec: PipelineSpec, world_size: int, rows_per_s: float, *, as_json: bool) -> None:
    """Save the plan of a run, and print it."""
    from feedline.commands.plan.save import save_plan  # noqa: PLC0415 -- imports Dask, 0.2 s

    resolved, saved = save_plan(spec, world_size=world_size)
    facts = describe_plan(resolved, world_size, rows_per_s)
    if as_json:
        print(json.dumps({**facts, "saved": dataclasses.asdict(saved)}))
        return
    console = console_on()
    console.print(described_plan(facts))
    say(console, saved.text())
