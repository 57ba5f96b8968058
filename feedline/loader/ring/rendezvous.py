"""The sockets through which trainers find feeders: those of `feedline run`, named by job and rank, and of a host.

Runs in: both. The sockets are in a private folder (mode 0700) below XDG_RUNTIME_DIR, or, if that is unusable (under
Slurm it often names a folder of the login host), below the folder for temporary files; a trainer looks in both. A
feeder locks a file beside the socket while it lives; the socket exists only while it waits for a trainer. The next
process removes what a dead one left.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from feedline.config import PipelineSpec
from feedline.errors import FeederError
from feedline.loader.ring.channel import Channel, ChannelClosedError
from feedline.loader.wire.ring_messages import FeederLeaving, Welcome

logger = logging.getLogger(__name__)

# Keys of pipeline.yaml for how a job runs, not what it delivers: feeder and trainer may differ in them.
_RUN_KEYS = ("epochs", "cluster", "memory", "feeder", "cache", "metrics", "traces")
# A feeder accepts and greets right away, unless it is stopped or swapped out.
_GREETING_S = 5.0
_BACKLOG = 16
# A feeder starts in a few seconds.
_SUCCESSOR_S, _PAUSE_S = 15.0, 0.2


def job_fingerprint(spec: PipelineSpec, column_group: Sequence[str] = ()) -> str:
    """The name of a job on a host: a digest of everything in pipeline.yaml that decides what is delivered.

    column_group: the features of a column group, whose feeders and trainers do not meet those of another.
    """
    document = json.loads(spec.canonical())
    for key in _RUN_KEYS:
        document.pop(key, None)
    if column_group:
        document["column_group"] = list(column_group)
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def runtime_dir() -> Path:
    """The folder for sockets, private to this user, created if missing. Raises FeederError if there is none."""
    problems: list[str] = []
    for folder in _runtime_dirs():
        problem = _folder_problem(folder)
        if problem is None:
            for earlier in problems:
                logger.warning(
                    "%s: sockets are in %s, and trainers with another TMPDIR do not find them", earlier, folder
                )
            return folder
        problems.append(problem)
    raise FeederError(
        f"no folder for sockets is usable: got {'; '.join(problems)}. Set XDG_RUNTIME_DIR to a private folder (owner "
        f"{os.getuid()}, mode 700)"
    )


def _runtime_dirs() -> list[Path]:
    """The candidates for the folder, the preferred one first."""
    home = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    private = [home / "feedline"] if home.is_absolute() else []  # a relative path differs between processes
    return [*private, Path(tempfile.gettempdir()) / f"feedline-{os.getuid()}"]


def _folder_problem(folder: Path) -> str | None:
    """Create the folder if missing; why it cannot be used, or None."""
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        status = folder.lstat()
    except OSError as error:
        return f"{folder} cannot be created ({error.strerror})"
    if not _is_private(status):
        return f"{folder} is not private (owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o})"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written"


def _is_private(status: os.stat_result) -> bool:
    private = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return private and stat.S_ISDIR(status.st_mode)


def socket_path(job: str, rank: int, world_size: int) -> Path:
    """The socket on which the feeder of a job's rank listens."""
    return runtime_dir() / _name(job, rank, world_size)


def socket_paths(job: str, rank: int, world_size: int) -> list[Path]:
    """The sockets on which that feeder may listen, for a trainer to try."""
    return [folder / _name(job, rank, world_size) for folder in _runtime_dirs()]


def runtime_dirs() -> list[Path]:
    """The folders that this user's processes may use, as far as they exist and are private."""
    folders = []
    for folder in _runtime_dirs():
        with contextlib.suppress(OSError):
            folders.extend([folder] if _is_private(folder.lstat()) else [])
    return folders


def _name(job: str, rank: int, world_size: int) -> str:
    return f"{job[:16]}-{rank}of{world_size}.sock"


@contextlib.contextmanager
def address_of(path: Path) -> Iterator[str]:
    """The path through its open folder: sun_path holds 108 bytes, and a job's TMPDIR may be longer."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path) -> Channel | None:
    """The channel to the feeder that waits on this socket for one trainer, or None. Takes 10 s at most.

    Raises FeederError for a feeder of another wire version.
    """
    channel = dial(path)
    if channel is not None and not _is_greeted(channel):
        channel.close()
        return None
    return channel


def dial(path: Path) -> Channel | None:
    """The channel to this user's process that listens on a socket in a private folder, or None. Takes 5 s at most."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # For a backlog that is full. A timeout of Python's would not wait at all: it makes the socket non-blocking.
    _limit_sending(connection, _GREETING_S)
    try:
        if not _is_private(path.parent.lstat()):
            raise PermissionError
        with address_of(path) as address:
            connection.connect(address)
    except OSError as error:
        connection.close()
        if isinstance(error, BlockingIOError):
            _warn_of_silence(_owner_of(path.with_suffix(".lock")), "accept connections")
        return None
    _limit_sending(connection, 0)
    return own_channel(connection)


