"""Decide whether a failed block is retried, and whether the block or its worker is to blame.

Runs in: the feeder. Pure: time and the cluster's members are arguments.

A block that failed on one worker is retried on another, on another host if there is one. If that succeeds, the first
worker is to blame, and its host gets no blocks for a while; if two workers report the same error, the block is to
blame. A worker that is unfit (other versions, unreadable artifacts) is excluded at once, and the job fails if there is
no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import field
from typing import Literal

from feedline.dataclass import dataclass
from feedline.errors import ClusterError, FeedlineError, from_wire

ATTEMPTS = 4
EXCLUDED_S = 300.0
_AGREE = 2
_PAUSE_S = 1.0  # before a block's second attempt in the same place; twice as long before each further one

Kind = Literal["unknown", "data", "unfit", "transient", "killed", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFailure:
    """The exception of a task, and its worker. worker: its address ("": unknown). host: for messages.

    kind: "data" for errors that are the same on every worker; "unfit" for a worker that can run no task; "killed" for
    one that died; "unknown" for one that does not hold the job, which is no fault.
    ours: whether `name` is the class of a FeedlineError.
    """

    kind: Kind
    ours: bool
    name: str
    message: str
    worker: str
    host: str

    def __str__(self) -> str:
        return self.message if self.ours else f"{self.name}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Compute the block again, on one of these workers (None: any). after_s: a pause where there is no other to try."""

    workers: frozenset[str] | None
    after_s: float = 0.0


def host_of(worker: str) -> str:
    return worker.partition("://")[2].rpartition(":")[0] or worker


def decide_retry(block: str, failures: Sequence[BlockFailure], members: Collection[str]) -> Retry | FeedlineError:
    """The reaction to the last of `failures`: a retry, or the error to raise. members: addresses of all workers."""
    last = failures[-1]
    if len(failures) >= ATTEMPTS or (
        last.kind not in ("unfit", "killed") and _agreeing_workers(failures, members) >= _AGREE
    ):
        return _error(block, failures)
    if last.kind == "killed":
        return Retry(workers=None)
    if others := elsewhere({failure.worker for failure in failures}, members):
        return Retry(workers=others)
    if last.kind == "transient" and not last.ours:
        return Retry(workers=None, after_s=_PAUSE_S * 2 ** (len(failures) - 1))
    return _error(block, failures)


def elsewhere(tried: Collection[str], members: Collection[str]) -> frozenset[str]:
    """The workers on other hosts; the other workers if there is only one host."""
    # tried a:1 -> of a:1, a:2, b:1 it is b:1, on another host; of a:1, a:2 it is a:2
    hosts = {host_of(worker) for worker in tried}
    others = frozenset(worker for worker in members if host_of(worker) not in hosts)
    return others or frozenset(members) - frozenset(tried)


def among(workers: frozenset[str] | None, eligible: frozenset[str] | None) -> frozenset[str] | None:
    """The eligible ones of `workers`, or all of them if none is. None stands for any worker."""
    if workers is None or eligible is None:
        return eligible if workers is None else workers
    return workers & eligible or workers


def _agreeing_workers(failures: Sequence[BlockFailure], members: Collection[str]) -> int:
    """The number of hosts (workers, if there is only one host) that reported the last error."""
    workers = {failure.worker for failure in failures if failure.name == failures[-1].name}
    several = len({host_of(worker) for worker in members} | {host_of(failure.worker) for failure in failures}) > 1
    return len({host_of(worker) for worker in workers} if several else workers)


def _error(block: str, failures: Sequence[BlockFailure]) -> FeedlineError:
    last = failures[-1]
    if last.ours:
        return from_wire(last.name, last.message)
    if len(failures) >= ATTEMPTS:
        return ClusterError(f"block {block} failed {len(failures)} times: {last}")
    hosts = ", ".join(dict.fromkeys(failure.host for failure in failures if failure.host))
    return ClusterError(f"block {block} failed{' on ' if hosts else ''}{hosts}: {last}")


@dataclass(slots=True)
class Exclusions:
    """Hosts and workers that get no blocks for `EXCLUDED_S`."""

    _until_s: dict[str, float] = field(default_factory=dict)

    def exclude(self, worker: str, members: Iterable[str], now_s: float) -> bool:
        """Exclude the worker's host, or only the worker if there is one host. Returns whether that is new."""
        hosts = {host_of(member) for member in members}
        name = host_of(worker) if hosts - {host_of(worker)} else worker
        is_new = self._until_s.get(name, now_s) <= now_s
        self._until_s[name] = now_s + EXCLUDED_S
        return is_new

    def any(self, now_s: float) -> bool:
        self._until_s = {name: until_s for name, until_s in self._until_s.items() if until_s > now_s}
        return bool(self._until_s)

    def allowed(self, members: Collection[str], now_s: float) -> frozenset[str]:
        if not self.any(now_s):
            return frozenset(members)
        return frozenset(
            member for member in members if member not in self._until_s and host_of(member) not in self._until_s
        )

    def eligible_workers(self, members: Collection[str], now_s: float) -> frozenset[str] | None:
        """The workers that may get blocks; None for all, also if every one is excluded."""
        eligible = self.allowed(members, now_s)
        return eligible if eligible and len(eligible) < len(members) else None
