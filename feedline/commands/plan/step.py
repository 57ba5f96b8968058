"""Report the rows of a step for `feedline plan --step`: files, row groups and rows, as JSON facts and as a table.

Runs in: the process of the command. Where a filter or a sample keeps a part of a row group, its columns are read to
number the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from feedline.planning.plan import Plan
from feedline.planning.rows.epoch_rows import EpochRows
from feedline.planning.rows.kept_rows import read_kept_rows
from feedline.planning.schedule import rank_lanes

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
