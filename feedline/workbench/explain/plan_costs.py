"""Measure what a plan's features cost, and what would change that, in a process of its own.

Runs in: a process that `cost_process` starts with a feeder's environment. Standard input has the request, standard
output the facts. The process gets what is idle of the CPUs: a run that goes on beside it loses little.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import replace
from typing import Self

from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.errors import FeedlineError
from feedline.loader.ring.launch import LOCK_S
from feedline.planning.plan import Plan
from feedline.planning.resolve import current_snapshots, lanes_for, preview_plan
from feedline.planning.source_plan import SourcePlan
from feedline.workbench.explain.cost_account import measure_costs
from feedline.workbench.explain.cost_process import ALONE_S, MeasuredCosts
from feedline.workbench.explain.cpu_time import ROUNDS
from feedline.workbench.explain.data_changes import find_changes_of_data
from feedline.workbench.explain.pass_costs import BLOCKS, sample_blocks

_ACCOUNT_PART = 0.4  # of the budget for the account of costs, the rest for changes


def measure_plan(
    plan: SourcePlan,
    *,
    budget_s: float = ALONE_S,
    blocks: int = BLOCKS,
    rounds: int = ROUNDS,
) -> MeasuredCosts:
    """Measure a plan in this process. Raises PlanError or DataError where its blocks cannot be computed."""
    sample = sample_blocks(plan, blocks)
    account = measure_costs(plan, budget_s=budget_s * _ACCOUNT_PART, sample=sample, rounds=rounds)
    left_s = max(budget_s - account.measuring_s, 0.0)
    changes = find_changes_of_data(plan, sample, account, budget_s=left_s, rounds=rounds)
    return MeasuredCosts(account=account.facts(), changes=tuple(changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSource:
    """The plan of one source. name: "" if there are no others. step_share: of the rows of a step."""

    plan: SourcePlan
    name: str
    step_share: float

    @classmethod
    def of(cls, plan: Plan, name: str | None = None) -> Self:
        """The source of a name, or the one that has most rows of a step."""
        if len(plan.sources) == 1:
            return cls(plan=plan.sources[0], name="", step_share=1.0)
        rows = [each.spec.batch.size for each in plan.sources]
        names = [each.name for each in plan.spec.sources]
        index = rows.index(max(rows)) if name is None else names.index(name)
        return cls(plan=plan.sources[index], name=names[index], step_share=rows[index] / sum(rows))

    def in_mix(self, costs: MeasuredCosts) -> MeasuredCosts:
        """Costs of its plan as those of this source: what a change gains is weighted by the share. Those of the only
        source stay as they are, with what stages took, by which a run's are told."""
        if not self.name:
            return costs
        changes = tuple(change.in_mix(self.step_share) for change in costs.changes)
        return replace(costs, changes=changes, source=self.name, step_share=self.step_share)


def main() -> int:
    """Measure what standard input asks for; facts go to standard output."""
    request = json.load(sys.stdin)
    sys.setswitchinterval(LOCK_S)
    with contextlib.suppress(OSError):
        os.nice(request["nice"])
    try:
        spec = PipelineSpec.unpacked(request["pipeline"].encode())
        plan = preview_plan(spec, current_snapshots(spec), lanes=lanes_for(spec.lanes, 1))
        source = ChosenSource.of(plan, request["source"])
        found = source.in_mix(measure_plan(source.plan, budget_s=request["budget_s"]))
    except FeedlineError as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return 1
    print(json.dumps(found.facts()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
