"""Advice on machines and settings: workers, threads or processes, the store, the cache, blocks in flight.

Runs in: whatever explains a run. Pure; no torch. Each change is predicted by the bound with the changed capacities or
uses; the part of the bound that the run reaches today is expected of the changed run, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal

from feedline.dataclass import dataclass
from feedline.loader.limits.linear_bound import Resource, ResourceLimits
from feedline.loader.limits.run_facts import LOCAL_FORMS, Capacity, Interval, RunFacts

# --------------------------------------------------------------------------------------------------------------------
# Advice: a change of a pipeline, a command or a table, with the gain that is predicted of it. Pure; no torch.

AdviceKind = Literal[
    "workers", "threads", "processes", "store", "cache", "memory", "window", "batch",
    "decode", "dedup", "feature", "row_groups", "op",
]  # fmt: skip

WORTH = 1.02  # advice that promises less is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change and its predicted gain.

    change: the key of pipeline.yaml with its value, or the command. rows_ratio: predicted rows per second over those
    of now. cpu_s_saved: CPU seconds saved per million rows. Both with their intervals (None: unknown). reason: what
    was measured that makes it worth it. caveat: what the prediction leaves out.
    """

    kind: AdviceKind
    change: str
    reason: str
    rows_ratio: float = 1.0
    rows_interval: Interval | None = None
    cpu_s_saved: float = 0.0
    cpu_interval: Interval | None = None
    caveat: str = ""

    @property
    def is_worth_it(self) -> bool:
        """Whether it promises more than the measurement's noise."""
        return self.rows_ratio >= WORTH or self.cpu_s_saved > 0


def counted(number: float, noun: str) -> str:
    """A number with its noun: "1 core", "2 cores"."""
    number = round(number, 1)
    return f"{number:g} {noun}" + "s" * (number != 1)


def sorted_advice(advice: Iterable[Advice]) -> tuple[Advice, ...]:
    """What is worth it, the largest gain in rows per second first, then the most CPU saved."""
    worth = [each for each in advice if each.is_worth_it]
    return tuple(sorted(worth, key=lambda each: (-round(each.rows_ratio, 2), -each.cpu_s_saved)))


# --------------------------------------------------------------------------------------------------------------------

_SAVES = 0.01  # of the CPU time: less is rounding
_WAITS = 0.2  # the share of block threads' time that waiting for a store, or for the interpreter, must take
_MOST_THREADS = 64  # that are advised in one process: each holds a block and a decoder's buffers
_WINDOW_OF_THREADS = 2  # blocks in flight per thread, which keep all of them busy
# As many threads as now, where their use of the interpreter's lock was not measured: it ends their gain somewhere.
_MOST_MORE_THREADS = 4
_MOST_TIMES = 8  # as many workers or cores as now: beyond that, what was measured says little
# What is read from a cache costs about a copy of it: a rule, where no block was read from one.
_CACHED_BYTES_PER_CPU_S = 1.0e9
# What another process costs to send and to receive a block, packing included: 0.46 us for a row of 300 bytes.
_SENT_BYTES_PER_CPU_S = 0.65e9


def machine_advice(
    limits: ResourceLimits, facts: RunFacts, capacity: Capacity, limit: Resource, noise: float
) -> Iterable[Advice]:
    """Advice for a run whose trainer waits, or which has none. noise: of the measured rate, as a part of it."""
    yield from _more_threads(limits, facts, capacity, limit, noise)
    yield from _processes(limits, facts, capacity, limit, noise)
    yield from _source_cache(limits, capacity, noise)
    yield from _feature_cache(limits, facts, capacity, noise)
    if limit.name == "window":
        yield from _more_blocks(limits, capacity, noise)
    if limit.name in ("loop", "copy"):
        halved = {"loop": {"delivery": limit.use / 2}} if limit.name == "loop" else {}
        yield _advice(
            "batch",
            predicted(limits, limits.with_uses(halved), noise),
            change="batch.size: twice as many rows",
            reason="the feeder's loop takes a time per step, whatever its rows",
        )


