"""Keep the feeders of `feedline run` alive while trainers come and go.

Runs in: the process of `feedline run`. A feeder process listens for the trainers of one rank or of all ranks of this
host, and reports in JSON lines. A feeder that dies is started again; three deaths in a row without a batch end the run.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import IO

from feedline.dataclass import dataclass
from feedline.errors import FeederError
from feedline.loader.encoding.quality import Quality
from feedline.loader.ring.launch import FeederCommand, FeederDeaths, await_end
from feedline.loader.ring.status_files import sweep_statuses
from feedline.loader.wire.codec import unpack
from feedline.loader.wire.facts import EVENT_PREFIX, FeederEvent, FeederStats, PlanFacts
from feedline.progress import Progress
from feedline.resources.scratch import ScratchFolder, make_scratch


@dataclass(slots=True)
class RankReports:
    """The last reports about one rank."""

    rank: int
    dashboard: str | None = None
    live_page: str | None = None
    trainer: int | None = None
    stats: FeederStats | None = None  # for the current trainer
    past_stats: list[FeederStats] = field(default_factory=list)  # for each trainer that left
    quality: list[Quality] = field(default_factory=list)  # counts of what those were delivered
    plan: PlanFacts | None = None  # of its last trainer
    planning: Progress | None = None  # of the plan that its trainer waits for
    last_error: str | None = None


@dataclass(slots=True)
class SupervisedFeeder:
    """A feeder and the ranks that it serves."""

    ranks: Sequence[RankReports]
    command: FeederCommand
    process: subprocess.Popen[str] | None = None
    scratch: ScratchFolder | None = None
    deaths: FeederDeaths = field(default_factory=FeederDeaths)
    had_batch: bool = False  # since the last death

    def __str__(self) -> str:
        numbers = [str(rank.rank) for rank in self.ranks]
        return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(numbers)}"


class Supervisor:
    """The feeders of this host. `poll` handles their reports; close it when done. stop: whether the run is to end, by a
    signal that feeders may have got, too."""

    def __init__(self, feeders: Sequence[SupervisedFeeder], stop: Callable[[], bool] = lambda: False) -> None:
        self._feeders = list(feeders)
        self._stop = stop
        self.ranks = [rank for feeder in feeders for rank in feeder.ranks]
        self._lines: queue.Queue[tuple[SupervisedFeeder, subprocess.Popen[str], str | None]] = queue.Queue()

    def start(self) -> None:
        for feeder in self._feeders:
            self._start(feeder)

    def poll(self, timeout_s: float) -> list[tuple[str, FeederEvent]]:
        """The events since the last call, each with the ranks that it is about, waiting up to `timeout_s` for the
        first; restarts dead feeders.

        Raises FeederError if a feeder dies three times without delivering a batch, or another run serves its rank.
        """
        events: list[tuple[str, FeederEvent]] = []
        with contextlib.suppress(queue.Empty):
            item = self._lines.get(timeout=timeout_s)
            while True:
                self._handle(*item, events)
                item = self._lines.get_nowait()
        return events

    def close(self) -> None:
        """End all feeders: SIGTERM first, then SIGKILL."""
        # One SIGTERM each: a second may meet a feeder that is switching to ignoring it, and then prints a traceback.
        for feeder in self._feeders:
            if feeder.process is not None:
                feeder.process.terminate()
        for feeder in self._feeders:
            if feeder.process is not None:
                await_end(feeder.process, within_s=feeder.command.exit_s)
            if feeder.scratch is not None:
                feeder.scratch.remove()
        sweep_statuses()

    def _start(self, feeder: SupervisedFeeder) -> None:
        if feeder.scratch is not None:
            feeder.scratch.remove()
            sweep_statuses()
        feeder.scratch = make_scratch()
        process = feeder.command.start(
            ["--listen", "--parent", str(os.getpid()), "--restarts", str(feeder.deaths.total)],
            scratch=feeder.scratch,
            stdout=subprocess.PIPE,
            # The display of a terminal would be drawn over what others write there.
            stderr=subprocess.PIPE if sys.stderr.isatty() else None,
            text=True,
            errors="replace",
        )
        feeder.process = process
        for rank in feeder.ranks:
            rank.trainer = rank.planning = None
        threading.Thread(target=self._listen, args=(feeder, process), daemon=True).start()
        if process.stderr is not None:
            threading.Thread(target=_pass_on, args=(process.stderr,), daemon=True).start()

    def _listen(self, feeder: SupervisedFeeder, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if line.startswith(EVENT_PREFIX):
                    self._lines.put((feeder, process, line))
        self._lines.put((feeder, process, None))

    def _handle(
        self,
        feeder: SupervisedFeeder,
        process: subprocess.Popen[str],
        line: str | None,
        events: list[tuple[str, FeederEvent]],
    ) -> None:
        if process is not feeder.process:
            return
        if line is None:
            self._on_death(feeder, process, events)
            return
        event = unpack(FeederEvent, line)
        rank = next(each for each in feeder.ranks if each.rank == event.rank)
        match event.type:
            case "ready":
                rank.dashboard, rank.live_page = event.dashboard, event.live_page
            case "refused":
                raise FeederError(str(event.error))
            case "trainer":
                rank.trainer = event.pid
            case "plan":
                rank.plan = event.plan
            case "stats":
                rank.stats, rank.planning = event.stats, event.planning
            case "left":
                rank.trainer = rank.stats = rank.planning = None
                rank.past_stats += [] if event.stats is None else [event.stats]
                rank.quality += [] if event.quality is None else [Quality.from_bytes(event.quality)]
                rank.last_error = event.error
        if event.stats is not None and event.stats.batches:
            feeder.had_batch = True
        events.append((f"rank {event.rank}", event))

    def _on_death(
        self, feeder: SupervisedFeeder, process: subprocess.Popen[str], events: list[tuple[str, FeederEvent]]
    ) -> None:
        status = process.wait()
        if self._stop():
            return
        starts_another = feeder.deaths.add(had_batch=feeder.had_batch)
        feeder.had_batch = False
        if not starts_another:
            raise FeederError(
                f"the feeder of {feeder} died {feeder.deaths.futile} times without delivering a batch (exit status "
                f"{status}): see its messages above"
            )
        events.append((str(feeder), FeederEvent(type="died", rank=None, status=status)))
        self._start(feeder)


def _pass_on(lines: IO[str]) -> None:
    """Write a feeder's messages to standard error, which a display shows above itself."""
    with lines:
        for line in lines:
            sys.stderr.write(line)
