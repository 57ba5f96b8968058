"""Scratch folders: of feeders and their Dask workers, and of commands. The next start removes what a killed one left.

Runs in every process that makes one. A folder is in use while a process has its lock: the one that made it, and the
feeder that inherits it, which may outlive that. The kernel gives it up with them, however they end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SCRATCH_VARIABLE = "DASK_TEMPORARY_DIRECTORY"

_PREFIX = "feedline-scratch-"
# A folder is made before it is locked, and the log of a dead feeder is read before the next one starts.
_LEFT_S = 600.0


class ScratchFolder:
    """A private folder. path: its name. lock: the descriptor that a feeder must inherit."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix=_PREFIX)
        self.lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # some network filesystems have no locks: what is left stays there
            fcntl.flock(self.lock, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def hand_over(self) -> None:
        """Leave the folder to the processes that have inherited the lock."""
        if self.lock >= 0:
            os.close(self.lock)
        self.lock = -1

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.hand_over()


def make_scratch() -> ScratchFolder:
    """Make a folder, and remove those of processes that were killed."""
    sweep_scratch()
    return ScratchFolder()


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that is removed at the end."""
    scratch = make_scratch()
    try:
        yield Path(scratch.path)
    finally:
        scratch.remove()


def sweep_scratch() -> None:
    """Remove the folders that no process has used for ten minutes."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for each in entries:
            if each.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):  # another user's, or another process removes it
                    _remove_if_left(each)


def _remove_if_left(folder: os.DirEntry[str]) -> None:
    if time.time() - folder.stat(follow_symlinks=False).st_mtime < _LEFT_S:
        return
    lock = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder.path, ignore_errors=True)
    finally:
        os.close(lock)
