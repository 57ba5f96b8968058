"""The verdict on a run: what limits it, in a sentence, with the rates of its stages and the advice that follows.

Runs in: whatever explains a run. Pure; no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from feedline.dataclass import dataclass
from feedline.loader.limits.linear_bound import WAITS, Resource, ResourceLimits, is_crowded, limits_of, ties
from feedline.loader.limits.machine_advice import Advice, counted, machine_advice, sorted_advice
from feedline.loader.limits.run_facts import Capacity, Interval, RunFacts, interval_of, sum_samples

TIE = 0.1  # bounds this close are not told apart by a measurement of seconds
_MOST = 0.5  # of a stage's CPU time that named columns or ops must take, for their share to be the sentence's
BUSY = 0.85  # the share of the cores' time in use from which they are the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRate:
    """A stage over the measured time: seconds of its threads, CPU seconds of them, and the rows per second that it
    would allow by itself, with their interval."""

    name: str
    seconds: float
    cpu_s: float | None
    rows_per_s: float
    interval: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits a run. limit: the resource, or "idle" where none is busy and the trainer waits; stage: that uses most
    of it; ties: other resources that are as close.

    rows_per_s: measured; bound: that the limit allows. headroom: rows per second without waiting over the measured
    ones (1: the trainer is the limit)."""

    sentence: str
    limit: str
    stage: str
    trainer_wait: float | None
    limits: ResourceLimits
    ties: tuple[str, ...] = ()
    rows_per_s: float = 0.0
    interval: Interval | None = None
    bound: float = 0.0
    headroom: float = 1.0
    stages: tuple[StageRate, ...] = ()
    advice: tuple[Advice, ...] = ()

    def __str__(self) -> str:
        return self.sentence


def judge(
    samples: Sequence[RunFacts],
    capacity: Capacity,
    advice: Sequence[Advice] = (),
    parts: Mapping[str, tuple[str, float]] | None = None,
) -> Verdict:
    """The verdict on the samples of one trainer. advice: on other things than machines. parts: of stages, the features
    that take most of their CPU time, as words, and their share of it."""
    samples = [each for each in samples if each.is_sound]
    facts = sum_samples(samples)
    limits, wait = limits_of(facts, capacity), facts.trainer_wait
    interval = interval_of(samples, lambda each: each.rows_per_s)
    if not facts.rows or facts.wall_s <= 0 or not limits.resources:
        return _undecided(facts, limits)
    waits = wait is not None and wait > WAITS
    if waits and limits.without("trainer").resources == ():
        return replace(_undecided(facts, limits), sentence=idle_sentence(None, facts, capacity))
    limit, others = _limit(limits, facts, capacity)
    share = _noise(interval, facts.rows_per_s)
    trainer = limits.get("trainer")
    idle = is_idle(limit, facts, capacity)
    changes = machine_advice(limits, facts, capacity, limit, share) if limit.name != "trainer" and not idle else ()
    measured = {each.kind for each in advice}  # on blocks, which is better than by a rule
    changes = [each for each in changes if each.kind not in measured]
    if idle:  # what saves CPU time saves that alone
        advice, others = [replace(each, rows_ratio=1.0, rows_interval=None) for each in advice], ()
    if limit.name == "trainer" and not others:  # no feature is given up for time that nobody waits for
        advice = [each for each in advice if each.kind not in ("feature", "op")]
    sentence = _sentence(limits, limit, others, facts, capacity, parts or {})
    return Verdict(
        sentence=idle_sentence(limit, facts, capacity) if idle else sentence,
        limit="idle" if idle else limit.name,
        stage=limit.stage,
        ties=tuple(each.name for each in others),
        trainer_wait=wait,
        rows_per_s=facts.rows_per_s,
        interval=interval,
        bound=limit.rows_per_s,
        headroom=max(1.0, trainer.rows_per_s / facts.rows_per_s) if trainer is not None else 1.0,
        stages=stage_rates(samples, capacity),
        limits=limits,
        advice=sorted_advice([*changes, *advice]) if limit.name != "trainer" else sorted_advice(advice),
    )


