"""Agree on one plan with the other ranks, through the key-value store of torch.distributed.

Runs in: the trainer. Rank 0 plans and publishes the snapshot; the others plan on it; each publishes fingerprints and
the state that it continues; rank 0 compares them and publishes the verdict. No rank enters a collective call: NCCL
kills a process that waits ten minutes in one. Agreements are numbered; every rank counts its own in the store.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch.distributed

from feedline.dataclass import dataclass
from feedline.errors import FeedlineError, PlanError, from_wire
from feedline.loader.launcher import RankInfo
from feedline.loader.ring.client import FeederClient
from feedline.loader.ring.feeder_connection import Answer
from feedline.loader.state import STATE_KEYS
from feedline.loader.wire.codec import pack, unpack
from feedline.loader.wire.facts import Hello, RankOutcome

logger = logging.getLogger(__name__)

# Longer than any planning; the launcher notices a rank that died, and ends the others.
_LONGEST_S = 24 * 3600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _PAUSE_GROWTH = 0.01, 1.0, 1.5
_LOG_EVERY_S = 60.0
_SHOWN_RANKS = 10
_COMPARED = ("plan", "features")
_ANSWERED = ("snapshot", "lanes", "window_rows", "window_blocks", "column_group")
# MPI connects its ranks by its own runtime; "fake" is PyTorch's stand-in for tests, without other ranks.
_BACKENDS_WITHOUT_STORE = ("mpi", "fake")


class Store(Protocol):
    """The methods used of a torch.distributed store."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...


def hello_of(ranks: RankInfo, column_group: tuple[str, ...] = ()) -> Hello:
    """A rank's request for a new plan, of all features or of those of a column group."""
    return Hello(
        rank=ranks.rank,
        world_size=ranks.world_size,
        trainer=ranks.trainer,
        trainers=ranks.trainers,
        column_group=column_group,
    )


def open_plan(feed: FeederClient, hello: Hello, resume: Mapping[str, Any] | None) -> Answer:
    """This rank's answer. Ranks connected by torch.distributed agree on a plan, on the snapshot of rank 0, and on the
    state to resume."""
    place = hello.global_rank, hello.global_size
    store = _store() if hello.global_size > 1 and connected_rank() == place else None
    if store is None:
        return feed.open(hello)
    return agree_on_plan(store, feed.open, replace(hello, connected=True), state=resume)


