"""The live status of each feeder of this user, in a file that other processes read.

Runs in: the feeder, which replaces its file every two seconds and removes it at its end; and processes that show a
running feeder. The files are in the private folder for sockets, each named by a process id and its start time, so that
the file of a process that was killed is never taken for that of a later process of the same number. Files of processes
that are gone are removed by their parents, by the next feeder, and whenever files are listed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from feedline.errors import FeederError
from feedline.loader.ring.rendezvous import runtime_dir, runtime_dirs
from feedline.loader.wire.codec import pack, unpack
from feedline.loader.wire.run_status import FeederStatus

_PREFIX = "status-"


class StatusFile:
    """This process's file, which is there from the first `write` to `remove`."""

    def __init__(self) -> None:
        sweep_statuses()
        self.path = runtime_dir() / f"{_PREFIX}{os.getpid()}-{_start_ticks(os.getpid())}.json"

    def write(self, status: FeederStatus) -> None:
        """Replace the file at once. Raises OSError."""
        aside = self.path.with_suffix(".tmp")
        aside.write_bytes(pack(status))
        aside.replace(self.path)

    def remove(self) -> None:
        """Remove the file, if it is there."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def live_statuses() -> list[FeederStatus]:
    """The last status of each running feeder of this user on this machine, the oldest feeder first; those of another
    release are left out. Removes the files of processes that are gone."""
    statuses: list[FeederStatus] = []
    for path in _live_files():
        with contextlib.suppress(OSError, FeederError):  # it has ended, or is of another release
            statuses.append(unpack(FeederStatus, path.read_bytes()))
    return sorted(statuses, key=lambda status: (status.started_s, status.feeder))


def sweep_statuses() -> None:
    """Remove the files of processes that are gone."""
    _live_files()


def _live_files() -> list[Path]:
    """The files of running processes. Removes the others."""
    live: list[Path] = []
    for folder in runtime_dirs():
        for path in sorted(folder.glob(f"{_PREFIX}*")):
            pid, _, ticks = path.stem.removeprefix(_PREFIX).partition("-")
            if pid.isdigit() and _start_ticks(int(pid)) == ticks:
                live.extend([path] if path.suffix == ".json" else [])
            else:
                path.unlink(missing_ok=True)
    return live


def _start_ticks(pid: int) -> str | None:
    """When a process started, by the kernel's count; None if there is no such process, or it has ended."""
    try:
        state, *facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in ("Z", "X") else facts[18]
