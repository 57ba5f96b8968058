"""Decide whether a failed block is retried, and whether the block or its worker is to blame.

Runs in: the feeder. Pure: time and the cluster's members are arguments.

A block that failed on one worker is retried on another, of another host where there is one. If that succeeds, the first
worker is to blame, and its host gets no blocks for a while; if two workers agree on the error, the block is. Errors of
the data are the same everywhere, so one confirmation is enough; a worker that is unfit (other versions, artifacts that
it cannot read) is excluded at once, and the job fails when there is no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from feedline.errors import ClusterError, FeedlineError, from_wire

ATTEMPTS = 4
EXCLUDED_S = 300.0
_AGREE = 2

Kind = Literal["unknown", "data", "unfit", "transient", "killed", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFailure:
    """What a task raised, and where. `worker`: its address ("": unknown); `host`: for messages.

    kind: "data" for errors that are the same everywhere; "unfit" for a worker that can run no task; "killed" for one
    that died; "unknown" for one that does not know the job, which is no fault.
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
    """Compute the block again, on one of these workers (None: any)."""

    workers: frozenset[str] | None


def host_of(worker: str) -> str:
    """The host of a worker's address."""
    return worker.partition("://")[2].rpartition(":")[0] or worker


def decide(block: str, failures: Sequence[BlockFailure], members: Collection[str]) -> Retry | FeedlineError:
    """What to do after the last of `failures`: retry, or raise. members: the addresses of all workers."""
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
        return Retry(workers=None)
    return _error(block, failures)


def elsewhere(tried: Collection[str], members: Collection[str]) -> frozenset[str]:
    """The workers on other hosts, or the other workers where there is one host."""
    hosts = {host_of(worker) for worker in tried}
    others = frozenset(worker for worker in members if host_of(worker) not in hosts)
    return others or frozenset(members) - frozenset(tried)


def among(workers: frozenset[str] | None, allowed: frozenset[str] | None) -> frozenset[str] | None:
    """The allowed ones of some workers, or all of them where none is allowed. None stands for any worker."""
    if workers is None or allowed is None:
        return allowed if workers is None else workers
    return workers & allowed or workers


def _agreeing_workers(failures: Sequence[BlockFailure], members: Collection[str]) -> int:
    """How many hosts (workers, where there is one host) have met the last error."""
    workers = {failure.worker for failure in failures if failure.name == failures[-1].name}
    several = len({host_of(worker) for worker in members} | {host_of(failure.worker) for failure in failures}) > 1
    return len({host_of(worker) for worker in workers} if several else workers)


def _error(block: str, failures: Sequence[BlockFailure]) -> FeedlineError:
    last = failures[-1]
    if last.ours:
        return from_wire(last.name, last.message)
    if len(failures) >= ATTEMPTS:
        return ClusterError(f"block {block} failed {len(failures)} times: {last}")
    places = ", ".join(dict.fromkeys(failure.host for failure in failures if failure.host))
    return ClusterError(f"block {block} failed{' on ' if places else ''}{places}: {last}")


@dataclass(slots=True)
class Exclusions:
    """Hosts and workers that get no blocks for `EXCLUDED_S`."""

    _until_s: dict[str, float] = field(default_factory=dict)

    def exclude(self, worker: str, members: Iterable[str], now_s: float) -> bool:
        """Exclude the worker's host, or the worker alone where there is one host. Returns whether that is new."""
        hosts = {host_of(member) for member in members}
        place = host_of(worker) if hosts - {host_of(worker)} else worker
        known = self._until_s.get(place, now_s) > now_s
        self._until_s[place] = now_s + EXCLUDED_S
        return not known

    def any(self, now_s: float) -> bool:
        """Whether a host or worker is excluded."""
        self._until_s = {place: until_s for place, until_s in self._until_s.items() if until_s > now_s}
        return bool(self._until_s)

    def allowed(self, members: Collection[str], now_s: float) -> frozenset[str] | None:
        """The workers that may have blocks; None for all: where none is excluded, or all would be."""
        if not self.any(now_s):
            return None
        allowed = frozenset(
            member for member in members if member not in self._until_s and host_of(member) not in self._until_s
        )
        return allowed if allowed and len(allowed) < len(members) else None