def connected_rank() -> tuple[int, int] | None:
    """Rank and world size of torch.distributed; None before its start."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None


def _store() -> Store | None:
    """The store of torch.distributed; None for a backend that does not use it: its `Store` is empty."""
    if torch.distributed.get_backend() in _BACKENDS_WITHOUT_STORE:
        return None
    store: Store = torch.distributed.distributed_c10d._get_default_store()
    return store


def agree_on_plan(
    store: Store,
    open_plan: Callable[[Hello], Answer],
    hello: Hello,
    *,
    state: Mapping[str, Any] | None = None,
    pause: Callable[[float], None] = time.sleep,
    now_s: Callable[[], float] = time.monotonic,
) -> Answer:
    """This rank's answer, once all ranks have the same plan.

    state: the state that this rank loads, None if it starts without one. If one rank fails, its error is raised on
    every rank; so is PlanError if their states, plans or features differ, or if they do not read the rows of all data
    ranks. Ranks may read different column groups of the plan: then each group's ranks read the rows of all data ranks.
    """
    rank = hello.global_rank
    prefix = f"feedline/{store.add(f'feedline/rounds/{rank}', 1)}"
    messages = _RankMessages(store, pause, now_s)
    if rank != 0:
        leader = messages.one(f"{prefix}/leader", "rank 0 to plan")
        _raise_error(leader)
        # Rank 0 planned the rebase, or the next epoch of a followed table, for all.
        if hello.rebase is not None or (hello.plan and hello.epoch is not None):
            window_rows, window_blocks = leader.window_rows, leader.window_blocks
            hello = replace(hello, plan=leader.plan, window_rows=window_rows, window_blocks=window_blocks)
        hello = replace(hello, snapshot=leader.snapshot, lanes=leader.lanes, rebase=None)
    try:
        answer = open_plan(hello)
        facts = {name: getattr(answer.facts, name) for name in (*_ANSWERED, *_COMPARED)}
        loaded = None if state is None else {key: state[key] for key in STATE_KEYS}
        outcome = RankOutcome(**facts, state=loaded, data_rank=hello.rank, data_world_size=hello.world_size)
    except BaseException as error:
        store.set(f"{prefix}/{rank or 'leader'}", pack(_failure(error)).decode())
        if rank == 0 or not isinstance(error, FeedlineError):
            raise
    else:
        store.set(f"{prefix}/{rank or 'leader'}", pack(outcome).decode())
    if rank == 0:
        others = messages.all([f"{prefix}/{other}" for other in range(1, hello.global_size)])
        store.set(f"{prefix}/verdict", pack(_verdict(outcome, others)).decode())
    _raise_error(messages.one(f"{prefix}/verdict", "rank 0 to compare the plans of all ranks"))
    return answer


def _raise_error(outcome: RankOutcome) -> None:
    if outcome.error is not None:
        raise from_wire(outcome.error, outcome.message)


def _failure(error: BaseException) -> RankOutcome:
    if isinstance(error, FeedlineError):
        return RankOutcome(error=type(error).__name__, message=str(error))
    return RankOutcome(error="FeederError", message=f"stopped by {type(error).__name__}: {error}")


def _verdict(leader: RankOutcome, others: Sequence[RankOutcome]) -> RankOutcome:
    """The error of the first rank that failed or differs; empty if all agree. Pure."""
    for rank, outcome in enumerate(others, start=1):
        if outcome.error is not None:
            return RankOutcome(error=outcome.error, message=f"rank {rank}: {outcome.message}")
        if (message := _describe_states(leader.state, outcome.state, rank)) is not None:
            return RankOutcome(error="PlanError", message=message)
        for key in _COMPARED:
            expected, actual = getattr(leader, key), getattr(outcome, key)
            if actual != expected:
                message = (
                    f"the ranks do not agree on the {key}: got {actual} on rank {rank}, expected {expected} as on rank "
                    "0. Start every rank with the same pipeline.yaml and overrides"
                )
                return RankOutcome(error="PlanError", message=message)
    groups: dict[str, dict[int, RankOutcome]] = {}
    for rank, outcome in enumerate([leader, *others]):
        groups.setdefault(outcome.column_group.name if outcome.column_group else "", {})[rank] = outcome
    messages = (check(name, group) for name, group in groups.items() for check in (_describe_digests, _describe_unread))
    message = next(filter(None, messages), "")
    return RankOutcome(error="PlanError", message=message) if message else RankOutcome()


def _describe_states(expected: Mapping[str, Any] | None, actual: Mapping[str, Any] | None, rank: int) -> str | None:
    """Why a rank does not continue where rank 0 does; None if it does."""
    differing, values = "start at one position", (_describe_position(actual), _describe_position(expected))
    if values[0] == values[1]:
        if expected is None or actual is None or actual == expected:
            return None
        key = next(key for key in STATE_KEYS if actual[key] != expected[key])
        differing, values = f"load states of one {key}", (actual[key], expected[key])
    return (
        f"the ranks do not {differing}: got {values[0]} on rank {rank}, expected {values[1]} as on rank 0. Load one "
        "state on every rank: any rank's copy is right for all"
    )


def _describe_position(state: Mapping[str, Any] | None) -> str:
    return "no state" if state is None else f"epoch {state['epoch']}, step {state['step']}"


def _describe_digests(name: str, outcomes: Mapping[int, RankOutcome]) -> str:
    """Why the ranks of a column group do not compute the same features; empty if they do. outcomes: by rank."""
    digests = {rank: each.column_group.digest for rank, each in outcomes.items() if each.column_group is not None}
    first = next(iter(digests), 0)
    for rank, digest in digests.items():
        if digest != digests[first]:
            return (
                f"the ranks do not agree on the column group {name}: got {digest} on rank {rank}, expected "
                f"{digests[first]} as on rank {first}. Start every rank with the same pipeline.yaml and overrides"
            )
    return ""


def _describe_unread(name: str, outcomes: Mapping[int, RankOutcome]) -> str:
    """Why the ranks of a column group (empty: of all features) do not read all rows, or not equally often; empty if
    they do. outcomes: by rank."""
    first, of_group = next(iter(outcomes)), f" of the column group {name}" if name else ""
    size = outcomes[first].data_world_size
    for rank, outcome in outcomes.items():
        if outcome.data_world_size != size:
            return (
                f"the ranks{of_group} do not agree on the data world size: got {outcome.data_world_size} on rank "
                f"{rank}, expected {size} as on rank {first}. Pass the same data_world_size, or the same mesh, on "
                f"every rank{of_group}"
            )
    numbers = [outcome.data_rank for outcome in outcomes.values()]
    unread = [str(number) for number in range(size or 0) if number not in numbers]
    if unread:
        got = ", ".join(map(str, numbers[:_SHOWN_RANKS]))
        more = " …" if len(numbers) > _SHOWN_RANKS else ""
        return (
            f"no rank{of_group} reads the rows of data rank {', '.join(unread[:_SHOWN_RANKS])}: got the data ranks "
            f"{got}{more}, expected each of 0 to {(size or 0) - 1}. Pass each rank{of_group} its own place among the "
            "data ranks"
        )
    return ""


@dataclass(frozen=True, slots=True)
class _RankMessages:
    """The outcomes of other ranks. Polls, since the store's own waiting cannot be interrupted and fills the log."""

    store: Store
    pause: Callable[[float], None]
    now_s: Callable[[], float]

    def one(self, key: str, reason: str) -> RankOutcome:
        """The outcome at a key. reason: what it waits for, for the log."""
        return self._wait([key], lambda: reason)[0]

    def all(self, keys: Sequence[str]) -> list[RankOutcome]:
        """The outcomes of all ranks but 0."""

        def describe_missing() -> str:
            ranks = [key.rpartition("/")[2] for key in keys if not self._has([key])]
            more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
            return f"ranks {', '.join(ranks[:_SHOWN_RANKS])}{more} to plan"

        return self._wait(keys, describe_missing)

    def _wait(self, keys: Sequence[str], describe: Callable[[], str]) -> list[RankOutcome]:
        start_s = logged_s = self.now_s()
        pause = _FIRST_PAUSE_S
        while not self._has(keys):
            now_s = self.now_s()
            if now_s - start_s > _LONGEST_S:
                raise PlanError(
                    f"the ranks did not agree on a plan: waited {now_s - start_s:.0f} s for {describe()}. Restart all "
                    "ranks"
                )
            if now_s - logged_s >= _LOG_EVERY_S:
                logged_s = now_s
                logger.warning("waited %.0f s for %s", now_s - start_s, describe())
            self.pause(pause)
            pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE_S)
        return [unpack(RankOutcome, self.store.get(key)) for key in keys]

    def _has(self, keys: Sequence[str]) -> bool:
        try:
            return self.store.check(list(keys))
        except RuntimeError as error:
            raise PlanError(
                f"the store of torch.distributed does not answer: {error}. The process that held it (rank 0, or the "
                "launcher) has ended: restart all ranks"
            ) from error
