"""Open a cache's folder, find computed columns in it, and put new ones there.

Runs in: every process that computes or reads with a cache; any number of them share a folder, on one host or on many,
without a daemon. Below the folder: `feedline-cache.json`, the marker without which a folder that is not empty is
refused; `v1/<2 hex>/<digest of the row group>/<16 hex>.entry`, the files of this version; `locks/`.

No state of the disk is an error here: what cannot be read is missing, what cannot be written is skipped, both are
counted, and the first time is logged.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from feedline.dataclass import dataclass
from feedline.errors import SpecError
from feedline.warehouse.cache import eviction, flights
from feedline.warehouse.cache.entry_file import (
    SUFFIX,
    VERSION,
    CachedColumn,
    DamagedEntryError,
    EntryFile,
    EntryGroup,
    OtherVersionError,
    entry_buffers,
    write_entry,
)
from feedline.warehouse.cache.flights import CacheCounters
from feedline.warehouse.storage.whole_file import whole_file

# --------------------------------------------------------------------------------------------------------------------
# Bound the time that writing to a cache takes by a share of the time that it takes to make what is written. Pure; any
# thread may use a budget. What is not written is made again by the next reading, which writes some of it, so that the
# cache fills over the epochs.


class WriteBudget:
    """Seconds of threads, waits included: a slow disk counts as a slow processor does. share: None for no bound.
    free_s: of writing, whatever the share is, so that small tables are written at once."""

    def __init__(self, share: float | None, free_s: float = 0.0) -> None:
        self.share, self._free_s = share, free_s
        self._lock = threading.Lock()
        self._made_s = self._written_s = 0.0
        self._writes = 0

    def allows(self) -> bool:
        """Whether another entry may be written: the first, or one that, taking as long as others, keeps the share."""
        if self.share is None:
            return True
        with self._lock:
            if not self._writes:
                return True
            # share 0.1, 20 s of making: 1 s for 2 files, so 1.5 s for 3, of 2 s
            return self._written_s * (1 + 1 / self._writes) <= max(self._free_s, self.share * self._made_s)

    def spend(self, *, made_s: float, written_s: float = 0.0) -> None:
        """Count what making entries took, and writing them if they were written."""
        with self._lock:
            self._made_s, self._written_s = self._made_s + made_s, self._written_s + written_s
            self._writes += written_s > 0


# --------------------------------------------------------------------------------------------------------------------
# Know how many bytes a cache's folder holds, and make room for more.

VERSION_FOLDER = f"v{VERSION}"
LOCKS = "locks"

_DEFAULT_SHARE = 10  # of the file system, where no size is given: a tenth
_RESCANS = 50  # listings while one process fills a folder
_REFUSED_S = 30.0  # for which files of no higher benefit are refused without another listing


class FolderSpace:
    """The bytes that a folder holds, and room for more.

    bound: of the bytes of all files. mean_uses: how often a file was used since it was written, at the last listing.

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
        self.mean_uses = 0.0
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


# --------------------------------------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

MARKER = "feedline-cache.json"
FORMAT = 1
_CONTENT = json.dumps({"format": FORMAT})

_PRIVATE, _SHARED = 0o700, 0o770
_TOUCH_S = 60.0
_TOUCHED_KEPT = 200_000  # paths of a process, with when it touched them last
_VERSIONS = re.compile(r"v\d+\Z")  # folders of entries
_HEX = re.compile(r"[0-9a-f]{8,}\Z")
_ATTEMPTS = 3  # to write to a folder that others remove when they evict its last file
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class CacheRef:
    """A cache's folder and its limits; travels in a job.

    Attributes:
        folder: an absolute local path.
        size: bytes of all files, at most; None: a tenth of the file system.
        free: bytes of the file system that stay free.
        shared: a new folder is for the group, too (0770, else 0700); an existing one keeps its mode.
        write_budget: the time of writing to the time of making what is written, at most; None: any.
    """

    folder: str
    size: int | None
    free: int
    shared: bool
    write_budget: float | None = None


_opened: dict[tuple[int, CacheRef], CacheFolder] = {}
_opening = threading.Lock()


def open_folder(ref: CacheRef) -> CacheFolder:
    """The folder of a cache, created if it is missing; one object per process and ref.

    A folder that cannot be created serves nothing, and is logged. Raises SpecError for a folder that is not a cache's,
    or of a newer format.
    """
    key = (os.getpid(), ref)
    with _opening:
        if key not in _opened:
            _opened[key] = CacheFolder(ref)
        return _opened[key]


