"""Join an explanation with what columns, ops and features cost: the verdict names them, its advice includes data.

Runs in: the process of `feedline explain`. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from feedline.loader.limits.run_facts import sum_samples
from feedline.loader.limits.verdict import Verdict
from feedline.workbench.explain.data_advice import advice_on_data, stage_parts
from feedline.workbench.explain.explanation import Explanation, explanation_facts
from feedline.workbench.explain.measured_costs import MeasuredCosts


def verdict_with_costs(explanation: Explanation, costs: MeasuredCosts | None) -> Verdict:
    """The verdict on the slowest rank, with what costs name and advise."""
    slowest = _with_lock_share(explanation, costs).slowest
    if costs is None:
        return slowest.verdict()
    advice = advice_on_data(costs.changes, sum_samples(slowest.samples), slowest.capacity)
    # The columns of one of several sources are not those of the run.
    return slowest.verdict(advice, {} if costs.source else stage_parts(costs.account, costs.changes))


def explained_with_costs(explanation: Explanation, costs: MeasuredCosts | None, skipped: str = "") -> dict[str, Any]:
    """Facts of an explanation, with costs as `costs`. skipped: why there are none."""
    explanation = _with_lock_share(explanation, costs)
    facts = explanation_facts(explanation, verdict_with_costs(explanation, costs))
    return {**facts, "costs": None if costs is None else costs.facts(), "costs_skipped": skipped}


def _with_lock_share(explanation: Explanation, costs: MeasuredCosts | None) -> Explanation:
    """The explanation of runs whose block threads hold the interpreter's lock as sampled blocks do."""
    if costs is None:
        return explanation
    share = costs.account["lock_share"]
    ranks = (replace(each, capacity=replace(each.capacity, lock_share=share)) for each in explanation.ranks)
    return replace(explanation, ranks=tuple(ranks))
