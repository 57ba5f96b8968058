"""Measure costs in a process of their own, which has the allocators and pools of a feeder.

Runs in: the process that explains. Memory that is given back to the kernel and taken again makes a block a third more
expensive, so costs are measured as a feeder computes, by `plan_costs`. Beside a run, the CPU time of measuring is a
bounded part of what the host has while the run is explained.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable

from feedline.config import PipelineSpec
from feedline.errors import PlanError
from feedline.loader.ring.launch import feeder_environment, standard_input
from feedline.resources.cgroups import available_cores
from feedline.workbench.explain.measured_costs import MeasuredCosts

ALONE_S = 20.0  # CPU seconds that measuring may take without a run
ATTACHED_SHARE = 0.02  # of the cores' time, while a run is explained: watching, and measuring costs
_ATTACHED_S = 5.0  # CPU seconds that measuring may take beside a run, at most
_LEAST_S = 2.0  # of them, for an account that is worth its start
_STARTS_S = 3.0  # CPU seconds of starting both processes, and of the plan, about
_NICE, _NICE_ATTACHED = 5, 19
_MOST_S = 120.0  # until an attached measurement is given up
_LOOK_S = 0.1


def attached_budget_s(cores: float, seconds: float) -> float:
    """CPU seconds that measuring costs may take beside a run that is watched for so many seconds: 0 where the cores'
    share leaves too little."""
    left_s = ATTACHED_SHARE * cores * seconds - _STARTS_S
    return 0.0 if left_s < _LEAST_S else min(left_s, _ATTACHED_S)


def watch_s_for_costs(cores: float) -> int:
    """The seconds for which a run must be watched so that costs can be measured, too."""
    return math.ceil((_STARTS_S + _LEAST_S) / (ATTACHED_SHARE * cores))


def measure_apart(
    spec: PipelineSpec,
    *,
    budget_s: float = ALONE_S,
    source: str | None = None,
    attached: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> MeasuredCosts:
    """Measure what a pipeline's features cost, and what would change that. budget_s: CPU seconds, about. source: of
    several (None: the one that has most rows of a step). attached: beside a run, which shall lose nothing; given up
    where that leaves no CPU. stop: ends it. The process gets the spec as it is: an edit of its file since it was read
    changes nothing. Raises PlanError if it was not measured to the end, or with what the process says if it fails.
    """
    environment = {**os.environ, **feeder_environment(spec, cores=max(1, int(available_cores())))}
    request = {
        "pipeline": spec.packed().decode(),
        "budget_s": budget_s,
        "source": source,
        "nice": _NICE_ATTACHED if attached else _NICE,
    }
    began_s = time.monotonic()
    command = [sys.executable, "-m", "feedline.workbench.explain.plan_costs"]
    pipe = subprocess.PIPE
    with (
        standard_input(json.dumps(request).encode()) as words,
        subprocess.Popen(command, stdin=words, stdout=pipe, stderr=pipe, text=True, env=environment) as process,
    ):
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                facts, errors = process.communicate(timeout=_LOOK_S)
                break
            if stop() or (attached and time.monotonic() - began_s > _MOST_S):
                process.kill()
                why = "stopped" if stop() else f"the run left too little CPU for it in {_MOST_S:.0f} s"
                raise PlanError(f"costs were not measured to the end: {why}. Explain a short run for them")
    if process.returncode:
        lines = errors.strip().splitlines() or [f"exit status {process.returncode}"]
        raise PlanError(f"costs could not be measured: {lines[-1]}")
    return MeasuredCosts.from_facts(json.loads(facts))
