"""Runs whose trainer waits while nothing of the loader is busy: no bound explains them, and no more of anything helps.

Runs in: whatever explains a run. Pure; no torch.
"""

from __future__ import annotations

from feedline.loader.limits.linear_bound import Resource
from feedline.loader.limits.run_facts import Capacity, RunFacts

_LONG = 0.2  # the share of waiting from which its cause matters
_IDLE = 0.4  # the share of a resource in use below which it cannot be what the trainer waits for
_PLANS = 0.5  # the share of the waiting that planning takes, to be its cause


def is_idle(limit: Resource, facts: RunFacts, capacity: Capacity) -> bool:
    """Whether the trainer waits although the resource that allows the fewest rows is hardly used."""
    wait = facts.trainer_wait
    return wait is not None and wait > _LONG and busy_share(limit, facts, capacity) < _IDLE


def busy_share(resource: Resource, facts: RunFacts, capacity: Capacity) -> float:
    """The share of a resource in use, also by blocks that are not delivered yet."""
    share = facts.rows_per_s * resource.use / resource.capacity
    if resource.name in ("threads", "window"):
        share = (facts.read_s + facts.transform_s + facts.encode_s) / (resource.capacity * facts.wall_s)
    if resource.name == "cores":
        share = max(share, facts.cores_used / resource.capacity)
    return min(share, 1.0)


def idle_sentence(limit: Resource | None, facts: RunFacts, capacity: Capacity) -> str:
    """What is known of such a run. limit: None if no block was finished."""
    wait = f"Trainer waits {facts.trainer_wait or 0.0:.0%}"
    if limit is None:
        return f"{wait}, and no block was finished in {facts.wall_s:.1f} s: measure longer."
    used = busy_share(limit, facts, capacity)
    return f"{wait}, while nothing of the loader is busy ({limit.name} {used:.0%}): {_cause(facts, capacity)}."


def _cause(facts: RunFacts, capacity: Capacity) -> str:
    if facts.planning_s >= _PLANS * (facts.trainer_wait_s or 0.0):
        return f"it planned for {facts.planning_s:.1f} s"
    if 0 < capacity.window < capacity.threads:
        blocks = "one block" if capacity.window == 1 else f"{capacity.window} blocks"
        return f"{blocks} may be in flight for {capacity.threads} threads ({capacity.window_reason})"
    if capacity.form != "threads" and facts.queued_s > facts.read_s + facts.transform_s + facts.encode_s:
        return "blocks wait for workers, which may compute those of other jobs"
    return "an epoch may have begun or ended; measure longer"