def _more_blocks(limits: ResourceLimits, capacity: Capacity, noise: float) -> Iterator[Advice]:
    """More blocks in flight, where memory or a key limits them; a trainer's pace changes by itself."""
    change = "memory: a larger share" if "memory" in capacity.window_reason else ""
    if capacity.window_reason == "cluster.window":
        change = f"cluster: {{window: {_WINDOW_OF_THREADS * capacity.threads}}}"
    if change:
        yield _advice(
            "window" if change.startswith("cluster") else "memory",
            predicted(limits, limits.without("window"), noise),
            change=change,
            reason=f"{counted(capacity.window, 'block')} may be in flight, {capacity.threads} threads could compute",
        )


def predicted(limits: ResourceLimits, changed: ResourceLimits, noise: float) -> tuple[float, Interval]:
    """The ratio of rows per second after a change, with its interval: the measured rate's noise on either side, but no
    more than a trainer that stays takes."""
    ratio = limits.ratio_to(changed)
    return ratio, Interval(low=ratio * max(0.0, 1 - noise), high=ratio * (1 + noise))


def _advice(kind: AdviceKind, gain: tuple[float, Interval], *, change: str, reason: str, caveat: str = "") -> Advice:
    ratio, interval = gain
    return Advice(kind=kind, change=change, reason=reason, rows_ratio=ratio, rows_interval=interval, caveat=caveat)


def threads_needed(limits: ResourceLimits) -> int | None:
    """The block threads until something else is the limit: the trainer, where there is one. None: threads are not."""
    threads = limits.get("threads")
    if threads is None or threads.use <= 0:
        return None
    goal = limits.without("threads", "window").rows_per_s
    efficiency = min(1.0, limits.measured / limits.rows_per_s) if limits.rows_per_s > 0 else 1.0
    trainer = limits.get("trainer")
    if trainer is not None and goal >= trainer.rows_per_s:
        goal = trainer.rows_per_s / max(efficiency, 0.1)
    return math.ceil(goal * threads.use) if math.isfinite(goal) else None


def _more_threads(
    limits: ResourceLimits, facts: RunFacts, capacity: Capacity, limit: Resource, noise: float
) -> Iterator[Advice]:
    """More threads where they wait; else more workers, which bring cores, and a lock each."""
    threads, lock = limits.get("threads"), limits.get("lock")
    if threads is None or limit.name not in ("threads", "cores", "window", "lock"):
        return
    if limit.name == "lock" and capacity.form == "threads":  # processes are advised
        return
    is_local = capacity.form in LOCAL_FORMS
    per_worker = max(1, round(capacity.threads / max(capacity.workers, 1)))
    if limit.name == "threads" and capacity.form == "threads":
        most = _MOST_THREADS if lock is not None else min(_MOST_THREADS, _MOST_MORE_THREADS * capacity.threads)
        needed = min(threads_needed(limits) or 2 * capacity.threads, most)
        if facts.lock_wait_s >= _WAITS * facts.block_busy_s:  # more threads hide sleep, and wait longer for the lock
            computing_s = min(facts.block_busy_s, facts.block_cpu_s + facts.lock_wait_s)
            needed = min(needed, round(capacity.threads * facts.block_busy_s / computing_s))
        if needed > capacity.threads and needed / capacity.threads >= 1 + _WAITS:
            yield _advice(
                "threads",
                predicted(limits, limits.with_capacity({"threads": needed}), noise),
                change=f"cluster: {{threads: {needed}}}",
                reason="block threads wait, for the store or within ops, and leave cores idle",
                caveat=_store_caveat(threads, capacity),
            )
        return
    has_trainer = limits.get("trainer") is not None
    elastic = limits.without("cores") if not is_local or limit.name == "cores" else limits
    needed = (threads_needed(elastic.without("lock")) if has_trainer else None) or 2 * capacity.threads
    most = max(_MOST_TIMES * capacity.workers, capacity.workers + 1)
    workers = min(max(math.ceil(needed / per_worker), capacity.workers + 1), most)
    ends = "the trainer is the limit" if has_trainer else "twice as many rows are expected, up to other limits"
    if has_trainer and workers * per_worker < needed:
        ends = "it still waits"
    if limit.name == "cores" and (is_local or capacity.cores < capacity.threads):
        sent = _with_sending(limits, facts) if capacity.form in ("pool", "threads") else limits
        yield _other_hosts(limits, sent, capacity, workers * per_worker / capacity.threads, noise)
        return
    change = f"{workers} workers at the scheduler"
    yield _advice(
        "workers",
        predicted(limits, _with_workers(elastic, workers, per_worker), noise),
        change=change if capacity.form == "scheduler" else f"cluster: {{workers: {workers}}}",
        reason=f"{counted(capacity.workers, 'worker')} of {counted(per_worker, 'thread')} "
        f"{'is' if capacity.workers == 1 else 'are'} busy; with {workers} {ends}",
        caveat=_store_caveat(threads, capacity),
    )


