"""Where a trainer gets its feeders, one after the other: from `feedline run`, its host's ranks, or its own.

Runs in: the trainer, and `feedline run --sink null`. Gives up at the third feeder in a row that died without a batch.

The ranks of a host meet at a socket: the first one locks a file named by job, world size and launch, listens on the
socket beside it, and hands both to the feeder that it starts. The others wait in the socket's backlog. When the feeder
has died, the next rank that gets the lock cleans up and starts another; ranks of a later round wait for the lock. The
file counts feeders that died before any rank had a batch.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, field
from pathlib import Path
from typing import IO, TypeAlias

from feedline.dataclass import dataclass
from feedline.errors import FeederError
from feedline.loader.ring.channel import Channel, pair
from feedline.loader.ring.launch import (
    EXIT_S,
    FUTILE_DEATHS,
    FeederAccess,
    FeederCommand,
    FeederDeaths,
    HostLaunch,
    await_end,
    end_of_log,
    log_path,
)
from feedline.loader.ring.rendezvous import address_of, await_successor, connect, dial, open_lock, runtime_dir
from feedline.loader.ring.status_files import sweep_statuses
from feedline.resources.scratch import make_scratch

logger = logging.getLogger(__name__)

# A serving feeder ends within a second of its connection; a planning one needs SIGTERM.
_NOTICE_S = 2.0
# An earlier round's feeder ends within this time of its last rank, tasks under way included.
_LONGEST_WAIT_S, _LOG_AFTER_S, _PAUSE_S = 60.0, 5.0, 0.02
_BACKLOG = 1024
_PROGRESS = "progress"  # a file in the folder of a host's feeder: a rank has had a batch

# Feeders of hosts started by this process, by their folder, until shortly after their end.
_started: dict[str, subprocess.Popen[bytes]] = {}


class NoSharedFeederError(Exception):
    """Ranks cannot meet on this host."""


class FeederSource:
    """Finds or starts feeders. unless: whether the trainer has closed its connection, which ends all waiting."""

    def __init__(self, access: FeederAccess, *, unless: Callable[[], bool]) -> None:
        self._access = access
        self._unless = unless
        self._shares_feeder = access.host is not None  # with the other ranks of this host
        self._reported: set[str] = set()  # feeders of the host whose repeated deaths were raised
        self._deaths = FeederDeaths()
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
        return OwnFeeder(self._access.command, restarts=self._deaths.total)

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
        starts_another = self._deaths.add(had_batch=self._progress)
        self._progress = False
        if not starts_another:
            self._deaths.futile = 0
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
            with contextlib.suppress(FeederError, OSError):
                _sweep(runtime_dir() / f"{self._access.host.name}.sock")


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


class OwnFeeder:
    """A feeder of one rank, started by this process. restarts: feeders before it that died."""

    def __init__(self, command: FeederCommand, *, restarts: int = 0) -> None:
        self._scratch = make_scratch()
        self._exit_s = command.exit_s
        self.channel, theirs = pair()
        self.log_path = log_path(self._scratch.path)
        self._log = open(self.log_path, "a+b", buffering=0)  # noqa: SIM115 -- open for as long as the process
        words = ["--parent", str(os.getpid()), "--fd", str(theirs.fileno()), "--restarts", str(restarts)]
        descriptors = [theirs.fileno()]
        try:
            self._process = command.start(words, scratch=self._scratch, descriptors=descriptors, **_apart(self._log))
        except BaseException:
            self._release()
            self.channel.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def last_words(self) -> str:
        """The end of the feeder's log, and its exit status."""
        status = _exit_status(self._process)
        return f"{end_of_log(self._log)}\n{status}"

    def end(self) -> None:
        """Wait for the process, whose connection is closed; send SIGTERM after 2 s, SIGKILL after `exit_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_NOTICE_S)
        self._process.terminate()
        await_end(self._process, within_s=self._exit_s)
        self._release()

    def _release(self) -> None:
        self._log.close()
        self._scratch.remove()
        sweep_statuses()


class HostFeeder:
    """The feeder that all ranks of a host share, and a trainer's connection to it."""

    def __init__(self, channel: Channel, name: str) -> None:
        self.channel = channel
        self.name = name  # its folder
        self.pid = 0  # until it greets
        self.log_path = log_path(name)
        self._log: IO[bytes] | None = None
        with contextlib.suppress(OSError):  # dead already, and another rank has cleaned up
            self._log = open(self.log_path, "rb", buffering=0)  # noqa: SIM115 -- the next feeder's rank removes it

    def record_progress(self) -> None:
        """A batch of this feeder has arrived."""
        with contextlib.suppress(OSError):
            Path(self.name, _PROGRESS).touch()

    def last_words(self) -> str:
        """The end of the feeder's log, and its exit status if this process started it."""
        process = _started.get(self.name)
        status = f"(process {self.pid or 'unknown'} has ended)" if process is None else _exit_status(process)
        return f"{'(none)' if self._log is None else end_of_log(self._log)}\n{status}"

    def end(self) -> None:
        """Leave the feeder, whose connection is closed."""
        if self._log is not None:
            self._log.close()


# pid: 0 until a host's feeder has greeted. end: leaves it, once the channel is closed.
Feeder: TypeAlias = RunFeeder | HostFeeder | OwnFeeder


def _apart(log: IO[bytes]) -> dict[str, object]:
    """Options of a feeder that writes to its log, in a session of its own: signals to this process's group do not reach
    it."""
    return {"stdout": log, "stderr": log, "start_new_session": True}


