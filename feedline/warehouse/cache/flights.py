"""Let one thread of all processes of a host compute an entry while the others wait for it.

Runs in: every process that computes with a cache. A flight is an exclusive `flock` on a file of the cache's folder, on
an open file description of its own, so that threads of one process exclude each other, too. The kernel drops it with
its holder, however that dies. Waiting polls: a blocking `flock` could be given up only by a signal.

The file's size says what its last holder did. Who has waited for one that has ended goes on without the lock: what was
computed is there, or the cache does not keep it, and then nobody shall wait for others that compute it, too. Who has
waited for one that was killed takes its place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import field

from feedline.dataclass import dataclass

# --------------------------------------------------------------------------------------------------------------------
# Count what a cache did for this process.


@dataclass(slots=True)
class CacheCounters:
    """Counts since the folder was opened; any thread may add to them.

    Attributes:
        hits, misses: columns that were found, and that were not.
        bytes_read, bytes_written: bytes of the arrays found, and of the files written.
        damaged: files that were not as written, and were removed.
        evicted: files removed to make room.
        skipped: columns computed but not written: no space, no permission, or no room below the bound.
        duplicates: computations that may have been done twice: no lock could be had, or its holder took too long.
        waited_s: seconds of waiting for another holder.
    """

    hits: int = 0
    misses: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    damaged: int = 0
    evicted: int = 0
    skipped: int = 0
    duplicates: int = 0
    waited_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **changes: float) -> None:
        """Add to counters, by name."""
        with self._lock:
            for name, change in changes.items():
                setattr(self, name, getattr(self, name) + change)


# --------------------------------------------------------------------------------------------------------------------

LIMIT_S = 60.0  # of waiting, then the caller computes, too: a holder that hangs must not stop others
_LEAST_LIMIT_S = 5.0
_LONGER = 5  # times the longest work of this process: others may compute on fewer cores
_FIRST_POLL_S = 0.002
_LONGEST_POLL_S = 0.016
_RECENT_S = 2.0  # of a holder's end, in which others may have looked before, and not yet asked for the lock
_WORKS, _ENDED = 1, 2  # sizes of a lock's file
_HEX = 3  # of a digest name its lock: 4,096 files, which stay; two flights share one once in 4,096 pairs, and wait
BUSY = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK)


class WorkTimes:
    """How long flights of this process took, which says for how long others are waited for."""

    def __init__(self) -> None:
        self._longest_s = LIMIT_S

    def add(self, seconds: float) -> None:
        """Count the work of a flight."""
        self._longest_s = seconds if self._longest_s == LIMIT_S else max(self._longest_s, seconds)

    @property
    def limit_s(self) -> float:
        """The longest wait."""
        return min(LIMIT_S, max(_LEAST_LIMIT_S, _LONGER * self._longest_s))


@contextlib.contextmanager
def flight(folder: str, digest: str, counters: CacheCounters, times: WorkTimes, *, mode: int = 0o600) -> Iterator[bool]:
    """Hold the flight of a row group; True: another holder has ended, while the caller waited or just before, and its
    work may be found now.

    folder: of the locks. mode: of a new lock file. Where no lock can be had (no permission, a file system without them)
    or its holder takes longer than `times` say, the caller goes on without, and a duplicate is counted. A thread holds
    at most one flight at a time: it would wait for itself where two digests share a file.
    """
    number = _open(os.path.join(folder, digest[:_HEX]), mode)
    if number is None:
        counters.add(duplicates=1)
        yield False
        return
    try:
        holds, waited = _wait(number, counters, times.limit_s)
        size, modified_s = _state(number)
        if not holds or (waited and size != _WORKS):
            _unlock(number)
            yield waited
            return
        began_s = time.monotonic()
        if size != _WORKS:  # an heir leaves it as it is: others go on waiting
            _note(number, _WORKS)
        try:
            yield waited or (size == _ENDED and abs(time.time() - modified_s) < _RECENT_S)
        finally:
            _note(number, _ENDED)
        times.add(time.monotonic() - began_s)
    finally:
        _unlock(number)
        os.close(number)


def try_lock(path: str, *, mode: int = 0o600) -> int | None:
    """A descriptor that holds a lock until it is closed; None if another has it, or it cannot be had."""
    number = _open(path, mode)
    if number is None:
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(number)
        return None
    return number


def _open(path: str, mode: int) -> int | None:
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    except OSError:
        return None
    with contextlib.suppress(OSError):  # another user's, or it has the mode
        if os.fstat(number).st_mode & 0o777 != mode & 0o777:
            os.fchmod(number, mode)  # whatever the umask of this process is
    return number


def _state(number: int) -> tuple[int, float]:
    """The size of a lock's file, and when it was changed."""
    try:
        file = os.fstat(number)
    except OSError:
        return 0, 0.0
    return file.st_size, file.st_mtime


def _note(number: int, size: int) -> None:
    with contextlib.suppress(OSError):
        os.ftruncate(number, size)  # takes no block


def _unlock(number: int) -> None:
    with contextlib.suppress(OSError):  # by name, as a forked process may have inherited the descriptor
        fcntl.flock(number, fcntl.LOCK_UN)


def _wait(number: int, counters: CacheCounters, limit_s: float) -> tuple[bool, bool]:
    """Whether the lock is held now, and whether another held it. It is not held after `limit_s`, counted, and if its
    holder has ended, but another has it now."""
    began_s, pause_s = time.monotonic(), _FIRST_POLL_S
    waited, holds, before = False, True, (0, 0.0)
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            holds, failed = False, error.errno not in BUSY
        if failed or time.monotonic() - began_s > limit_s:
            counters.add(duplicates=1)
            break
        if pause_s > _FIRST_POLL_S:  # by now the holder has noted that it works
            state = _state(number)
            if state[0] == _ENDED or before not in (state, (0, 0.0)):
                break
            before = state
        waited, holds = True, True
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_POLL_S)
    if waited:
        counters.add(waited_s=time.monotonic() - began_s)
    return holds, waited