def _with_workers(limits: ResourceLimits, workers: int, threads: int) -> ResourceLimits:
    """The limits with so many processes, of so many threads each."""
    return limits.with_capacity({"threads": float(workers * threads), "lock": float(workers)})


def _store_caveat(threads: Resource, capacity: Capacity) -> str:
    """What advice of more reading leaves out where threads wait for a store of unknown MB/s."""
    if capacity.store_bytes_per_s is not None or threads.uses["store wait"] < _WAITS * threads.use:
        return ""
    return "the store's MB/s are unknown, and may not be enough: give --store-mb-s"


def _with_sending(limits: ResourceLimits, facts: RunFacts) -> ResourceLimits:
    """The limits if blocks came from other processes."""
    cores = limits.get("cores")
    if cores is None or not facts.block_rows:
        return limits
    sending = facts.nbytes_encoded / facts.block_rows / _SENT_BYTES_PER_CPU_S
    return limits.with_uses({"cores": {"delivery": cores.uses.get("delivery", 0.0) + sending}})


def _other_hosts(
    limits: ResourceLimits, sent: ResourceLimits, capacity: Capacity, factor: float, noise: float
) -> Advice:
    """Cores of other hosts, where those of this one are the limit. sent: the limits with blocks of other processes;
    factor: of the threads that are needed."""
    trainer, limit = limits.get("trainer"), sent.get("cores")
    assert limit is not None
    if trainer is not None:  # its goal may need more cores than threads
        efficiency = min(1.0, limits.measured / limits.without("trainer").rows_per_s)
        factor = max(factor, trainer.rows_per_s / max(efficiency, 0.1) / limit.rows_per_s)
    ends = "the trainer is the limit" if factor <= _MOST_TIMES else "it still waits"
    cores = math.ceil(min(factor, _MOST_TIMES) * capacity.cores)
    factor = cores / capacity.cores
    lock, threads = limits.get("lock"), factor * capacity.threads
    locks = max(1.0, factor * (lock.capacity if lock is not None else 0.0))
    changed = sent.with_capacity({"threads": threads, "cores": factor * limit.capacity, "lock": locks})
    return _advice(
        "workers",
        predicted(limits, changed, noise),
        change=f"{_OTHER_HOSTS[capacity.form]}: {cores} cores in all",
        reason=f"{counted(capacity.cores, 'core')} {'is' if capacity.cores == 1 else 'are'} busy"
        + (f"; with {cores} {ends}" if trainer else ""),
        caveat="blocks that come over a network are copied once more, which is in the figure" if sent != limits else "",
    )


