"""Keep the feeders of `feedline run` alive while trainers come and go.

Runs in: the process of `feedline run`. Each rank of this host has a listening feeder process, which reports in JSON
lines. One that dies is started again; three deaths in a row without a batch end the run.
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
from typing import Any

from feedline.errors import FeederError
from feedline.loader.ring.launch import end_process, feeder_words, own_arguments, standard_input
from feedline.resources import SCRATCH_VARIABLE, make_scratch

_FUTILE_DEATHS = 3
_EXIT_S = 5.0


@dataclass(slots=True)
class Rank:
    """One rank's feeder, and what it said last."""

    rank: int
    arguments: Sequence[str]
    overrides: str
    environment: dict[str, str]
    process: subprocess.Popen[str] | None = None
    scratch: str | None = None
    dashboard: str | None = None
    trainer: int | None = None
    stats: dict[str, Any] = field(default_factory=dict)
    finished: list[dict[str, Any]] = field(default_factory=list)  # of trainers that left
    quality: list[dict[str, Any]] = field(default_factory=list)  # what those were delivered, as counts
    plan: dict[str, Any] = field(default_factory=dict)  # of its last trainer: snapshot, plan, rows_dropped, schema …
    futile_deaths: int = 0
    last_error: str | None = None


class Supervisor:
    """The feeders of this host's ranks. `poll` handles their reports; close it when done."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self.ranks = list(ranks)
        self._said: queue.Queue[tuple[Rank, subprocess.Popen[str], dict[str, Any] | None]] = queue.Queue()

    def start(self) -> None:
        for rank in self.ranks:
            self._start(rank)

    def poll(self, timeout_s: float) -> list[tuple[Rank, dict[str, Any]]]:
        """The reports since the last call, waiting up to `timeout_s` for the first; restarts dead feeders.

        Raises FeederError where a feeder dies three times without having delivered a batch.
        """
        reports: list[tuple[Rank, dict[str, Any]]] = []
        with contextlib.suppress(queue.Empty):
            item = self._said.get(timeout=timeout_s)
            while True:
                self._on(*item, reports)
                item = self._said.get_nowait()
        return reports

    def close(self) -> None:
        """End all feeders: SIGTERM first, then SIGKILL."""
        for rank in self.ranks:
            if rank.process is not None and rank.process.poll() is None:
                rank.process.terminate()
        for rank in self.ranks:
            if rank.process is not None:
                end_process(rank.process, within_s=_EXIT_S)
            if rank.scratch is not None:
                shutil.rmtree(rank.scratch, ignore_errors=True)

    def _start(self, rank: Rank) -> None:
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

    def _listen(self, rank: Rank, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with contextlib.suppress(ValueError):  # something a library printed
                    self._said.put((rank, process, json.loads(line)))
        self._said.put((rank, process, None))

    def _on(
        self,
        rank: Rank,
        process: subprocess.Popen[str],
        message: dict[str, Any] | None,
        reports: list[tuple[Rank, dict[str, Any]]],
    ) -> None:
        if process is not rank.process:
            return
        if message is None:
            self._on_death(rank, process, reports)
            return
        kind = message["type"]
        if kind == "ready":
            rank.dashboard = message["dashboard"]
        elif kind == "trainer":
            rank.trainer = message["pid"]
        elif kind == "plan":
            rank.plan = message
        elif kind == "stats":
            rank.stats = message["stats"]
        elif kind == "left":
            rank.trainer = None
            rank.stats = {}
            rank.finished.append(message["stats"])
            rank.quality += message["quality"]
            rank.last_error = message["error"]
        if message.get("stats", {}).get("batches"):
            rank.futile_deaths = 0
        reports.append((rank, message))

    def _on_death(self, rank: Rank, process: subprocess.Popen[str], reports: list[tuple[Rank, dict[str, Any]]]) -> None:
        status = process.wait()
        rank.futile_deaths += 1
        if rank.futile_deaths >= _FUTILE_DEATHS:
            raise FeederError(
                f"the feeder of rank {rank.rank} died {rank.futile_deaths} times without delivering a batch (exit "
                f"status {status}): see its messages above"
            )
        reports.append((rank, {"type": "died", "status": status}))
        self._start(rank)