def stage_rates(samples: Sequence[RunFacts], capacity: Capacity) -> tuple[StageRate, ...]:
    """The stages of a run in the order in which a row passes them."""
    facts = sum_samples(samples)
    rates = [StageRate(name="planning", seconds=facts.planning_s, cpu_s=None, rows_per_s=math.inf)]
    times = facts.times
    cpu = {"decoding": times.read_cpu_s, "ops": times.transform_cpu_s, "encoding": times.encode_cpu_s}
    walls = {"store wait": times.fetch_s, "decoding": times.read_s - times.fetch_s}
    walls |= {"ops": times.transform_s, "encoding": times.encode_s}
    for name, seconds in walls.items():

        def rate(each: RunFacts, name: str = name) -> float:
            threads = limits_of(each, capacity).get("threads")
            use = 0.0 if threads is None else threads.uses[name]
            return capacity.threads / use if use > 0 else math.inf

        rows_per_s = rate(facts)
        interval = interval_of(samples, rate) if math.isfinite(rows_per_s) else None
        rates.append(
            StageRate(name=name, seconds=seconds, cpu_s=cpu.get(name, 0.0), rows_per_s=rows_per_s, interval=interval)
        )
    for resource, name, seconds, cpu_s in (
        ("loop", "delivery", facts.loop_cpu_s, facts.loop_cpu_s),
        ("copy", "copy", facts.copy_s, facts.copy_cpu_s),
        ("trainer", "trainer", facts.wall_s - (facts.trainer_wait_s or 0.0), facts.trainer_cpu_s or None),
    ):

        def single(each: RunFacts, resource: str = resource) -> float:
            limit = limits_of(each, capacity).get(resource)
            return math.inf if limit is None else limit.rows_per_s

        if math.isfinite(rows_per_s := single(facts)):
            interval = interval_of(samples, single)
            rates.append(StageRate(name=name, seconds=seconds, cpu_s=cpu_s, rows_per_s=rows_per_s, interval=interval))
    if (other_s := facts.other_cpu_s) > 0:
        rates.append(StageRate(name="other threads", seconds=other_s, cpu_s=other_s, rows_per_s=math.inf))
    waits = StageRate(name="slot wait", seconds=facts.wait_slots_s, cpu_s=0.0, rows_per_s=math.inf)
    return (*rates, waits)


def _limit(limits: ResourceLimits, facts: RunFacts, capacity: Capacity) -> tuple[Resource, tuple[Resource, ...]]:
    """The resource that limits the run, and others that are as close."""
    wait, trainer = facts.trainer_wait, limits.get("trainer")
    loader = limits.without("trainer")
    if trainer is not None and (not loader.resources or (wait is not None and wait <= WAITS)):
        close = [each for each in loader.resources if each.rows_per_s <= trainer.rows_per_s * (1 + TIE)]
        return trainer, tuple(sorted(close, key=lambda each: each.rows_per_s)) if close else ()
    first, *others = ties(loader.resources, TIE)
    cores = limits.get("cores")
    is_busy = cores is not None and facts.rows_per_s * cores.use >= BUSY * cores.capacity
    if cores is not None and first.name == "threads" and (is_busy or is_crowded(facts, capacity)):
        first, others = cores, [each for each in others if each.name != "cores"]
    # A thread that computes uses a core: as many threads as cores are one limit, not two.
    twins = {"threads", "cores"}
    return first, tuple(each for each in others if not (first.name in twins and each.name in twins))


def _noise(interval: Interval | None, rate: float) -> float:
    """The half width of the rate's interval, as a part of it."""
    return 0.1 if interval is None or rate <= 0 else max(0.02, (interval.high - interval.low) / 2 / rate)