def check_folder(folder: str) -> bool:
    """Whether a folder is a cache's, by its marker; False: it is missing or empty.

    A marker that is empty or cut off, as a crash leaves it, counts where nothing but a cache's folders lies beside it.

    Raises SpecError for a folder that is not a cache's, or of a newer format.
    """
    if _read_marker(folder):
        return True
    try:
        names = [path.name for path in Path(folder).iterdir()]
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise SpecError(f"the cache {folder} must be a folder: got a file. Name another") from None
    except OSError as error:
        raise SpecError(f"the cache {folder} cannot be read: {error.strerror}. Name another, or its owner") from None
    cached = [name for name in names if name == LOCKS or _VERSIONS.match(name)] if MARKER in names else []
    own = (MARKER, "lost+found", *cached)  # of these the second is in the root of a file system
    if all(name in own or name.startswith(f".{MARKER}") for name in names):  # or a marker that is being written
        return bool(cached)
    if _read_marker(folder):  # another process has created it since
        return True
    raise SpecError(
        f"the folder {folder} is not a cache: got {len(names):,} files or folders and no {MARKER}, expected an empty "
        "folder or a cache. Name another"
    )


def entry_files(folder: str, group: str) -> list[str]:
    """The names of the files of a row group's entries, sorted; none where they cannot be listed."""
    try:
        with os.scandir(_group_folder(folder, group)) as entries:
            return sorted(entry.name for entry in entries if entry.name.endswith(SUFFIX))
    except OSError:
        return []


def held_columns(folder: str, group: str) -> dict[str, int]:
    """The columns of a row group by digest, each with its bytes, as the indexes of its files say."""
    columns: dict[str, int] = {}
    for name in entry_files(folder, group):
        path = os.path.join(_group_folder(folder, group), name)
        with contextlib.suppress(OSError, DamagedEntryError, OtherVersionError), EntryFile(path) as file:
            for digest, (_, arrays) in file.index.columns.items():
                columns[digest] = sum(array.nbytes for array in arrays)
    return columns


