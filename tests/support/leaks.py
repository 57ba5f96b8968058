"""A check that nothing outlives the test, or the module of tests, that made it."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import zygote

GRACE_S = float(os.environ.get("TESTS_GRACE_S", "10"))  # time that a stopping worker gets to exit
STAYS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    zygote.NAME,
)  # Python's own helpers, and the tests': a few per process, kept


@contextmanager
def no_leaks() -> Iterator[None]:
    """No process, memfd, pidfd, listening, TCP or packet socket stays behind.

    Whatever existed before is not counted, fixtures of a wider scope among it. Descriptors that libraries keep for good
    (an event loop's socket pair, Arrow's and Polars' pipes and files) are of other kinds.
    """
    processes, descriptors = all_descendants(), _descriptors()
    yield
    left = remaining(lambda: sorted(all_descendants().items() - processes.items()))
    assert not left, f"processes left behind: {left}"
    left = remaining(lambda: _new_descriptors(descriptors))
    assert not left, f"descriptors left behind: {left}"


def _new_descriptors(before: dict[int, str]) -> list[tuple[int, str]]:
    """Descriptors that were opened since.

    Rings are not counted where there was one before: a feeder adds slots to that of a fixture when its machine is busy.
    """
    new = sorted(_descriptors().items() - before.items())
    had_ring = any(_is_ring(target) for target in before.values())
    return [(number, target) for number, target in new if not (had_ring and _is_ring(target))]


def _is_ring(target: str) -> bool:
    return target.startswith("/memfd:feedline-ring")


def remaining(look: Callable[[], list]) -> list:
    """What is still there after garbage collection and the grace time."""
    deadline = time.monotonic() + GRACE_S
    while (left := look()) and time.monotonic() < deadline:
        gc.collect()
        threading.Event().wait(0.02)
    return left


def all_descendants() -> dict[int, str]:
    """This process's descendants, zombies included: pid and command line."""
    zygote.bury_strangers()
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            command = "(zombie)" if process.status() == psutil.STATUS_ZOMBIE else " ".join(process.cmdline())
        except psutil.ZombieProcess:  # it ended between the two
            command = "(zombie)"
        except psutil.NoSuchProcess:
            continue
        if not any(word in command for word in STAYS):
            found[process.pid] = command
    return found


def _descriptors() -> dict[int, str]:
    """This process's open descriptors of the kinds that Feedline opens: number and target."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
            kind = _socket_kind(int(link.name)) if target.startswith("socket:") else ""
        except OSError:
            continue  # closed since: by another thread, or with the listing itself
        if kind or target.startswith("/memfd:") or target == "anon_inode:[pidfd]":
            found[int(link.name)] = kind + target
    return found


def _socket_kind(descriptor: int) -> str:
    """What a socket is, or nothing for the plain UNIX pairs that event loops wake themselves with."""
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        listening = duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        plain = duplicate.family == socket.AF_UNIX and duplicate.type == socket.SOCK_STREAM
        return "" if plain and not listening else f"{duplicate.family.name} {'listening' if listening else ''} "
