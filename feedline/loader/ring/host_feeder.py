"""The feeder that all ranks of a host share: find it or start it, and accept its trainers.

Runs in: the trainers (`attach`, `HostFeeder`) and the feeder (`HostListener`). The first rank locks a file named by
job, world size and launch, listens on the socket beside it, and hands both to the feeder that it starts. The others
wait in the socket's backlog. When the feeder has died, the next rank that gets the lock cleans up and starts another;
ranks of a later round wait for the lock. The file counts feeders that died before any rank had a batch.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from feedline.errors import FeederError
from feedline.loader.ring.channel import Channel
from feedline.loader.ring.launch import FUTILE_DEATHS, HostLaunch, end_of_log, log_path
from feedline.loader.ring.rendezvous import address_of, dial, open_lock, own_channel, runtime_dir
from feedline.loader.ring.status_files import sweep_statuses
from feedline.loader.wire.ring_messages import FeederLeaving, Welcome
from feedline.resources.scratch import make_scratch

logger = logging.getLogger(__name__)

# An earlier round's feeder ends within this time of its last rank, tasks under way included.
_LONGEST_WAIT_S, _LOG_AFTER_S, _PAUSE_S = 60.0, 5.0, 0.02
_BACKLOG = 1024
_PROGRESS = "progress"  # a file in a feeder's folder: a rank has had a batch
_EXIT_S = 5.0

# Feeders started by this process, by their folder, until shortly after their end.
_started: dict[str, subprocess.Popen[bytes]] = {}


class NoSharedFeederError(Exception):
    """Ranks cannot meet on this host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The content of the lock's file: the launcher's round, the feeder's folder, how many feeders before it died one
    after the other without progress, and how many there were before it in all."""

    round: int
    scratch: str
    deaths: int
    restarts: int = 0

    @classmethod
    def read(cls, path: Path) -> _Record | None:
        """The record in a file; None if it is missing or being written."""
        try:
            return cls(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, lock: int) -> None:
        content = json.dumps(asdict(self)).encode()
        os.ftruncate(lock, 0)
        os.pwrite(lock, content, 0)

    def deaths_with_this(self) -> int:
        """The same count, if this feeder is dead as well."""
        return 1 if Path(self.scratch, _PROGRESS).exists() else self.deaths + 1


class HostFeeder:
    """A trainer's connection to the feeder of its host."""

    def __init__(self, channel: Channel, record: _Record) -> None:
        self.channel = channel
        self.pid = 0  # until it greets
        self.log_path = log_path(record.scratch)
        self._record = record
        self._log: IO[bytes] | None = None
        with contextlib.suppress(OSError):  # dead already, and another rank has cleaned up
            self._log = open(self.log_path, "rb", buffering=0)  # noqa: SIM115 -- the next feeder's rank removes it

    @property
    def name(self) -> str:
        """Names this feeder among those of its host."""
        return self._record.scratch

    def record_progress(self) -> None:
        """A batch of this feeder has arrived."""
        with contextlib.suppress(OSError):
            Path(self._record.scratch, _PROGRESS).touch()

    def last_words(self) -> str:
        """The end of the feeder's log, and its exit status if this process started it."""
        words = "(none)" if self._log is None else end_of_log(self._log)
        process = _started.get(self.name)
        if process is None:
            return f"{words}\n(process {self.pid or 'unknown'} has ended)"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_S)
        return f"{words}\n(exit status {process.returncode})"

    def end(self) -> None:
        """Leave the feeder, whose connection is closed."""
        if self._log is not None:
            self._log.close()


def sweep_host(launch: HostLaunch) -> None:
    """Remove what is left of a host's feeder if it is dead; the files of a living one stay."""
    with contextlib.suppress(FeederError, OSError):
        _sweep(runtime_dir() / f"{launch.name}.sock")


def _sweep(path: Path) -> None:
    if (lock := open_lock(path.with_suffix(".lock"))) is not None:
        with os.fdopen(lock):
            _clean_up(path, _Record.read(path.with_suffix(".lock")))


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
            return HostFeeder(channel, record)
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
    deaths = restarts = 0
    if (last := _Record.read(path.with_suffix(".lock"))) is not None:
        if last.round == launch.round:
            deaths, restarts = last.deaths_with_this(), last.restarts + 1
        if deaths >= FUTILE_DEATHS and last.scratch not in reported:
            reported.add(last.scratch)
            last_words = "(none)"
            with contextlib.suppress(OSError), open(log_path(last.scratch), "rb") as log:
                last_words = end_of_log(log)
            raise FeederError(
                f"the feeder died {deaths} times without delivering a batch to any rank of this host. The end of its "
                f"log:\n{last_words}"
            )
        _clean_up(path, last, keep_lock=True)
    for other in path.parent.glob("*-host-*.sock"):  # of launches whose ranks were killed with their feeder
        if other != path:
            _sweep(other)
    scratch = make_scratch()
    record = _Record(round=launch.round, scratch=scratch.path, deaths=deaths % FUTILE_DEATHS, restarts=restarts)
    record.write(lock)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening, open(log_path(record.scratch), "ab") as log:
        with address_of(path) as address:
            listening.bind(address)
        listening.listen(_BACKLOG)
        words = ["--host", str(path), "--fd", str(listening.fileno()), "--lock", str(lock)]
        words += ["--restarts", str(restarts)]
        descriptors = [listening.fileno(), lock]
        try:
            process = launch.command.start(words, scratch=scratch, log=log, descriptors=descriptors)
        except BaseException:
            _clean_up(path, record)
            raise
        finally:
            scratch.hand_over()  # the feeder may outlive this process
    _started[record.scratch] = process
    threading.Thread(target=_reap, args=(record.scratch, process), name="feedline-reap", daemon=True).start()


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
    time.sleep(_EXIT_S)  # for `last_words`
    _started.pop(scratch, None)


class HostListener:
    """The feeder's end: accepts trainers, and owns the lock until it is closed."""

    def __init__(self, path: Path, *, listening: int, lock: int) -> None:
        self._path = path
        self._lock = lock
        for descriptor in (listening, lock):
            os.set_inheritable(descriptor, False)  # the feeder's worker processes would hold them
        self._socket: socket.socket | None = socket.socket(fileno=listening)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """The listening socket; -1 once it is closed."""
        return -1 if self._socket is None else self._socket.fileno()

    def accept(self) -> Channel | None:
        """Accept a trainer that waits; None if there is none, or for a process of another user."""
        return self._accept(Welcome(pid=os.getpid()))

    def stop(self) -> None:
        """Stop listening. Trainers that wait are told to look for another feeder."""
        if self._socket is None:
            return
        self._path.unlink(missing_ok=True)
        while (channel := self._accept(FeederLeaving())) is not None:
            channel.close()
        self._socket.close()
        self._socket = None

    def close(self) -> None:
        """Stop listening, and give up the lock: call it last."""
        self.stop()
        self._path.with_suffix(".lock").unlink(missing_ok=True)
        os.close(self._lock)

    def _accept(self, greeting: Welcome | FeederLeaving) -> Channel | None:
        assert self._socket is not None
        try:
            connection, _ = self._socket.accept()
        except OSError:  # nobody waits, or no longer
            return None
        connection.setblocking(True)
        return own_channel(connection, greeting)
