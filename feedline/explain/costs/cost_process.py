"""Measure costs in a process of their own, which has the allocators and pools of a feeder.

Runs in: `measure_apart` in the process that explains; `main` in the one that it starts. Memory that is given back to
the kernel and taken again makes a block a third more expensive, so costs are measured as a feeder computes. The process
gets what is idle of the CPUs: a run that goes on beside it loses little.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from feedline.errors import FeedlineError, PlanError
from feedline.explain.costs.cost_account import measure_costs
from feedline.explain.costs.cpu_time import ROUNDS
from feedline.explain.costs.data_changes import DataChange, find_changes_of_data
from feedline.explain.costs.sampled_blocks import BLOCKS, sample_blocks
from feedline.loader.ring.launch import feeder_environment
from feedline.planning.plan import Plan
from feedline.planning.resolve import current_snapshots, lanes_for, preview_plan
from feedline.planning.sources.mixed_plan import RunPlan
from feedline.resources.cgroups import available_cores
from feedline.spec import PipelineSpec, load_spec

ATTACHED_S, ALONE_S = 5.0, 20.0  # CPU seconds that measuring may take, beside a run and without one
_ACCOUNT_PART = 0.4  # of them for the account of costs, the rest for changes
_NICE, _NICE_ATTACHED = 5, 19  # beside a run: 1.5 % of what a thread of it gets, where all cores are busy
_MOST_S = 120.0  # until an attached measurement is given up
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCosts:
    """What was measured of a pipeline. account: facts of a `CostAccount`; changes: those that pay. source: its name, of
    several."""

    account: Mapping[str, Any]
    changes: tuple[DataChange, ...]
    source: str = ""

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """What `facts` gave."""
        changes = tuple(map(DataChange.from_facts, facts["changes"]))
        return cls(account=facts["account"], changes=changes, source=facts["source"])

    def facts(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "account": dict(self.account),
            "changes": [change.facts() for change in self.changes],
            "source": self.source,
        }


def measure_apart(
    spec: PipelineSpec,
    file: str,
    overrides: Mapping[str, Any],
    *,
    budget_s: float = ALONE_S,
    blocks: int = BLOCKS,
    attached: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> MeasuredCosts:
    """Measure what a pipeline's features cost, and what would change that. file, overrides: of `spec`. budget_s: CPU
    seconds, about. attached: beside a run, which shall lose nothing; given up where that leaves no CPU. stop: ends it.
    Raises PlanError if it was not measured to the end, or with what the process says if it fails.
    """
    environment = {**os.environ, **feeder_environment(spec, cores=max(1, int(available_cores())))}
    request = {
        "file": file,
        "overrides": dict(overrides),
        "budget_s": budget_s,
        "blocks": blocks,
        "nice": _NICE_ATTACHED if attached else _NICE,
    }
    began_s = time.monotonic()
    command = [sys.executable, "-m", "feedline.explain.costs.cost_process"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        words: str | None = json.dumps(request)
        while True:
            try:
                facts, errors = process.communicate(words, timeout=_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                words = None
            if stop() or (attached and time.monotonic() - began_s > _MOST_S):
                process.kill()
                why = "stopped" if stop() else f"the run left too little CPU for it in {_MOST_S:.0f} s"
                raise PlanError(f"costs were not measured to the end: {why}. Explain a short run for them")
    if process.returncode:
        lines = errors.strip().splitlines() or [f"exit status {process.returncode}"]
        raise PlanError(f"costs could not be measured: {lines[-1]}")
    return MeasuredCosts.from_facts(json.loads(facts))


def measure_plan(
    plan: Plan,
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


def largest_source(plan: RunPlan) -> Plan:
    """The plan of the source that has most rows."""
    return max(plan.sources, key=lambda each: each.whole_schedule.rows)


def main(arguments: Sequence[str] = ()) -> int:
    """Measure what standard input asks for; facts go to standard output."""
    request = json.load(sys.stdin)
    with contextlib.suppress(OSError):
        os.nice(request["nice"])
    try:
        spec = load_spec(request["file"], request["overrides"])
        plan = largest_source(preview_plan(spec, current_snapshots(spec), lanes=lanes_for(spec.lanes, 1)))
        found = measure_plan(plan, budget_s=request["budget_s"], blocks=request["blocks"])
    except FeedlineError as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return 1
    print(json.dumps(found.facts()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
