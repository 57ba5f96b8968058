"""The bad rows that a plan leaves out, for `feedline plan`: how many, why, and whether other features found them.

Runs in: the process of the command.
"""

from __future__ import annotations

from typing import Any

from feedline.planning.source_plan import SourcePlan
from feedline.warehouse.selection.pruning_report import Stage

_SHOWN = 10  # reasons


def excluded_facts(plan: SourcePlan) -> dict[str, Any] | None:
    """The exclusion as plain values; None for a pipeline without one. found_by_other_features: the pipeline's features
    have changed since, or were fitted."""
    exclusion = plan.selection.exclusion
    if exclusion is None:
        return None
    reasons = [
        {"feature": feature, "reason": reason, "rows": rows} for (feature, reason), rows in exclusion.reasons().items()
    ]
    return {
        "id": exclusion.id,
        "rows": exclusion.rows,
        "row_groups": len(exclusion.excluded),
        "reasons": reasons,
        "features": exclusion.origin.features,
        "found_by_other_features": exclusion.origin.features != plan.features_fingerprint,
    }


def excluded_stage(plan: SourcePlan) -> list[Stage]:
    """What remains without bad rows, after filter and sample; nothing for a pipeline without an exclusion."""
    rows = plan.selection.rows
    if plan.selection.exclusion is None:
        return []
    return [Stage(name="exclude", row_groups=rows > 0, rows=int(rows.sum()))]


def excluded_text(facts: dict[str, Any]) -> str:
    """The facts as lines of the plan's table."""
    lines = [f"{facts['rows']:,} bad rows of {facts['row_groups']:,} row groups, by exclusion {facts['id']}"]
    reasons = facts["reasons"]
    lines += [f"{each['rows']:,}: feature {each['feature']!r} {each['reason']}" for each in reasons[:_SHOWN]]
    if len(reasons) > _SHOWN:
        lines.append(f"and {len(reasons) - _SHOWN:,} more reasons")
    if facts["found_by_other_features"]:
        lines.append(
            f"found by other features ({facts['features']}): these rows stay excluded, and others may be bad by now. "
            "Check again with feedline check --rows"
        )
    return "\n".join(lines)
