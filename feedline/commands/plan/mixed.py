"""Describe the plan of one source, or of several: each source as a plan of its own, and what every step holds of it.

Runs in: the process of the command.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Group
from rich.markup import escape

from feedline.commands.plan.report import describe, facts_table, memory_text, plan_table, row_bytes, source_table
from feedline.loader.ring.launch import feeder_threads, memory_share
from feedline.loader.wire.codec import to_values
from feedline.planning.plan import Plan, source_facts
from feedline.resources.cgroups import available_cores
from feedline.service.feeder.window import window_bounds

# What `describe` says of a run, which all sources share.
_OF_A_RUN = ("memory", "scheduler", "rows_per_rank_and_step")


def describe_plan(plan: Plan, world_size: int, rows_per_s: float = 0.0) -> dict[str, Any]:
    """All that a run decides before it starts, as plain values. Of several sources, `sources` has what `describe` says
    of each, with `name`, `batch_rows` (its rows in a lane's share of a step), `pass_steps` and `passes` per epoch."""
    if not plan.names:
        return describe(plan.sources[0], world_size=world_size, rows_per_s=rows_per_s)
    whole = [describe(each, world_size=world_size) for each in plan.sources]
    sources = [
        {**{key: value for key, value in facts.items() if key not in _OF_A_RUN}, **to_values(own)}
        for facts, own in zip(whole, source_facts(plan), strict=True)
    ]
    facts = plan.facts()
    return {
        "plan": plan.fingerprint,
        "features": plan.features_fingerprint,
        "snapshot": plan.snapshot_name,
        "stop": plan.stop,
        "steps": facts.steps,
        "rows": facts.rows,
        "rows_dropped": facts.rows_dropped,
        "batch_size": facts.batch_size,
        "rows_per_rank_and_step": facts.batch_size * (plan.lanes // world_size),
        "lanes": plan.lanes,
        "world_size": world_size,
        "bytes": {"read_per_epoch": int(sum(each["bytes"]["read_per_epoch"] * each["passes"] for each in sources))},
        "memory": _memory_facts(plan, world_size),
        "sources": sources,
    }


def _memory_facts(plan: Plan, world_size: int) -> dict[str, int]:
    """The blocks of all sources in flight together. block_bytes: of a mean one, as steps use them up."""
    lanes, cluster = range(plan.lanes // world_size), plan.spec.cluster
    schedules = [each.schedule(0) for each in plan.sources]
    nbytes = [
        row_bytes(each) * int(np.diff(schedule.lane(0).borders).max())
        for each, schedule in zip(plan.sources, schedules, strict=True)
    ]
    opened = [schedule.open_blocks(lanes) for schedule in schedules]
    used = [schedule.blocks_per_step(lanes) for schedule in schedules]
    mean = int(sum(size * share for size, share in zip(nbytes, used, strict=True)) / sum(used))
    threads = feeder_threads(plan.spec, cores=available_cores()) * cluster.most_workers
    fewest, most = window_bounds(sum(opened), threads, max(nbytes), cluster.window)
    held = sum(size * blocks for size, blocks in zip(nbytes, opened, strict=True))
    return {
        "block_bytes": mean,
        "blocks_in_flight": most,
        "fewest_blocks_in_flight": fewest,
        "in_flight_bytes": held + mean * max(0, most - sum(opened)),
        "budget_bytes": memory_share(plan.spec, local_ranks=1),
    }


def described_plan(facts: dict[str, Any]) -> Group:
    """Render the facts: those of each source, then what they have in common."""
    if "sources" not in facts:
        return plan_table(facts)
    tables = [source_table(each, f"source {escape(each['name'])}") for each in facts["sources"]]
    return Group(*tables, facts_table("the mix", _mix_rows(facts)))


def _share_text(source: dict[str, Any], every: int) -> str:
    """A source's part of each step, and how often an epoch reads it."""
    own = source["batch_rows"]
    share = f"{own:,} of the {every:,} rows of a lane's step ({own / every:.1%})"
    return f"{share}; a pass has {source['pass_steps']:,} steps, an epoch {source['passes']:.3g} passes"


def _mix_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    every = facts["batch_size"]
    rows = [(escape(each["name"]), _share_text(each, every)) for each in facts["sources"]]
    stop = {"first": "the first source that ends", "all": "the longest source"}.get(facts["stop"], "`mix.stop`")
    batch = f"{facts['rows_per_rank_and_step']:,} rows per rank, from {facts['lanes']} x {every:,}"
    return [
        ("plan, features", f"{facts['plan']}, {facts['features']}"),
        *rows,
        ("steps", f"{facts['steps']:,} on each of {facts['world_size']} ranks: {stop} ends an epoch"),
        ("rows", f"{facts['rows']:,}, of which an epoch leaves out {facts['rows_dropped']:,}"),
        ("bytes per epoch", f"{facts['bytes']['read_per_epoch']:,}"),
        ("batch", batch),
        ("memory per rank", memory_text(facts["memory"])),
    ]