def _sentence(
    limits: ResourceLimits,
    limit: Resource,
    others: Sequence[Resource],
    facts: RunFacts,
    capacity: Capacity,
    parts: Mapping[str, tuple[str, float]],
) -> str:
    wait = facts.trainer_wait
    if limit.name == "trainer":
        loader = limits.without("trainer")
        could = f"; the loader could deliver {short(loader.rows_per_s)}" if loader.resources and not others else ""
        if others:
            names = " and ".join(f"{_DESCRIPTIONS[each.name]} {short(each.rows_per_s)}" for each in others)
            could = f"; {names}: a tie"
        waits = "" if wait is None else f" It waits {wait:.1%} of the time and takes {short(limit.rows_per_s)}{could}."
        return f"Nothing: your trainer is the limit.{waits}"
    who = "" if wait is None else f"Trainer waits {wait:.0%}: "
    names, share = parts.get(limit.stage, ("", 1.0))
    takes = "take" if limit.stage in ("ops", "other threads") else "takes"
    if share < _MOST:  # no column or op is to blame alone
        names, share = f"({names} first of all)", 1.0
    what = " ".join(filter(None, (limit.stage, names, takes, f"{limit.stage_share * share:.0%} of {_OF[limit.name]}")))
    sizes = {
        "cores": counted(capacity.cores, "core") + ", which other programs use, too" * is_crowded(facts, capacity),
        "threads": counted(capacity.threads, "thread"),
        "lock": "one process" if limit.capacity == 1 else f"{limit.capacity:.0f} worker processes",
        "window": f"{counted(capacity.window, 'block')} in flight ({capacity.window_reason})",
        "store": f"{(capacity.store_bytes_per_s or 0) / 1e6:,.0f} MB/s of the store",
        "loop": "the feeder's loop, which is one thread",
        "copy": f"{capacity.copiers} threads that copy",
    }
    tied = "".join(f"; {_DESCRIPTIONS[each.name]} {short(each.rows_per_s)}: a tie" for each in others)
    sentence = f"{who}{what}; the limit is {short(limit.rows_per_s)} with {sizes[limit.name]}{tied}"
    return sentence[0].upper() + sentence[1:] + "."


_OF = {
    "cores": "CPU",
    "threads": "the block threads' time",
    "window": "the block threads' time",
    "lock": "the interpreter's lock, which threads of a process share",
    "store": "the store",
    "loop": "the feeder's loop",
    "copy": "the copying",
}
_DESCRIPTIONS = {
    "trainer": "the trainer allows",
    "threads": "block threads allow",
    "lock": "the interpreter's lock allows",
    "cores": "the cores allow",
    "window": "blocks in flight allow",
    "store": "the store allows",
    "loop": "the feeder's loop allows",
    "copy": "copying into slots allows",
}


def short(rows_per_s: float) -> str:
    """A rate in a word: "312 k rows/s"."""
    if not math.isfinite(rows_per_s):
        return "any rows/s"
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if rows_per_s >= factor:
            return f"{rows_per_s / factor:.3g} {unit} rows/s"
    return f"{rows_per_s:.3g} rows/s"


def _undecided(facts: RunFacts, limits: ResourceLimits) -> Verdict:
    """The verdict where nothing was delivered."""
    what = f"it planned for {facts.planning_s:.1f} s" if facts.planning_s else "no block was computed"
    if facts.blocks:
        what = f"{counted(facts.blocks, 'block')} computed, no step complete"
    return Verdict(
        sentence=f"Nothing was delivered in {facts.wall_s:.1f} s ({what}): there is no rate to explain yet.",
        limit="",
        stage="planning",
        trainer_wait=facts.trainer_wait,
        limits=limits,
    )


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
        share = facts.times.thread_s / (resource.capacity * facts.wall_s)
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
    if capacity.form not in ("pool", "threads") and facts.times.queued_s > facts.times.thread_s:
        return "blocks wait for workers, which may compute those of other jobs"
    return "an epoch may have begun or ended; measure longer"