class CacheFolder:
    """The entries of a folder; any thread may use it."""

    def __init__(self, ref: CacheRef) -> None:
        self.ref = ref
        self.counters = CacheCounters()
        self._times = flights.WorkTimes()
        self.budget = WriteBudget(ref.write_budget)
        self._lock = threading.Lock()
        self._touched: dict[str, float] = {}
        self._said: set[str] = set()
        self._local = threading.local()
        self._mode = _SHARED if ref.shared else _PRIVATE
        self._locks = os.path.join(ref.folder, LOCKS)
        if not check_folder(ref.folder) or not _read_marker(ref.folder):
            self._create()
        with contextlib.suppress(OSError):
            self._mode = stat.S_IMODE(Path(ref.folder).stat().st_mode)
        with contextlib.suppress(OSError):
            self._make_folder(self._locks)
        self.space = FolderSpace(ref.folder, ref.size, ref.free, self._file_mode)

    def find(self, group: EntryGroup, columns: Sequence[str]) -> dict[str, CachedColumn]:
        """Columns by digest: those that are there, whole and unharmed. Arrays are read-only views of the bytes read.

        A file that is not as it was written is counted and removed; its columns are missing.
        """
        found: dict[str, CachedColumn] = {}
        wanted = list(dict.fromkeys(columns))
        for name in entry_files(self.ref.folder, group.digest) if wanted else ():
            path = os.path.join(_group_folder(self.ref.folder, group.digest), name)
            found |= self._read(path, group, [each for each in wanted if each not in found])
            if len(found) == len(wanted):
                break
        read = sum(column.nbytes for column in found.values())
        self.counters.add(hits=len(found), misses=len(wanted) - len(found), bytes_read=read)
        return found

    def put(self, group: EntryGroup, columns: Mapping[str, CachedColumn], *, cpu_s: float) -> bool:
        """Write columns by digest as one file, atomically; False: skipped, counted, and logged the first time.

        cpu_s: what computing them took. The same columns written twice are one file.
        """
        if not columns:
            return True
        names = sorted(columns)
        if not all(map(_HEX.match, (group.digest, *names))):
            raise ValueError(f"digests of a cache are hex of 8 digits or more: got {group.digest!r}, {names[:3]!r}")
        now_s = time.time()
        buffers = entry_buffers(group, columns, cpu_s=cpu_s, created_s=now_s)
        nbytes = sum(memoryview(buffer).nbytes for buffer in buffers)
        try:
            has_room = self.space.make_room(eviction.disk_bytes(nbytes), cpu_s, self.counters)
            if has_room:
                name = hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest() + SUFFIX
                self._write(group.digest, name, buffers, eviction.touched_ns(now_s, 0))
        except OSError as error:
            self._skip(len(names), "disk", f"{error.strerror or error}: columns that were computed are not written")
            return False
        if not has_room:
            what = "is full of entries worth as much" if self.space.bound > nbytes else "is smaller than an entry"
            self._skip(len(names), "full", f"{what}: further columns are not written")
            return False
        self.space.note_written(eviction.disk_bytes(nbytes))
        self.counters.add(bytes_written=nbytes)
        return True

    def drop(self, group: EntryGroup) -> None:
        """Remove the entries of a row group, which are as they were written, but wrong; they count as damaged."""
        for name in entry_files(self.ref.folder, group.digest):
            self._drop_damaged(os.path.join(_group_folder(self.ref.folder, group.digest), name))

    def take_damaged(self) -> int:
        """How many damaged files this thread has met since it asked last."""
        count: int = getattr(self._local, "damaged", 0)
        self._local.damaged = 0
        return count

    def flight(self, group: EntryGroup) -> AbstractContextManager[bool]:
        """Held by one thread of all processes of the host while it computes; True: the caller has waited for another
        holder, and may find what that has written. See `flights.flight`."""
        return flights.flight(self._locks, group.digest, self.counters, self._times, mode=self._file_mode)

    @property
    def _file_mode(self) -> int:
        return self._mode & 0o666

    def _read(self, path: str, group: EntryGroup, wanted: Sequence[str]) -> dict[str, CachedColumn]:
        found: dict[str, CachedColumn] = {}
        whole = True
        try:
            with EntryFile(path) as file:
                if file.index.group.digest == group.digest:
                    found, whole = file.read(wanted)
                else:
                    whole = False
                if found:
                    self._touch(path, file.number)
        except DamagedEntryError:
            whole = False
        except OtherVersionError:
            pass
        except OSError as error:
            if error.errno not in _ABSENT:  # evicted since it was listed
                self._say("disk", f"{error.strerror or error}: entries are not read")
        if not whole:  # the file goes, with columns that are unharmed: they are computed, and kept, with the others
            self._drop_damaged(path)
            return {}
        return found

    def _drop_damaged(self, path: str) -> None:
        self.counters.add(damaged=1)
        self._local.damaged = getattr(self._local, "damaged", 0) + 1
        self._say("damaged", f"{path} is damaged: it is removed, and computed again")
        eviction.remove_file(path)

    def _touch(self, path: str, number: int) -> None:
        """Note the use of an open file: at once a minute at most."""
        now = time.monotonic()
        with self._lock:
            last = self._touched.get(path)
            if last is not None and now - last < _TOUCH_S:
                return
            if len(self._touched) >= _TOUCHED_KEPT:
                self._touched.clear()
            self._touched[path] = now
        with contextlib.suppress(OSError):
            before, now_s = os.fstat(number), time.time()
            if abs(now_s - before.st_mtime) < _TOUCH_S:  # another process has
                return
            touched = eviction.touched_ns(now_s, eviction.touches_of(before.st_mtime_ns) + 1)
            try:
                os.utime(number, ns=(before.st_atime_ns, touched))
            except PermissionError:  # another user's file: any time but now is for its owner to set
                os.utime(path)

    def _write(self, group: str, name: str, buffers: Sequence[object], modified_ns: int) -> None:
        folder = _group_folder(self.ref.folder, group)
        path = os.path.join(folder, name)
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                write_entry(path, buffers, mode=self._file_mode, modified_ns=modified_ns)
                return
            self._make_folder(folder)  # of a new row group, or one whose last file was evicted
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _make_folder(self, folder: str) -> None:
        path = Path(folder)
        if path.is_dir():
            return
        if path.parent != Path(self.ref.folder):
            self._make_folder(str(path.parent))
        with contextlib.suppress(FileExistsError):
            path.mkdir(self._mode)
            with contextlib.suppress(OSError):
                path.chmod(self._mode)  # whatever the umask of this process is

    def _create(self) -> None:
        """Create the folder, or mark an empty one."""
        folder = Path(self.ref.folder)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                folder.mkdir(self._mode)
                folder.chmod(self._mode)
            with whole_file(folder / MARKER) as path:
                path.write_text(_CONTENT, encoding="utf-8")
                path.chmod(stat.S_IMODE(folder.stat().st_mode) & 0o666)
        except OSError as error:
            self._say("disk", f"{error.strerror or error}: the folder cannot be created, and nothing is cached")

    def _skip(self, columns: int, kind: str, text: str) -> None:
        self.counters.add(skipped=columns)
        self._say(kind, text)

    def _say(self, kind: str, text: str) -> None:
        """Log the first line of a kind."""
        with self._lock:
            if kind in self._said:
                return
            self._said.add(kind)
        logger.warning("cache %s: %s", self.ref.folder, text)


def _group_folder(folder: str, group: str) -> str:
    return os.path.join(folder, VERSION_FOLDER, group[:2], group)


def _read_marker(folder: str) -> bool:
    """Whether there is a whole marker. Raises SpecError for one of a newer format, and for one that is not ours."""
    path = os.path.join(folder, MARKER)
    try:
        content = Path(path).read_text(encoding="utf-8")
        if _CONTENT.startswith(content.rstrip("\0")) and content != _CONTENT:
            return False
        format = json.loads(content)["format"]
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise SpecError(
            f"the cache {folder} cannot be read: {error.strerror}. Name another, or ask its owner"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise SpecError(
            f"the marker {path} is damaged: got other content, expected a JSON object with a format. Delete the folder"
        ) from None
    if not isinstance(format, int) or format > FORMAT:
        raise SpecError(
            f"the cache {folder} is of another format: got {format!r}, expected {FORMAT} or less. "
            "Use the Feedline that made it, or name another"
        )
    return True
