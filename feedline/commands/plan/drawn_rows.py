"""What `feedline plan` says of rows that are drawn by weight.

Runs in: the CLI. Pure.
"""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from feedline.planning.binding.weighted_rows import RowWeights
from feedline.planning.source_plan import SourcePlan
from feedline.warehouse.reading.quanta import EXACT

_SMALL_ERROR = 1e-6  # of a weight that nobody needs to be told of


def draw_facts(plan: SourcePlan, weights: RowWeights) -> dict[str, Any]:
    """The draws of epoch 0, how unevenly row groups share them, and by which share of itself a weight is rounded at
    most."""
    draws, rows = plan.remaining_rows(0), plan.selection.rows
    kept = rows > 0
    most = float((draws[kept] / rows[kept]).max(initial=0.0))
    return {
        "column": weights.column,
        "most_draws_per_row": most,
        "row_groups_not_drawn": int((draws[kept] == 0).sum()),
        "largest_error": 0.0 if weights.precision == EXACT else 2.0**-weights.precision,
    }


def draws_text(facts: dict[str, Any]) -> str:
    """The facts as a line."""
    none = facts["row_groups_not_drawn"]
    return (
        f"with replacement, by {escape(facts['column'])}: of a row group, up to {facts['most_draws_per_row']:,.1f} "
        f"draws per row" + (f"; none from {none:,} row groups in epoch 0" if none else "") + _rounded_text(facts)
    )


def _rounded_text(facts: dict[str, Any]) -> str:
    error = facts["largest_error"]
    if error < _SMALL_ERROR:
        return ""
    return f"; the smallest weights beside their row group's sum are rounded, by up to {error:.1%} of themselves"