def _exit_status(process: subprocess.Popen[bytes]) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(EXIT_S)
    return f"(exit status {process.returncode})"


# -- the feeder of a host ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The content of the lock's file: the launcher's round, the feeder's folder, and the deaths before it."""

    round: int
    scratch: str
    deaths: FeederDeaths = field(default_factory=FeederDeaths)

    @classmethod
    def read(cls, path: Path) -> _Record | None:
        """The record in a file; None if it is missing or being written."""
        try:
            content = json.loads(path.read_bytes())
            return cls(**{**content, "deaths": FeederDeaths(**content["deaths"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, lock: int) -> None:
        content = json.dumps(asdict(self)).encode()
        os.ftruncate(lock, 0)
        os.pwrite(lock, content, 0)


def attach(launch: HostLaunch, *, reported: set[str], unless: Callable[[], bool]) -> HostFeeder:
    """The feeder of this host's ranks, found or started; returns before it is ready.

    reported: the dead feeders for which this has raised. unless: ends the waiting for an earlier round's feeder. Raises
    FeederError if feeders keep dying, NoSharedFeederError if the ranks cannot meet.
    """
    try:
        path = runtime_dir() / f"{launch.name}.sock"
    except FeederError as error:
        raise NoSharedFeederError(str(error)) from error
    try:
        return _attach(path, launch, reported, unless)
    except OSError as error:
        raise NoSharedFeederError(str(error)) from error


def _attach(path: Path, launch: HostLaunch, reported: set[str], unless: Callable[[], bool]) -> HostFeeder:
    start_s = logged_s = time.monotonic()
    while True:
        if (lock := open_lock(path.with_suffix(".lock"))) is not None:
            with os.fdopen(lock, "r+b", buffering=0):
                _start(path, lock, launch, reported)
        record = _Record.read(path.with_suffix(".lock"))
        if record is not None and record.round == launch.round and (channel := dial(path)) is not None:
            return HostFeeder(channel, record.scratch)
        waited_s = time.monotonic() - start_s
        if unless():
            raise FeederError("this feed is closed: expected an open one")
        if waited_s > _LONGEST_WAIT_S:
            raise NoSharedFeederError(f"the lock {path.with_suffix('.lock')} was held for {waited_s:.0f} s")
        if time.monotonic() - logged_s > _LOG_AFTER_S:
            logged_s = time.monotonic()
            logger.warning("waited %.0f s for an earlier feeder of this host's ranks to end", waited_s)
        time.sleep(_PAUSE_S)


def _start(path: Path, lock: int, launch: HostLaunch, reported: set[str]) -> None:
    """Start a feeder, which takes over the lock. Raises FeederError after three dead ones without progress."""
    deaths = FeederDeaths()
    if (last := _Record.read(path.with_suffix(".lock"))) is not None:
        if last.round == launch.round:
            deaths = last.deaths
            starts_another = deaths.add(had_batch=Path(last.scratch, _PROGRESS).exists())
            if not starts_another and last.scratch not in reported:
                reported.add(last.scratch)
                last_words = "(none)"
                with contextlib.suppress(OSError), open(log_path(last.scratch), "rb") as log:
                    last_words = end_of_log(log)
                raise FeederError(
                    f"the feeder died {deaths.futile} times without delivering a batch to any rank of this host. The "
                    f"end of its log:\n{last_words}"
                )
            deaths.futile %= FUTILE_DEATHS
        _clean_up(path, last, keep_lock=True)
    for other in path.parent.glob("*-host-*.sock"):  # of launches whose ranks were killed with their feeder
        if other != path:
            _sweep(other)
    scratch = make_scratch()
    record = _Record(round=launch.round, scratch=scratch.path, deaths=deaths)
    record.write(lock)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening, open(log_path(record.scratch), "ab") as log:
        with address_of(path) as address:
            listening.bind(address)
        listening.listen(_BACKLOG)
        words = ["--host", str(path), "--fd", str(listening.fileno()), "--lock", str(lock)]
        words += ["--restarts", str(deaths.total)]
        descriptors = [listening.fileno(), lock]
        try:
            process = launch.command.start(words, scratch=scratch, descriptors=descriptors, **_apart(log))
        except BaseException:
            _clean_up(path, record)
            raise
        finally:
            scratch.hand_over()  # the feeder may outlive this process
    _started[record.scratch] = process
    threading.Thread(target=_reap, args=(record.scratch, process), name="feedline-reap", daemon=True).start()


def _sweep(path: Path) -> None:
    """Remove what is left of a host's feeder if it is dead; the files of a living one stay."""
    if (lock := open_lock(path.with_suffix(".lock"))) is not None:
        with os.fdopen(lock):
            _clean_up(path, _Record.read(path.with_suffix(".lock")))


def _clean_up(path: Path, record: _Record | None, *, keep_lock: bool = False) -> None:
    """Remove what a dead feeder left. The caller holds the lock."""
    path.unlink(missing_ok=True)
    if record is not None:
        shutil.rmtree(record.scratch, ignore_errors=True)
    sweep_statuses()
    if not keep_lock:
        path.with_suffix(".lock").unlink(missing_ok=True)


def _reap(scratch: str, process: subprocess.Popen[bytes]) -> None:
    """Collect the exit status of a feeder, which may end long after this process has left it."""
    process.wait()
    time.sleep(EXIT_S)  # for `last_words`
    _started.pop(scratch, None)
