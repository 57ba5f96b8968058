"""The sockets at which trainers find the feeders of `feedline run`, named for the job and the rank.

Runs in: both. The sockets lie in a folder of this user's alone (mode 0700): below XDG_RUNTIME_DIR, or, where that is
missing or of no use (under Slurm it often names a folder of the login host), below the folder for temporary files. A
feeder takes the first that serves, a trainer looks into both. A feeder owns its name through a lock on
a file beside the socket, for as long as it lives; the socket itself is there only while the feeder waits for a
trainer, so that one feeder serves one trainer at a time. Whoever meets what a dead process left removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import select
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from feedline.errors import FeederError
from feedline.loader.ring.channel import Channel, ChannelClosedError
from feedline.spec import PipelineSpec

logger = logging.getLogger(__name__)

# These keys of pipeline.yaml say how a job is run, not what it delivers: a trainer finds its feeder whatever they say.
_RUN_KEYS = ("epochs", "cluster", "memory")
# Between accepting and greeting a feeder does nothing; it may be stopped, though, or swapped out.
_GREETING_S = 5.0
# A feeder starts in a few seconds.
_SUCCESSOR_S, _PAUSE_S = 15.0, 0.2


def job_fingerprint(spec: PipelineSpec) -> str:
    """What names a job on a host: everything in pipeline.yaml that decides what is delivered."""
    document = json.loads(spec.canonical())
    for key in _RUN_KEYS:
        document.pop(key, None)
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def runtime_dir() -> Path:
    """The folder for sockets: private to this user, made if missing. Raises FeederError where none can be had."""
    troubles: list[str] = []
    for folder in _runtime_dirs():
        trouble = _trouble(folder)
        if trouble is None:
            for text in troubles:
                logger.warning("%s: sockets are in %s, and trainers with another TMPDIR do not find them", text, folder)
            return folder
        troubles.append(trouble)
    raise FeederError(
        f"there is no folder for sockets: got {'; '.join(troubles)}. Set XDG_RUNTIME_DIR to a private folder (owner "
        f"{os.getuid()}, mode 700)"
    )


def _runtime_dirs() -> list[Path]:
    """Where the folder may be, the best place first."""
    home = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    named = [home / "feedline"] if home.is_absolute() else []  # another would be another in each process
    return [*named, Path(tempfile.gettempdir()) / f"feedline-{os.getuid()}"]


def _trouble(folder: Path) -> str | None:
    """Make the folder where it is missing; what is wrong with it."""
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        status = folder.lstat()
    except OSError as error:
        return f"{folder} cannot be made ({error.strerror})"
    if not _is_private(status):
        return f"{folder} is not private (owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o})"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written"


def _is_private(status: os.stat_result) -> bool:
    mine = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return mine and stat.S_ISDIR(status.st_mode)


def socket_path(job: str, rank: int, world_size: int) -> Path:
    """Where the feeder of a job's rank listens."""
    return runtime_dir() / _name(job, rank, world_size)


def socket_paths(job: str, rank: int, world_size: int) -> list[Path]:
    """Where it may listen, for a trainer to look."""
    return [folder / _name(job, rank, world_size) for folder in _runtime_dirs()]


def _name(job: str, rank: int, world_size: int) -> str:
    return f"{job[:16]}-{rank}of{world_size}.sock"


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """The path by way of its open folder: sun_path has 108 bytes, and a job's TMPDIR may well be longer."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path) -> Channel | None:
    """The channel to a feeder that waits there, or None."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if not _is_private(path.parent.lstat()):
            raise PermissionError
        with _address(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        return None
    channel = Channel(connection)
    if channel.peer_uid() != os.getuid() or not _is_greeted(channel):
        channel.close()
        return None
    return channel


def _is_greeted(channel: Channel) -> bool:
    """Whether the feeder takes us: another trainer may have knocked first, and only one is let in."""
    try:
        greeting = select.select([channel], [], [], _GREETING_S)[0] and channel.receive(wait=False)
    except ChannelClosedError:
        return False
    return bool(greeting)


def await_successor(path: Path, *, unless: Callable[[], bool]) -> None:
    """Give `feedline run` the time to start another feeder in a dead one's place."""
    deadline = time.monotonic() + _SUCCESSOR_S
    while not path.exists() and not unless() and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)


def sweep(path: Path) -> None:
    """Remove what a dead feeder left there, unless the name has a living owner."""
    with contextlib.suppress(FeederError, OSError):
        owner = Listener(path)
        path.unlink(missing_ok=True)
        owner.close()


class Listener:
    """The feeder's end: owns a name, and takes one trainer at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_path = path.with_suffix(".lock")
        self._lock = self._claim()
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Wait for trainers from now on."""
        self._path.unlink(missing_ok=True)  # what a dead predecessor left; the lock says that no other owner lives
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with _address(self._path) as address:
            listening.bind(address)
        listening.listen(1)
        self._socket = listening

    def fileno(self) -> int:
        assert self._socket is not None
        return self._socket.fileno()

    def accept(self) -> Channel | None:
        """Take the trainer that knocks, and stop listening; None where it is another user's process."""
        assert self._socket is not None
        connection, _ = self._socket.accept()
        channel = Channel(connection)
        if channel.peer_uid() != os.getuid():
            channel.close()
            return None
        self._stop_listening()
        with contextlib.suppress(ChannelClosedError):  # the feeder will notice
            channel.send_json({"type": "welcome"})
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
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.read(lock, 32).decode() or "unknown"
                os.close(lock)
                raise FeederError(
                    f"this job's rank is served already: got a second feeder for {self._path.name}, expected one (the "
                    f"other is process {owner}). Stop it, or start this run with other --ranks"
                ) from None
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(lock).st_ino == self._lock_path.stat().st_ino:
                    os.ftruncate(lock, 0)
                    os.write(lock, str(os.getpid()).encode())
                    return lock
            os.close(lock)  # its last owner removed it between our open and our lock
