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
from collections.abc import Callable, Mapping
from dataclasses import asdict, field, replace
from typing import Any, Literal, Self

from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.errors import PlanError
from feedline.loader.ring.launch import feeder_environment, standard_input
from feedline.resources.cgroups import available_cores
from feedline.workbench.explain.cpu_time import NO_CPU, CpuEstimate

# --------------------------------------------------------------------------------------------------------------------
# The measured costs of a pipeline and the changes that would save some, as values that travel between processes.

ChangeKind = Literal["drop", "truncate", "optimize", "cache", "dedup", "row_groups", "op"]

WORTHWHILE_SHARE = 0.03  # the share of today's CPU time that a change has to save


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChange:
    """A change and what it gains, per million rows. subject: the feature, op or group. how: what to do. loses: what is
    given up. before_s, after_s: CPU seconds of blocks. saved_bytes: compressed ones less to read; disk_bytes: of an
    epoch, to keep. is_measured: on blocks; else from the account of costs. from_epoch: the first that gains. stages:
    the gain of decoding, ops and encoding; before: what they took (empty: unknown).
    """

    kind: ChangeKind
    subject: str
    how: str
    loses: str = ""
    gain_s: CpuEstimate = NO_CPU
    before_s: float = 0.0
    saved_bytes: float = 0.0
    disk_bytes: float = 0.0
    is_measured: bool = True
    from_epoch: int = 0
    stages: Mapping[str, float] = field(default_factory=dict)
    before: Mapping[str, float] = field(default_factory=dict)

    def in_mix(self, share: float) -> Self:
        """The change among all sources. share: of the rows of a step, which its own source has. A run tells what blocks
        of all sources take: not what those of one took."""
        stages = {stage: share * gain_s for stage, gain_s in self.stages.items()}
        saved = share * self.saved_bytes
        return replace(self, gain_s=self.gain_s.scaled(share), stages=stages, before={}, saved_bytes=saved)

    @property
    def share(self) -> float:
        """The part of today's CPU time that is gained."""
        return self.gain_s.cpu_s / self.before_s if self.before_s else 0.0

    @property
    def is_worthwhile(self) -> bool:
        return self.share >= WORTHWHILE_SHARE and self.gain_s.low > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCosts:
    """What was measured of a pipeline. account: facts of a `CostAccount`; changes: those that pay. source: its name, of
    several, and step_share its part of the rows of a step, by which the gains of changes are weighted."""

    account: Mapping[str, Any]
    changes: tuple[DataChange, ...]
    source: str = ""
    step_share: float = 1.0

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """What `facts` gave."""
        changes = ({**each, "gain_s": CpuEstimate(**each["gain_s"])} for each in facts["changes"])
        return cls(**{**facts, "changes": tuple(DataChange(**each) for each in changes)})

    def facts(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


# --------------------------------------------------------------------------------------------------------------------

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
