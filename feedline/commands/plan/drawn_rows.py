"""What `feedline plan` says of rows that are drawn by weight.

Runs in: the CLI. Pure.
"""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from feedline.planning.binding.weighted_rows import RowWeights
from feedline.planning.plan import Plan


def draw_facts(plan: Plan, weights: RowWeights) -> dict[str, Any]:
    """The draws of epoch 0, and how unevenly row groups share them."""
    draws, rows = plan.remaining_rows(0), plan.selection.rows
    kept = rows > 0
    most = float((draws[kept] / rows[kept]).max(initial=0.0))
    return {"column": weights.column, "most_draws_per_row": most, "row_groups_not_drawn": int((draws[kept] == 0).sum())}


def draws_text(facts: dict[str, Any]) -> str:
    """The facts as a line."""
    none = facts["row_groups_not_drawn"]
    return (
        f"with replacement, by {escape(facts['column'])}: of a row group, up to {facts['most_draws_per_row']:,.1f} "
        f"draws per row" + (f"; none from {none:,} row groups in epoch 0" if none else "")
    )
