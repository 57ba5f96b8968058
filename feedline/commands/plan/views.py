"""Print what `feedline plan` shows of a plan: the plan itself, or another view of it, as a table or as JSON.

Runs in: the process of the command.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from feedline.commands.consoles import console_on, print_facts, say
from feedline.commands.dedup_table import print_proposals
from feedline.commands.plan.against import against_table, describe_against
from feedline.commands.plan.report import describe, facts_table, memory_text, plan_table, row_bytes, source_table
from feedline.config import PipelineSpec
from feedline.loader.ring.launch import feeder_threads, memory_share
from feedline.loader.wire.codec import to_values
from feedline.planning.dedup.proposals import describe_proposals
from feedline.planning.kept_rows import read_kept_rows
from feedline.planning.plan import Plan, source_facts
from feedline.planning.schedule import rank_lanes
from feedline.planning.step_rows import EpochRows
from feedline.resources.cgroups import available_cores
from feedline.service.feeder.window import window_bounds

# --------------------------------------------------------------------------------------------------------------------
# Describe the plan of one source, or of several: each source as a plan of its own, and what every step holds of it.

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
        ("blocks computed by", escape(facts["sources"][0]["workers"])),
    ]


# --------------------------------------------------------------------------------------------------------------------
# Report the rows of a step for `feedline plan --step`: files, row groups and rows, as JSON facts and as a table.
# Where a filter or a sample keeps a part of a row group, its columns are read to number the rows.

_SHOWN_RANGES = 6


def describe_step(plan: Plan, *, epoch: int, step: int, rank: int | None, world_size: int) -> dict[str, Any]:
    """The rows of a step of one rank, or of all. Raises PlanError for an unknown step or rank.

    `row_groups`: per lane and row group, its `file`, `row_group` (its index in the file), `rows` (their indices in the
    row group, from 0, in the order of the batch) and `positions` (their indices in the batch of their rank, or, without
    a rank, in the batches of all ranks laid end to end); of several sources also `source`, its name. `padding`: rows at
    the end of lanes that repeat another.
    """
    steps, names = EpochRows(plan, epoch), [source.name for source in plan.spec.sources]
    ranks = range(world_size) if rank is None else [rank]
    lanes = [lane for each in ranks for lane in rank_lanes(plan.lanes, each, world_size)]
    rows = steps.of_lanes(step, lanes)
    valid, parts = np.flatnonzero(rows.valid), []
    keys = [each[valid].tolist() for each in (rows.lane, rows.source, rows.group)]
    for lane, index, group in dict.fromkeys(zip(*keys, strict=True)):
        own = plan.sources[index]
        snapshot = own.snapshot
        here = valid[(rows.lane[valid] == lane) & (rows.source[valid] == index) & (rows.group[valid] == group)]
        whole = own.selection.rows[group] == snapshot.rows_per_row_group[group]
        kept = rows.kept[here]
        numbers = kept if whole else read_kept_rows(own, group, own.columns[:1]).rows[kept]
        parts.append(
            {
                "lane": lane,
                **({"source": names[index]} if names else {}),
                "file": snapshot.files["path"][int(snapshot.file_of_row_group[group])].as_py(),
                "row_group": int(snapshot.row_group_in_file[group]),
                "rows": numbers.tolist(),
                "positions": here.tolist(),
            }
        )
    return {
        "plan": plan.fingerprint,
        "snapshot": plan.snapshot_name,
        "epoch": epoch,
        "step": step,
        "steps": steps.schedule.steps,
        "rank": rank,
        "world_size": world_size,
        "lanes": lanes,
        "rows": len(valid),
        "padding": len(rows) - len(valid),
        "row_groups": parts,
    }


def step_table(facts: dict[str, Any]) -> Table:
    """Render the facts: a line per lane and row group."""
    rank = "all ranks" if facts["rank"] is None else f"rank {facts['rank']}"
    padding = f", {facts['padding']:,} rows of padding" if facts["padding"] else ""
    title = (
        f"epoch {facts['epoch']}, step {facts['step']:,} of {facts['steps']:,}, {rank} of {facts['world_size']}: "
        f"{facts['rows']:,} rows{padding}"
    )
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    sources = ("source",) if any("source" in part for part in facts["row_groups"]) else ()
    for name in ("lane", *sources, "file", "row group", "rows", "which"):
        table.add_column(name, justify="left" if name in ("source", "file", "which") else "right", overflow="fold")
    for part in facts["row_groups"]:
        count, names = f"{len(part['rows']):,}", [escape(part[name]) for name in (*sources, "file")]
        table.add_row(str(part["lane"]), *names, str(part["row_group"]), count, describe_rows(part["rows"]))
    return table


def describe_rows(rows: list[int]) -> str:
    """The rows as ranges in ascending order, the first of them if there are many: `0-511, 600, 612 … 1,023`."""
    numbers = np.sort(np.asarray(rows))
    breaks = np.flatnonzero(np.diff(numbers) > 1)
    firsts, lasts = numbers[[0, *(breaks + 1)]].tolist(), numbers[[*breaks, -1]].tolist()
    texts = [f"{a:,}" if a == b else f"{a:,}-{b:,}" for a, b in zip(firsts, lasts, strict=True)]
    if len(texts) > _SHOWN_RANGES:
        return f"{', '.join(texts[:_SHOWN_RANGES])} … {lasts[-1]:,}"
    return ", ".join(texts)


# --------------------------------------------------------------------------------------------------------------------


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
