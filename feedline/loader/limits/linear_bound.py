"""The linear bound of a run: how many rows per second each resource allows, by what a row uses of it.

Runs in: whatever explains a run. Pure; no torch. As Plumber's linear program (Kuchnik et al., MLSys 2022), with disk
and network among the resources: maximise X subject to X * use_r <= capacity_r for all resources r. Where each stage has
its resource, the optimum is the least quotient. A stage that runs on cores which others share adds to their use; a
stage in one thread is a resource of its own with the capacity 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from feedline.dataclass import dataclass
from feedline.loader.limits.run_facts import Capacity, RunFacts

WAITS = 0.03  # the share of waiting up to which the trainer is the limit; the same as `autoscale.wait`
_CROWDED = 0.25  # the share of their time that block threads wait for a CPU on a machine with other work
_ALL = 0.85  # the share of the cores' time that a run uses which is alone, and limited by them

ResourceName = Literal["trainer", "threads", "cores", "lock", "store", "window", "loop", "copy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource: what there is of it per second, and what a row uses, by stage. unit: of both."""

    name: ResourceName
    capacity: float
    uses: Mapping[str, float]
    unit: str

    @property
    def use(self) -> float:
        """What a row uses."""
        return sum(self.uses.values())

    @property
    def rows_per_s(self) -> float:
        """The rows per second that it allows."""
        return self.capacity / self.use if self.use > 0 else math.inf

    @property
    def stage(self) -> str:
        """The stage that uses most of it."""
        return max(self.uses, key=self.uses.__getitem__)

    @property
    def stage_share(self) -> float:
        """That stage's share of its use."""
        return self.uses[self.stage] / self.use if self.use > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """The resources of a run, and the rows per second that were measured of it."""

    resources: tuple[Resource, ...]
    measured: float

    @property
    def binding(self) -> Resource:
        """The resource that allows the fewest rows per second."""
        return min(self.resources, key=lambda each: each.rows_per_s)

    @property
    def rows_per_s(self) -> float:
        """The rows per second that all resources allow; infinite without any."""
        return min((each.rows_per_s for each in self.resources), default=math.inf)

    def get(self, name: str) -> Resource | None:
        """A resource by name."""
        return next((each for each in self.resources if each.name == name), None)

    def without(self, *names: str) -> ResourceLimits:
        """The limits as if some resources were endless."""
        return replace(self, resources=tuple(each for each in self.resources if each.name not in names))

    def with_capacity(self, capacities: Mapping[str, float]) -> ResourceLimits:
        """The limits with other capacities."""
        changed = (replace(each, capacity=capacities.get(each.name, each.capacity)) for each in self.resources)
        return replace(self, resources=tuple(changed))

    def with_uses(self, change: Mapping[str, Mapping[str, float]]) -> ResourceLimits:
        """The limits with other uses of stages: by resource, by stage."""
        changed = (replace(each, uses={**each.uses, **change.get(each.name, {})}) for each in self.resources)
        return replace(self, resources=tuple(changed))

    def saving(self, stage: str, seconds: float) -> ResourceLimits:
        """The limits if a stage needs fewer CPU seconds per row: on cores, in the threads that run it, and of the lock
        the same part."""
        change: dict[str, dict[str, float]] = {
            each.name: {stage: max(0.0, each.uses[stage] - seconds)}
            for each in self.resources
            if each.name in ("cores", "threads", "window") and stage in each.uses
        }
        lock, cores = self.get("lock"), self.get("cores")
        if lock is not None and cores is not None and cores.uses.get(stage, 0.0) > 0:
            change["lock"] = {stage: lock.uses[stage] * change["cores"][stage] / cores.uses[stage]}
        return self.with_uses(change)

    def ratio_to(self, other: ResourceLimits) -> float:
        """Predicted rows per second with the other limits over the measured ones.

        What was measured lies below the bound by what the bound leaves out: queues, pauses, uneven blocks. The same
        part is expected to be lost with the other limits, but not of a trainer's own pace.
        """
        # Two threads that use 0.01 s per row allow 200 rows/s; 150 were measured, three quarters of them. Four threads
        # allow 400, of which three quarters are 300: twice as many as now.
        if self.measured <= 0 or not math.isfinite(self.rows_per_s):
            return 1.0
        efficiency = min(1.0, self.measured / self.rows_per_s)
        trainer = other.get("trainer")
        predicted = efficiency * other.without("trainer").rows_per_s if len(other.resources) > 1 else math.inf
        if trainer is not None:
            predicted = min(predicted, trainer.rows_per_s)
        return predicted / self.measured if math.isfinite(predicted) else 1.0


