"""Render the measures of deduplicated groups: lines of `feedline plan`, and the report of `feedline plan --dedup`.

Runs in: the process of the command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from feedline.commands.consoles import say
from feedline.planning.dedup.group_measure import WORTHWHILE
from feedline.planning.dedup.proposals import with_ranges

_UNCLUSTERED = 1.1  # the factor of a sorted sample by that of the table's order from which on sessions are apart


def group_lines(facts: dict[str, Any]) -> list[str]:
    """A line per group of `describe_groups`, what to change about it, and the sample's size."""
    lines = []
    for group in facts["groups"]:
        lines.append(f"{group['name']}: {_measure(group)}")
        if (advice := _advice(group, facts["stored_once"])) is not None:
            lines.append(f"{group['name']} {advice}")
    return [*lines, f"measured on {_sample(facts)}"]


def print_proposals(facts: dict[str, Any], console: Console) -> None:
    """Print the facts of `describe_proposals`: groups, what to write into pipeline.yaml, and how to store them."""
    if facts["groups"]:
        console.print(_table("deduplicated groups", facts["groups"]))
        for group in facts["groups"]:
            if group["worth_it"] is False:
                say(console, f"{group['name']} {_advice(group, ())}")
    if facts["proposals"]:
        console.print(_table("proposed groups", facts["proposals"]))
    say(console, "\n".join(_proposal_lines(facts)))


def _proposal_lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"measured on {_sample(facts)}{_together(facts['proposals'])}"]
    if not facts["proposals"]:
        lines.append(f"no {'further ' if facts['groups'] else ''}group saves more than it costs")
        if facts["by"] is None:
            lines.append("if the rows of a session are apart, name its column: --set shuffle.by=COLUMN")
    else:
        if any(group["factor"] > _UNCLUSTERED * group["factor_now"] for group in facts["proposals"]):
            factors = "factors are those of the sample sorted by it, at least"
            lines.append(f"the table is not clustered by {facts['by']}: {factors}")
        lines.append(f"\nfor pipeline.yaml:\n\n{facts['yaml']}\n")
        if facts["needs_runs"]:
            others = "`shuffle: {by: COLUMN}`, `{rows: false}` or `off`"
            lines.append(f"and {others}: the present shuffle permutes single rows\n")
    if facts["optimize"] is not None:
        lines.append(f"to store each run once:\n\n{facts['optimize']}")
    return lines


def _table(title: str, groups: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("group")
    table.add_column("columns", overflow="fold")
    for name in ("S", "d", "formula", "factor", "now", "bytes saved per row"):
        table.add_column(name, justify="right")
    for group in groups:
        factors = (group["factor"], group.get("factor_now", group["factor"]))
        saved, plain = group["bytes_saved"], group["bytes_plain"]
        rows, formula = group["session_rows"], group["formula"]
        sessions = [*(["-"] if rows is None else [f"{rows:.1f}"]), f"{group['repeated']:.3f}"]
        sessions.append("-" if formula is None else f"{formula:.2f}")
        numbers = [*sessions, *(f"{each:.2f}" for each in factors)]
        numbers.append("unknown" if saved is None else f"{saved:,.0f} of {plain:,.0f}")
        table.add_row(escape(group["name"]), escape(", ".join(with_ranges(group["columns"]))), *numbers)
    return table


def _together(proposals: list[dict[str, Any]]) -> str:
    """`; together they save 1,225 of 1,434 bytes per row`, for several proposals."""
    known = [group for group in proposals if group["bytes_saved"] is not None]
    if len(known) < 2:
        return ""
    saved, plain = (sum(group[key] for group in known) for key in ("bytes_saved", "bytes_plain"))
    return f"; together they save {saved:,.0f} of {plain:,.0f} bytes per row"


def _measure(group: dict[str, Any]) -> str:
    """`4.01 rows per unique row (S 16.5, d 0.950: at most 9.29); 1,204 of 1,720 bytes saved per row`."""
    if group["bytes_saved"] is None:
        saved = f"its features cannot be computed: {group['error']}"
    else:
        saved = f"{group['bytes_saved']:,.0f} of {group['bytes_plain']:,.0f} bytes saved per row"
    formula = f"d {group['repeated']:.3f}"
    if group["session_rows"] is not None:
        formula = f"S {group['session_rows']:.1f}, {formula}: at most {group['formula']:.2f}"
    return f"{group['factor']:.2f} rows per unique row ({formula}); {saved}"


def _advice(group: dict[str, Any], stored: Sequence[str]) -> str | None:
    """What to change about a group: leave out a column, remove the group, or store it once per run.

    stored: the columns that the table stores so.
    """
    if group["worth_it"] is False:
        little = (
            f"saves too little: {group['bytes_saved']:,.0f} of {group['bytes_plain']:,.0f} bytes per row, and a group "
        )
        little += f"should save {WORTHWHILE:.0%}"
        if (worst := group["worst"]) is not None and worst["factor_without"] > 1.2 * group["factor"]:
            return f"{little}. Leave out {worst['column']!r}: without it the factor is {worst['factor_without']:.2f}"
        return f"{little}. Remove the group"
    if group["worth_it"] and not set(group["columns"]).issubset(stored):
        how = "feedline plan --dedup has the command"
        return f"is stored {group['factor']:.1f} times over: store it once per run of equal rows, {how}"
    return None


def _sample(facts: dict[str, Any]) -> str:
    order = f" in runs of {facts['by']}" if facts["by"] is not None else ""
    return f"{facts['rows']:,} rows of {facts['blocks']} blocks{order}"
