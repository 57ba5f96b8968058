"""Describe how a plan's shuffle mixes, beside two other settings, for `feedline plan --shuffle`.

Runs in: the process of the command. Nothing is read: see `planning/shuffle_quality`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from feedline.commands.plan_report import row_bytes
from feedline.planning.plan import Plan
from feedline.planning.shuffle_quality import REGIONS, alternatives, heat_strip, measure_shuffle


def describe_shuffle(plan: Plan, *, world_size: int) -> dict[str, Any]:
    """Describe the quality of the plan's shuffle and of two other settings, as plain values."""
    settings = [asdict(measure_shuffle(name, each, world_size=world_size)) for name, each in alternatives(plan)]
    width = row_bytes(plan)
    return {
        "lanes": plan.lanes,
        "world_size": world_size,
        "batch_size": plan.spec.batch.size,
        "regions": REGIONS,
        "settings": [{**setting, "bytes_held": setting["rows_held"] * width} for setting in settings],
    }


def shuffle_table(facts: dict[str, Any]) -> Group:
    """Render the facts: a column per setting, then where the rows of some batches come from."""
    settings = facts["settings"]
    title = f"how the shuffle mixes: lanes: {facts['lanes']}, batch size: {facts['batch_size']:,}"
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for setting in settings:
        table.add_column(setting["name"].replace(": ", ":\n"), justify="right")
    table.add_column("true shuffle", justify="right")
    columns = [{**setting, "megabytes": setting["bytes_held"] / 1e6} for setting in settings]
    true_pairs = f"{settings[0]['same_row_group_true']:.2%}"
    for title, key, form, true in (
        ("blocks mixed", "blocks", ",", ""),
        ("rows of a block", "block_rows", ",", ""),
        ("pairs of one row group", "same_row_group", ".2%", true_pairs),
        ("… in a step of all lanes", "same_row_group_step", ".2%", true_pairs),
        ("displacement of rows", "displacement", ".2f", "1.00"),
        ("spread of batches", "spread", ",.1f", "1.0"),
        ("autocorrelation", "autocorrelation", "+.2f", "0.00"),
        ("decoded per row", "decoded", ".3f", ""),
        ("rows held per rank", "rows_held", ",", "all"),
        ("… estimated MB", "megabytes", ",.0f", ""),
    ):
        table.add_row(title, *(format(setting[key], form) for setting in columns), true)
    return Group(table, _picture(settings))


def _picture(settings: list[dict[str, Any]]) -> Text:
    lines = ["the places of a batch's rows in the table, a line per batch:"]
    for setting in settings:
        lines.append(f"{setting['name']}")
        lines += [f"  |{heat_strip(tuple(row))}|" for row in setting["regions"]]
    lines += ["true shuffle", f"  |{'▒' * REGIONS}|"]
    return Text("\n".join(lines), no_wrap=True)