def limits_of(facts: RunFacts, capacity: Capacity) -> ResourceLimits:
    """The resources that a run has used, as far as they were measured."""
    return ResourceLimits(resources=tuple(_resources(facts, capacity)), measured=facts.rows_per_s)


def _resources(facts: RunFacts, capacity: Capacity) -> Iterable[Resource]:
    if facts.trainer_wait_s is not None and facts.rows:
        own_s = max(facts.wall_s - facts.trainer_wait_s, 0.0) / facts.rows
        yield Resource(name="trainer", capacity=1.0, uses={"trainer": own_s}, unit="s")
    cpu, busy = _block_uses(facts)
    if busy:
        yield Resource(name="threads", capacity=capacity.threads, uses=busy, unit="thread-s")
        if 0 < capacity.window < capacity.threads:
            yield Resource(name="window", capacity=capacity.window, uses=busy, unit="block-s")
    rows = max(facts.rows, 1)
    if capacity.lock_share is not None and cpu:
        locked = {stage: capacity.lock_share * use for stage, use in cpu.items()}
        if capacity.form == "threads":  # of the feeder, whose other threads run Python, too
            locked |= {"delivery": facts.loop_cpu_s / rows, "other threads": facts.other_cpu_s / rows}
        processes = 1 if capacity.form == "threads" else capacity.workers
        yield Resource(name="lock", capacity=float(processes), uses=locked, unit="s")
    if capacity.own_cores and facts.rows:
        cpu |= {"delivery": facts.loop_cpu_s / rows, "copy": facts.copy_cpu_s / rows}
        cpu |= {"other threads": facts.other_cpu_s / rows, "trainer": facts.trainer_cpu_s / rows}
    if sum(cpu.values()) > 0:
        cores = facts.cores_used if is_crowded(facts, capacity) else capacity.cores
        yield Resource(name="cores", capacity=cores, uses=cpu, unit="core-s")
    if facts.loop_cpu_s > 0 and facts.rows:
        yield Resource(name="loop", capacity=1.0, uses={"delivery": facts.loop_cpu_s / rows}, unit="s")
    if facts.copy_s > 0 and facts.rows:
        yield Resource(name="copy", capacity=capacity.copiers, uses={"copy": facts.copy_s / rows}, unit="thread-s")
    if capacity.store_bytes_per_s and facts.block_rows and facts.nbytes_read:
        uses = {"store wait": facts.nbytes_read / facts.block_rows}
        yield Resource(name="store", capacity=capacity.store_bytes_per_s, uses=uses, unit="bytes")


def is_crowded(facts: RunFacts, capacity: Capacity) -> bool:
    """Whether other programs use the cores, too: block threads often wait for one, and the run does not use all."""
    waits = facts.trainer_wait is None or facts.trainer_wait > WAITS
    if not (capacity.own_cores and waits and facts.cores_used > 0 and facts.times.thread_s > 0):
        return False
    return facts.times.contended_s >= _CROWDED * facts.times.thread_s and facts.cores_used < _ALL * capacity.cores


def _block_uses(facts: RunFacts) -> tuple[dict[str, float], dict[str, float]]:
    """CPU seconds, and seconds of a block thread without those in which others had the CPU, per row and stage."""
    if not facts.block_rows:
        return {}, {}
    rows, times = facts.block_rows, facts.times
    cpu = {
        "decoding": times.read_cpu_s / rows,
        "ops": times.transform_cpu_s / rows,
        "encoding": times.encode_cpu_s / rows,
    }
    decode_s = max(0.0, times.read_s - times.fetch_s)
    walls = {"decoding": decode_s, "ops": times.transform_s, "encoding": times.encode_s}
    computing = sum(walls.values())
    running = max(0.0, 1 - times.contended_s / computing) if computing > 0 else 1.0
    busy = {"store wait": times.fetch_s / rows}
    for stage, wall_s in walls.items():
        busy[stage] = wall_s * running / rows
    return cpu, busy


def ties(resources: Sequence[Resource], within: float) -> tuple[Resource, ...]:
    """The resources whose bounds are within a part of the least one, ascending."""
    ordered = sorted(resources, key=lambda each: each.rows_per_s)
    return tuple(each for each in ordered if each.rows_per_s <= ordered[0].rows_per_s * (1 + within))
