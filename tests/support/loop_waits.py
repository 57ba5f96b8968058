"""Find calls of a thread that wait: for another process, a file, another thread's answer."""

from __future__ import annotations

import concurrent.futures
import inspect
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import distributed.utils

import feedline

# Functions of Python that wait: for Dask's answers, for events and results of other threads, for processes.
_WAITING: tuple[Any, ...] = (
    distributed.utils.sync,
    threading.Condition.wait,
    concurrent.futures.Future.result,
    queue.Queue.get,
    subprocess.Popen.__init__,
    subprocess.Popen.wait,
)
_CODES = {inspect.unwrap(each).__code__ for each in _WAITING}
# Functions of C that wait: of files (which may lie on a mount), of sockets (which the loop uses without waiting, by
# functions of `native`), of queues, and `sleep`.
_OF_FILES = {
    "open",
    "stat",
    "lstat",
    "listdir",
    "scandir",
    "mkdir",
    "unlink",
    "rename",
    "replace",
    "access",
    "readlink",
}
_OF_SOCKETS = {"connect", "accept", "recv", "recv_into", "sendall", "getaddrinfo"}
_HERE = Path(feedline.__file__).parent
_NATIVE = str(_HERE / "native")  # whose functions in Python pass MSG_DONTWAIT, as those in C do
_STORES = str(_HERE / "warehouse" / "storage")
# The kernel's files below /proc and /sys; descriptors of memory.
_NO_MOUNTS = (str(_HERE / "resources"), str(_HERE / "loader" / "ring"))
_START = threading.Thread.start.__code__  # waits for a thread of this process


@contextmanager
def no_waits() -> Iterator[None]:
    """Fail if this thread waits in the block; what is found is raised at its end."""
    found: list[str] = []

    def profile(frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            waits = frame.f_code in _CODES or (
                frame.f_code.co_filename.startswith(_STORES) and frame.f_code.co_name.startswith("open")
            )
            if waits and not (_is_done(frame) or _is_below(frame, lambda code: code is _START)):
                found.append(_words(frame, frame.f_code.co_qualname))
        elif event == "c_call" and _waits(function, frame):
            found.append(_words(frame, str(function)))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert not found, "the loop waits:\n" + "\n".join(found[:5])


def _is_done(frame: FrameType) -> bool:
    """Whether the result of a future is asked for that is there."""
    future = frame.f_locals.get("self")
    return isinstance(future, concurrent.futures.Future) and future.done()


def _is_below(frame: FrameType, condition: Callable[[CodeType], bool]) -> bool:
    caller: FrameType | None = frame
    while caller is not None:
        if condition(caller.f_code):
            return True
        caller = caller.f_back
    return False


def _waits(function: Any, frame: FrameType) -> bool:
    name, module = function.__name__, function.__module__
    if module in ("posix", "io", "_io"):
        return name in _OF_FILES and not _is_below(frame, lambda code: code.co_filename.startswith(_NO_MOUNTS))
    owner = getattr(function, "__self__", None)
    if type(owner).__name__ == "SimpleQueue":
        return name == "get"
    if name in _OF_SOCKETS and type(owner).__module__ in ("socket", "_socket"):
        return owner.gettimeout() != 0 and not frame.f_code.co_filename.startswith(_NATIVE)
    return module == "time" and name == "sleep"


def _words(frame: FrameType, call: str) -> str:
    names = []
    caller: FrameType | None = frame
    while caller is not None and len(names) < 8:
        names.append(caller.f_code.co_name)
        caller = caller.f_back
    return f"{call} in {' < '.join(names)}"
