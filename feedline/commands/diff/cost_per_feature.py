"""What single features take: compressed bytes by the footers, and CPU seconds if they are measured.

Runs in: the process of the command.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from feedline.explain.costs.cost_account import measure_costs
from feedline.planning.plan import Plan
from feedline.warehouse.reading.columns import part_bytes

# CPU seconds that measuring one plan may take, about.
_BUDGET_S = 20.0


def cost_per_feature(plan: Plan, names: Collection[str], *, with_cpu: bool) -> dict[str, dict[str, float | None]]:
    """Per feature of these names that the plan has, and per million rows: `bytes` of the columns that it reads, which
    other features may read, too, and `cpu_s` of its part of decoding, its ops and encoding (None: not measured, or fits
    are missing)."""
    own = {feature.name: index for index, feature in enumerate(plan.features.features) if feature.name in names}
    cpu_s = _cpu_seconds(plan) if with_cpu and own and plan.is_fitted else {}
    kept, rows = plan.selection.rows > 0, max(int(plan.selection.rows.sum()), 1)
    costs: dict[str, dict[str, float | None]] = {}
    for name, index in own.items():
        sizes = np.asarray(part_bytes(plan.snapshot, plan.features.outputs[index].reads))
        costs[name] = {"bytes": 1e6 * int(sizes[kept].sum()) / rows, "cpu_s": cpu_s.get(name)}
    return costs


def _cpu_seconds(plan: Plan) -> dict[str, float]:
    return {account.name: account.cpu_s.cpu_s for account in measure_costs(plan, budget_s=_BUDGET_S).features}
