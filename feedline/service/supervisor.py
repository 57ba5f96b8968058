"""Keep the feeders of `feedline run` alive while trainers come and go.

Runs in: the process of `feedline run`. Each rank of this host has a listening feeder process, which reports in JSON
lines. A feeder that dies is started again; three deaths in a row without a batch end the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from feedline.errors import FeederError
from feedline.loader.encoding.quality import Quality
from feedline.loader.facts import FeederStats, PlanFacts
from feedline.loader.ring.launch import await_end, feeder_words, own_arguments, standard_input
from feedline.resources import SCRATCH_VARIABLE, make_scratch

_FUTILE_DEATHS = 3
_EXIT_S = 5.0

EventType = Literal["ready", "trainer", "plan", "stats", "left", "died"]


@dataclass(slots=True)
class RankFeeder:
    """The feeder of one rank, and its last reports."""

    rank: int
    arguments: Sequence[str]
    overrides: str
    environment: dict[str, str]
    process: subprocess.Popen[str] | None = None
    scratch: str | None = None
    dashboard: str | None = None
    trainer: int | None = None
    stats: FeederStats | None = None  # for the current trainer
    past_stats: list[FeederStats] = field(default_factory=list)  # for each trainer that left
    quality: list[Quality] = field(default_factory=list)  # counts of what those were delivered
    plan: PlanFacts | None = None  # of its last trainer
    futile_deaths: int = 0
    last_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederEvent:
    """A line of JSON from a feeder of `feedline run`, or its death, which the supervisor detects.

    ready: it waits for a trainer (dashboard, pid). trainer: one attached (pid). plan: the plan is ready. stats:
    progress. left: the trainer left (error, stats, quality). died: the feeder died (status).
    """

    type: EventType
    dashboard: str | None = None
    pid: int | None = None
    plan: PlanFacts | None = None
    stats: FeederStats | None = None
    quality: tuple[Quality, ...] = ()
    error: str | None = None
    status: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The event's fields and type; a plan's facts are keys of their own."""
        if self.plan is not None:
            return {"type": self.type, **self.plan.to_json()}
        stats = None if self.stats is None else self.stats.to_json()
        return {
            "type": self.type,
            "dashboard": self.dashboard,
            "pid": self.pid,
            "error": self.error,
            "stats": stats,
            "quality": [counts.to_json() for counts in self.quality],
        }

    @classmethod
    def from_json(cls, message: dict[str, Any]) -> Self:
        """The inverse of `to_json`. Raises FeederError for malformed facts."""
        kind: EventType = message["type"]
        if kind == "plan":
            return cls(type="plan", plan=PlanFacts.from_json(message))
        stats = message.get("stats")
        return cls(
            type=kind,
            dashboard=message.get("dashboard"),
            pid=message.get("pid"),
            stats=None if stats is None else FeederStats.from_json(stats),
            quality=tuple(Quality.from_json(counts) for counts in message.get("quality", ())),
            error=message.get("error"),
        )


class Supervisor:
    """The feeders of this host's ranks. `poll` handles their reports; close it when done."""

    def __init__(self, ranks: Sequence[RankFeeder]) -> None:
        self.ranks = list(ranks)
        self._messages: queue.Queue[tuple[RankFeeder, subprocess.Popen[str], dict[str, Any] | None]] = queue.Queue()

    def start(self) -> None:
        for rank in self.ranks:
            self._start(rank)

    def poll(self, timeout_s: float) -> list[tuple[RankFeeder, FeederEvent]]:
        """The events since the last call, waiting up to `timeout_s` for the first; restarts dead feeders.

        Raises FeederError if a feeder dies three times without delivering a batch.
        """
        events: list[tuple[RankFeeder, FeederEvent]] = []
        with contextlib.suppress(queue.Empty):
            item = self._messages.get(timeout=timeout_s)
            while True:
                self._handle(*item, events)
                item = self._messages.get_nowait()
        return events

    def close(self) -> None:
        """End all feeders: SIGTERM first, then SIGKILL."""
        # One SIGTERM each: a second may meet a feeder that is switching to ignoring it, and then prints a traceback.
        for rank in self.ranks:
            if rank.process is not None:
                rank.process.terminate()
        for rank in self.ranks:
            if rank.process is not None:
                await_end(rank.process, within_s=_EXIT_S)
            if rank.scratch is not None:
                shutil.rmtree(rank.scratch, ignore_errors=True)

    def _start(self, rank: RankFeeder) -> None:
        if rank.scratch is not None:
            shutil.rmtree(rank.scratch, ignore_errors=True)
        rank.scratch = make_scratch()
        with standard_input(rank.overrides) as overrides:
            process = subprocess.Popen(
                [*feeder_words(os.environ), *rank.arguments, *own_arguments(rank.scratch), "--listen"],
                stdin=overrides,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **rank.environment, SCRATCH_VARIABLE: rank.scratch},
            )
        rank.process = process
        rank.trainer = None
        threading.Thread(target=self._listen, args=(rank, process), daemon=True).start()

    def _listen(self, rank: RankFeeder, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if (message := _event_message(line)) is not None:
                    self._messages.put((rank, process, message))
        self._messages.put((rank, process, None))

    def _handle(
        self,
        rank: RankFeeder,
        process: subprocess.Popen[str],
        message: dict[str, Any] | None,
        events: list[tuple[RankFeeder, FeederEvent]],
    ) -> None:
        if process is not rank.process:
            return
        if message is None:
            self._on_death(rank, process, events)
            return
        event = FeederEvent.from_json(message)
        match event.type:
            case "ready":
                rank.dashboard = event.dashboard
            case "trainer":
                rank.trainer = event.pid
            case "plan":
                rank.plan = event.plan
            case "stats":
                rank.stats = event.stats
            case "left":
                rank.trainer = rank.stats = None
                rank.past_stats += [] if event.stats is None else [event.stats]
                rank.quality += event.quality
                rank.last_error = event.error
        if event.stats is not None and event.stats.batches:
            rank.futile_deaths = 0
        events.append((rank, event))

    def _on_death(
        self, rank: RankFeeder, process: subprocess.Popen[str], events: list[tuple[RankFeeder, FeederEvent]]
    ) -> None:
        status = process.wait()
        rank.futile_deaths += 1
        if rank.futile_deaths >= _FUTILE_DEATHS:
            raise FeederError(
                f"the feeder of rank {rank.rank} died {rank.futile_deaths} times without delivering a batch (exit "
                f"status {status}): see its messages above"
            )
        events.append((rank, FeederEvent(type="died", status=status)))
        self._start(rank)


def _event_message(line: str) -> dict[str, Any] | None:
    """The JSON of an event; None for other lines, which libraries print."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and message.get("type") in get_args(EventType) else None