_OTHER_HOSTS = {
    **dict.fromkeys(LOCAL_FORMS, "cluster: {scheduler: tcp://…} with workers on other hosts"),
    "scheduler": "workers of the scheduler on other hosts",
    "provider": "cluster: {workers: N} on other hosts",
}


def _processes(
    limits: ResourceLimits, facts: RunFacts, capacity: Capacity, limit: Resource, noise: float
) -> Iterator[Advice]:
    """Processes instead of threads, where threads wait for each other."""
    threads = limits.get("threads")
    if capacity.form != "threads" or limit.name not in ("threads", "lock") or threads is None:
        return
    waiting_s, workers = facts.lock_wait_s, max(capacity.threads, 2)
    if limit.name == "threads" and (capacity.threads < 2 or waiting_s < _WAITS * facts.block_busy_s):
        return
    computing_s = facts.block_busy_s - facts.times.fetch_s
    running = max(0.0, 1 - waiting_s / computing_s)
    uses = {stage: use if stage == "store wait" else use * running for stage, use in threads.uses.items()}
    changed = _with_workers(limits.with_uses({"threads": uses}), workers, 1)
    waits = f"block threads wait for each other {waiting_s / facts.block_busy_s:.0%} of the time: blocks are short"
    yield _advice(
        "processes",
        predicted(limits, changed, noise),
        change=f"cluster: {{processes: {workers}, threads: 1}}",
        reason=waits if limit.name == "threads" else "threads of one process share the interpreter's lock",
        caveat="larger row groups make blocks longer, too",
    )


def _source_cache(limits: ResourceLimits, capacity: Capacity, noise: float) -> Iterator[Advice]:
    threads = limits.get("threads")
    if threads is None or threads.use <= 0 or threads.uses["store wait"] < _WAITS * threads.use or capacity.epochs < 2:
        return
    without = {name: {"store wait": 0.0} for name in ("threads", "window", "store")}
    yield _advice(
        "store",
        predicted(limits, limits.with_uses(without), noise),
        change="cache: {dir: FOLDER, mode: source}",
        reason=f"waiting for the store takes {threads.uses['store wait'] / threads.use:.0%} of the block threads' time",
        caveat="from the second epoch on; the first one writes what it reads",
    )


def _feature_cache(limits: ResourceLimits, facts: RunFacts, capacity: Capacity, noise: float) -> Iterator[Advice]:
    """A cache of features: later epochs find what the first one computes."""
    threads, cores = limits.get("threads"), limits.get("cores")
    columns = facts.found + facts.computed
    missed = facts.computed / columns if columns else 1.0
    if threads is None or not facts.block_rows or missed < _WAITS or (capacity.epochs < 2 and not capacity.cached):
        return
    read = facts.nbytes_encoded / facts.block_rows / _CACHED_BYTES_PER_CPU_S
    uses = {"store wait": 0.0, "decoding": read, "ops": 0.0}
    change = dict.fromkeys(("threads", "cores", "window"), uses)
    if cores is not None:
        change["cores"] = {"decoding": read, "ops": 0.0}
    if limits.get("lock") is not None:
        change["lock"] = {"decoding": 0.0, "ops": 0.0}
    saved = 0.0 if cores is None else cores.use - limits.with_uses(change).get("cores").use  # type: ignore[union-attr]
    saved = saved if cores is not None and saved > _SAVES * cores.use else 0.0
    again = "wait for the second epoch" if capacity.epochs > 1 else "run it again"
    ratio, interval = predicted(limits, limits.with_uses({**change, "store": {"store wait": 0.0}}), noise)
    yield Advice(
        kind="cache",
        change=f"{again}: the cache is cold" if capacity.cached else "cache: {dir: FOLDER}",
        reason=f"{missed:.0%} of features are computed, which later epochs need again",
        rows_ratio=ratio,
        rows_interval=Interval(low=min(1.0, interval.low), high=interval.high),
        cpu_s_saved=1e6 * saved,
        caveat="from the second epoch on, if the cache's folder is as fast as memory",
    )
