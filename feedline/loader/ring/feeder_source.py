"""Where a trainer gets its feeders, one after the other: from `feedline run`, its host's ranks, or its own.

Runs in: the trainer, and `feedline run --sink null`. Counts feeders that died without a batch, and gives up at the
third in a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from feedline.errors import FeederError
from feedline.loader.ring.channel import Channel
from feedline.loader.ring.host_feeder import HostFeeder, NoSharedFeederError, attach, sweep_host
from feedline.loader.ring.launch import FUTILE_DEATHS, FeederAccess, FeederProcess
from feedline.loader.ring.rendezvous import await_successor, connect

logger = logging.getLogger(__name__)


class RunFeeder:
    """A feeder of `feedline run`, which waited on a socket."""

    def __init__(self, channel: Channel, path: Path) -> None:
        self.channel = channel
        self.path = path
        self.pid = channel.peer_pid()
        self.log_path: Path | None = None

    def last_words(self) -> str:
        """Where its log is."""
        return "(feedline run started it: see its output)"

    def end(self) -> None:
        """It waits for the next trainer."""


# pid: 0 until a host's feeder has greeted. end: leaves it, once the channel is closed.
Feeder: TypeAlias = FeederProcess | HostFeeder | RunFeeder


class FeederSource:
    """Finds or starts feeders. unless: whether the trainer has closed its connection, which ends all waiting."""

    def __init__(self, access: FeederAccess, *, unless: Callable[[], bool]) -> None:
        self._access = access
        self._unless = unless
        self._shares_feeder = access.host is not None  # with the other ranks of this host
        self._reported: set[str] = set()  # feeders of the host whose repeated deaths were raised
        self._futile_deaths = self._deaths = 0
        self._progress = False

    def find(self) -> Feeder:
        """A feeder of `feedline run` that waits, else the host's, else one of our own."""
        for path in self._access.attach_paths:
            if (channel := connect(path)) is not None:
                return RunFeeder(channel, path)
        if self._shares_feeder and self._access.host is not None:
            try:
                return attach(self._access.host, reported=self._reported, unless=self._unless)
            except NoSharedFeederError as error:
                self._shares_feeder = False
                logger.warning("the ranks of this host cannot share a feeder (%s): this one starts its own", error)
        return FeederProcess(self._access.command, restarts=self._deaths)

    def leave_host(self) -> None:
        """From now on, start feeders of our own: the host's serves another trainer of this rank."""
        self._shares_feeder = False

    def record_progress(self, feeder: Feeder | None) -> None:
        """Note a feeder's first batch, so that earlier deaths do not count."""
        self._progress = True
        if isinstance(feeder, HostFeeder):
            feeder.record_progress()

    def record_death(self, feeder: Feeder | None, words: str) -> None:
        """Count a death. Raises FeederError at the third in a row, and starts at zero again.

        A successor that `feedline run` starts is waited for.
        """
        self._deaths += 1
        self._futile_deaths = 1 if self._progress else self._futile_deaths + 1
        self._progress = False
        if self._futile_deaths >= FUTILE_DEATHS:
            self._futile_deaths = 0
            if isinstance(feeder, HostFeeder):
                self._reported.add(feeder.name)
            raise FeederError(
                f"the feeder died {FUTILE_DEATHS} times without delivering a batch. The end of its log:\n{words}"
            )
        logger.warning("the feeder died; starting another. The end of its log:\n%s", words)
        self.await_successor(feeder)

    def await_successor(self, feeder: Feeder | None) -> None:
        """Wait for `feedline run` to replace a feeder that it had."""
        if isinstance(feeder, RunFeeder):
            await_successor(feeder.path, unless=self._unless)

    def close(self) -> None:
        """Remove what a dead feeder of the host has left."""
        if self._access.host is not None:
            sweep_host(self._access.host)