def own_channel(connection: socket.socket, greeting: Welcome | FeederLeaving | None = None) -> Channel | None:
    """The channel over a connection to a process of this user; None, and closed, for another user's."""
    channel = Channel(connection)
    if channel.peer_uid() != os.getuid():
        channel.close()
        return None
    if greeting is not None:
        with contextlib.suppress(ChannelClosedError):  # the feeder notices when it serves
            channel.post_message(greeting)
    return channel


def _limit_sending(connection: socket.socket, seconds: float) -> None:
    """Limit how long the kernel waits for room in `connect` and `send`; 0: no limit."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _is_greeted(channel: Channel) -> bool:
    """Whether the feeder serves this trainer: another one may have connected first, and it serves only one."""
    if not channel.await_packet(_GREETING_S):
        _warn_of_silence(str(channel.peer_pid()), "greet a trainer")
        return False
    try:
        return bool(channel.receive(wait=False))
    except ChannelClosedError:
        return False
    except FeederError:
        channel.close()
        raise


def _warn_of_silence(process: str, action: str) -> None:
    state = ""
    with contextlib.suppress(OSError, IndexError):
        suspended = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        state = ": it is suspended" if suspended else ""
    logger.warning(
        "the feeder of this job's feedline run (process %s) did not %s within %g s%s. Starting another feeder; resume "
        "feedline run (fg, or kill -CONT) before trainers start, or stop it",
        process,
        action,
        _GREETING_S,
        state,
    )


def _owner_of(lock: Path) -> str:
    """The process that has locked a file, as it wrote it there."""
    owner = ""
    with contextlib.suppress(OSError):
        owner = lock.read_text()
    return owner if owner.isdigit() else "unknown"


def await_successor(path: Path, *, unless: Callable[[], bool]) -> None:
    """Wait for `feedline run` to replace a dead feeder, up to 15 s or until `unless()`."""
    deadline = time.monotonic() + _SUCCESSOR_S
    while not path.exists() and not unless() and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)


def sweep(path: Path) -> None:
    """Remove the socket and lock of a dead feeder; those of a living one stay."""
    with contextlib.suppress(FeederError, OSError):
        owner = Listener(path)
        path.unlink(missing_ok=True)
        owner.close()


class Listener:
    """The feeder's end: owns a name, and accepts one trainer at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_path = path.with_suffix(".lock")
        self._lock = self._claim()
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Start listening for a trainer."""
        self._path.unlink(missing_ok=True)  # a dead predecessor's: holding the lock, we are the only owner
        # First, for `close` after a signal in between.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with address_of(self._path) as address:
            self._socket.bind(address)
        self._socket.listen(_BACKLOG)

    def fileno(self) -> int:
        """The listening socket; -1 while it is closed."""
        return -1 if self._socket is None else self._socket.fileno()

    def accept(self) -> Channel | None:
        """Accept the trainer that connects, and stop listening; None for a process of another user."""
        assert self._socket is not None
        connection, _ = self._socket.accept()
        if (channel := own_channel(connection, Welcome(pid=os.getpid()))) is not None:
            self._stop_listening()
        return channel

    def close(self) -> None:
        self._stop_listening()
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)

    def _stop_listening(self) -> None:
        if self._socket is not None:
            self._path.unlink(missing_ok=True)
            self._socket.close()
            self._socket = None

    def _claim(self) -> int:
        lock = open_lock(self._lock_path)
        if lock is None:
            raise FeederError(
                f"this job's rank is already served: got a second feeder for {self._path.name}, expected one (the "
                f"other is process {_owner_of(self._lock_path)}). Stop it, or start this run with other --ranks"
            )
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        return lock


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


def open_lock(path: Path) -> int | None:
    """The descriptor of a file that this process has locked; None if another process holds the lock."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == path.stat().st_ino:
                return lock
        except BlockingIOError:
            os.close(lock)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # its last owner removed the file between our open and our lock
