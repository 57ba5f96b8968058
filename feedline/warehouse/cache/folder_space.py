"""Know how many bytes a cache's folder holds, and make room for more.

Runs in: every process that writes to a cache; one at a time evicts.
"""

from __future__ import annotations

import os
import threading
import time

from feedline.warehouse.cache import eviction, flights
from feedline.warehouse.cache.cache_counters import CacheCounters
from feedline.warehouse.cache.entry_file import VERSION

VERSION_FOLDER = f"v{VERSION}"
LOCKS = "locks"

_DEFAULT_SHARE = 10  # of the file system, where no size is given: a tenth
_RESCANS = 50  # listings while one process fills a folder
_REFUSED_S = 30.0  # for which files of no higher benefit are refused without another listing


class FolderSpace:
    """The bytes that a folder holds, and room for more.

    The usage is a count of this process, corrected by listings of the folder: when this process has written a fiftieth
    of the bound since the last one, and before it evicts. So a folder may pass its bound by a fiftieth per process.
    """

    def __init__(self, folder: str, size: int | None, free: int, mode: int) -> None:
        self._folder, self._free, self._mode = folder, free, mode
        self._lock = threading.Lock()
        self._costs = eviction.CostBook()
        self._used: int | None = None
        self._written = 0
        self._refused = (float("-inf"), 0.0)
        self.mean_uses = 0.0  # of a file, at the last listing
        self.bound = size if size is not None else self._tenth()

    def _tenth(self) -> int:
        try:
            whole = os.statvfs(self._folder)
        except OSError:
            return 0
        return whole.f_blocks * whole.f_frsize // _DEFAULT_SHARE

    def note_written(self, nbytes: int) -> None:
        """Count a file that was written."""
        with self._lock:
            self._written += nbytes
            self._used = (self._used or 0) + nbytes

    def rescan(self) -> int:
        """List the folder; the bytes of its files."""
        return self._list()[1]

    def _list(self) -> tuple[list[eviction.StoredFileStat], int]:
        """The files of the folder, without those of dead writers, which are removed, and their bytes."""
        now_s = time.time()
        files = [
            file
            for file in eviction.list_entries(self._folder)
            if not (file.temporary and eviction.is_abandoned(file, now_s) and eviction.remove_file(file.path))
        ]
        used = sum(file.nbytes for file in files)
        self.mean_uses = sum(file.touches for file in files) / max(1, len(files))
        with self._lock:
            self._used, self._written = used, 0
        return files, used

    def make_room(self, nbytes: int, cpu_s: float, counters: CacheCounters) -> bool:
        """Whether a file of so many bytes may be written now; may evict others. Raises OSError."""
        if nbytes > self.bound:
            return False
        with self._lock:
            used, written = self._used, self._written
            refused_s, refused = self._refused
        benefit = eviction.benefit_per_byte(cpu_s, 0, 0.0, nbytes)
        if time.monotonic() - refused_s < _REFUSED_S and benefit <= refused:
            return False
        if used is None or written > self.bound // _RESCANS:
            used = self.rescan()
        if used + nbytes <= self.bound and self._missing_free(nbytes) <= 0:
            return True
        return self._evict(nbytes, benefit, counters)

    def _missing_free(self, nbytes: int) -> int:
        """The bytes that writing so many would take of the floor of free space."""
        disk = os.statvfs(self._folder)
        return self._free + nbytes - disk.f_bavail * disk.f_frsize

    def _evict(self, nbytes: int, benefit: float, counters: CacheCounters) -> bool:
        """Make room by evicting; False: another process evicts, or what is there is worth more."""
        lock = flights.try_lock(os.path.join(self._folder, LOCKS, "evict"), mode=self._mode)
        if lock is None:
            return False
        try:
            files, used = self._list()
            over = max(used - self.bound, self._missing_free(0), 0)
            room = max(used + nbytes - self.bound, self._missing_free(nbytes), 0) - over
            if over + room > 0:
                entries = [file for file in files if not file.temporary]
                candidates = self._costs.candidates(entries, VERSION_FOLDER, time.time())
                spare = int((1 - eviction.LOW_WATER) * self.bound)
                victims = eviction.choose_victims(candidates, over, room, spare, benefit)
                freed = sum(each.file.nbytes for each in victims if eviction.remove_file(each.file.path))
                counters.add(evicted=len(victims))
                used -= freed
                with self._lock:
                    self._used = used
            if used + nbytes <= self.bound and self._missing_free(nbytes) <= 0:
                return True
            with self._lock:
                self._refused = (time.monotonic(), benefit)
            return False
        finally:
            os.close(lock)
