"""Let one thread of all processes of a host compute an entry while the others wait for it.

Runs in: every process that computes with a cache. A flight is an exclusive `flock` on a file of the cache's folder, on
an open file description of its own, so that threads of one process exclude each other, too. The kernel drops it with
its holder, however that dies. Waiting polls: a blocking `flock` could be given up only by a signal.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator

from feedline.warehouse.cache.cache_counters import CacheCounters

LIMIT_S = 60.0  # of waiting, then the caller computes, too: a holder that hangs must not stop others
_FIRST_POLL_S = 0.002
_LONGEST_POLL_S = 0.016
_HEX = 3  # of a digest name its lock: 4,096 files, which stay; two flights share one once in 4,096 pairs, and wait
_BUSY = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK)


@contextlib.contextmanager
def flight(folder: str, digest: str, counters: CacheCounters, *, mode: int = 0o600) -> Iterator[bool]:
    """Hold the flight of a row group; True: the caller has waited for another holder, whose work may be found now.

    folder: of the locks. mode: of a new lock file. Where no lock can be had (no permission, a file system without them)
    or its holder takes more than `LIMIT_S`, the caller goes on without, and a duplicate is counted. A thread holds at
    most one flight at a time: it would wait for itself where two digests share a file.
    """
    number = _open(os.path.join(folder, digest[:_HEX]), mode)
    if number is None:
        counters.add(duplicates=1)
        yield False
        return
    try:
        waited = _wait(number, counters)
        yield waited
    finally:
        with contextlib.suppress(OSError):  # unlocked by name, as a forked process may have inherited the descriptor
            fcntl.flock(number, fcntl.LOCK_UN)
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


def _wait(number: int, counters: CacheCounters) -> bool:
    """Take the lock; whether another held it. Also returns without it, counted."""
    began = time.monotonic()
    pause_s, waited = _FIRST_POLL_S, False
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in _BUSY:
                counters.add(duplicates=1)
                break
        waited = True
        if time.monotonic() - began > LIMIT_S:
            counters.add(duplicates=1)
            break
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_POLL_S)
    if waited:
        counters.add(waited_s=time.monotonic() - began)
    return waited
