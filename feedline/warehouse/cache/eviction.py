"""Keep a cache's folder below its bound, and a floor of the file system free: which files are worth their bytes.

Runs in: every process that writes to a cache; one at a time evicts. A file's benefit per byte is

    CPU seconds that it saves x (1 + its touches) x 2 ** -(age of its last use / HALF_LIFE_S) / its bytes,

and of files of one benefit the least recently used goes first. A new file displaces only files of half its benefit or
less, and else is not written: if all are alike, a table larger than the cache keeps a part of itself there, where LRU
would replace each file just before its next use (epochs visit all row groups), and write the whole cache every epoch.

The time of last use is the file's mtime, in whole seconds; its nanoseconds count the touches, of which there is one a
minute at most. A file system that keeps no nanoseconds counts none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from feedline.dataclass import dataclass
from feedline.warehouse.cache.entry_file import SUFFIX, TEMPORARY_SUFFIX, DamagedEntryError, read_cost
from feedline.warehouse.cache.flights import BUSY

HALF_LIFE_S = 6 * 3600.0  # about an epoch of a large table, or a working day with its night in four
LOW_WATER = 0.95  # of the bound: an eviction goes on to here, so that the next is some puts away
_DISPLACES = 0.5  # of a new file's benefit
_ABANDONED_S = 3600.0  # age of a temporary file whose writer is dead for certain, where nothing can be locked
_WRITER_S = 10.0  # age below which a temporary file may just not be locked yet
_MAX_TOUCHES = 1_000_000  # nanoseconds beyond are a time that the kernel set: another user's touch, a copied file
_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class StoredFileStat:
    """A file of a cache's folder as a listing shows it.

    Attributes:
        path, version: `version` names the folder of its format, such as `v1`.
        nbytes: on disk, in whole blocks.
        used_s: the time of its last use, of the clock of the host that used it.
        touches: how often it was used, counted once a minute.
        temporary: of a writer that has not finished, or died.
    """

    path: str
    version: str
    nbytes: int
    used_s: float
    touches: int
    temporary: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that could be evicted, with its benefit per byte."""

    file: StoredFileStat
    benefit: float


def list_entries(folder: str) -> Iterator[StoredFileStat]:
    """All files of entries below a cache's folder, of all versions. What vanishes meanwhile is left out."""
    for version in _names(folder):
        if version[:1] != "v" or not version[1:].isdecimal():
            continue
        top = os.path.join(folder, version)
        for prefix in _names(top):
            for group in _names(os.path.join(top, prefix)):
                yield from _files(os.path.join(top, prefix, group), version)


def touched_ns(used_s: float, touches: int) -> int:
    """The mtime that says when a file was used last, and how often."""
    # at 1,000.5 s for the third time -> 1_000_000_000_003
    return int(used_s) * 10**9 + min(touches, _MAX_TOUCHES - 1)


def touches_of(mtime_ns: int) -> int:
    """The touches that an mtime counts."""
    touches = mtime_ns % 10**9
    return touches if touches < _MAX_TOUCHES else 0


def disk_bytes(nbytes: int) -> int:
    """The bytes that a file takes on disk."""
    return -(-nbytes // _BLOCK_BYTES) * _BLOCK_BYTES


def benefit_per_byte(cpu_s: float, touches: int, age_s: float, nbytes: int) -> float:
    """What a file is worth; a last use in the future, by another host's clock, is now."""
    return float(cpu_s * (1 + touches) * 2.0 ** -(max(age_s, 0.0) / HALF_LIFE_S) / max(nbytes, 1))


def choose_victims(
    candidates: Iterable[Candidate], over: int, room: int, spare: int, benefit: float
) -> list[Candidate]:
    """The files to evict, those of the lowest benefit first.

    over: bytes that have to go in any case, as the folder is above its bound. room: bytes for a new file of this
    benefit; found wholly or not at all. spare: further bytes to evict if any are displaced.
    """
    ordered = sorted(candidates, key=lambda each: (each.benefit, each.file.used_s))
    victims: list[Candidate] = []
    freed = 0
    for each in ordered:
        if freed >= over:
            break
        victims.append(each)
        freed += each.file.nbytes
    # over 10, room 40, files of 30 bytes: one goes in any case, and 20 are missing: the next goes if it is worth little
    missing = over + room - freed
    if missing <= 0:
        return victims
    displaced: list[Candidate] = []
    for each in ordered[len(victims) :]:
        if missing <= -spare or each.benefit > _DISPLACES * benefit:
            break
        displaced.append(each)
        missing -= each.file.nbytes
    return victims + displaced if missing <= 0 else victims


class CostBook:
    """The CPU seconds that files save, read from their headers once per process."""

    def __init__(self) -> None:
        self._cost: dict[str, float | None] = {}

    def candidates(self, files: Sequence[StoredFileStat], version: str, now_s: float) -> list[Candidate]:
        """The benefit of each file; of a version that is not ours, the median of ours, decayed by its age."""
        before, self._cost = self._cost, {}
        for file in files:
            if file.version == version:
                self._cost[file.path] = before[file.path] if file.path in before else _cost_of(file.path)
        densities = [cost / max(file.nbytes, 1) for file in files if (cost := self._cost.get(file.path)) is not None]
        usual = statistics.median(densities) if densities else 0.0
        made = []
        for file in files:
            cost = self._cost.get(file.path, usual * file.nbytes)
            worth = 0.0 if cost is None else cost  # None: damaged, of no use to anyone
            made.append(Candidate(file, benefit_per_byte(worth, file.touches, now_s - file.used_s, file.nbytes)))
        return made


def remove_file(path: str) -> bool:
    """Remove a file, and its folder if that is empty now; whether it was there. Raises no OSError."""
    try:
        Path(path).unlink()
    except OSError:
        return False
    with contextlib.suppress(OSError):  # not empty, usually
        Path(path).parent.rmdir()
    return True


def is_abandoned(file: StoredFileStat, now_s: float) -> bool:
    """Whether the writer of a temporary file is dead: nobody holds its lock, however old it looks to this host's clock.

    Where the file system has no locks, it is dead if the file is old.
    """
    age_s = abs(now_s - file.used_s)  # a clock may be behind
    if age_s < _WRITER_S:
        return False
    try:
        number = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # gone, or another user's, who will remove it
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)  # NFS refuses an exclusive one on a file opened for reading
    except OSError as error:
        return error.errno not in BUSY and age_s > _ABANDONED_S
    finally:
        os.close(number)
    return True


def _cost_of(path: str) -> float | None:
    try:
        return read_cost(path)[0]
    except (OSError, DamagedEntryError):
        return None


def _names(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except OSError:
        return []


def _files(folder: str, version: str) -> Iterator[StoredFileStat]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            temporary = entry.name.endswith(TEMPORARY_SUFFIX)
            if not temporary and not entry.name.endswith(SUFFIX):
                continue
            try:
                stat = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield StoredFileStat(
                path=entry.path,
                version=version,
                nbytes=disk_bytes(stat.st_size),
                used_s=stat.st_mtime_ns // 10**9,
                touches=touches_of(stat.st_mtime_ns),
                temporary=temporary,
            )
