"""Fixtures of all tests: a small warehouse, fixed seeds, a check that nothing outlives the test that made it."""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import numpy as np
import psutil
import pytest
import zygote

LEAK_GRACE_S = 10.0  # time that a stopping worker gets to exit
STAYS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    zygote.NAME,
)  # Python's own helpers, and the tests': a few per process, kept

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would all processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Decoded columns are overwritten before they are freed, here and in all processes that tests start.
os.environ.setdefault("FEEDLINE_DEBUG_MEMORY", "1")

# torch has a thread per core, which spin while they wait: beside another process of tests that doubled what a training
# cost.
os.environ.setdefault("OMP_NUM_THREADS", "1")

zygote.install()

hypothesis.settings.register_profile("feedline", deadline=None, max_examples=20, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("nightly", hypothesis.settings.get_profile("feedline"), max_examples=60)
hypothesis.settings.load_profile("feedline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of `tests/system/` first: they take longest, and two processes that share the files end together."""
    items.sort(key=lambda item: "system" not in item.path.parent.parts)


def pytest_collection_finish() -> None:
    """Leave modules and tests out of garbage collections, of which tests and Python make many: 0.5 s each else."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()
    zygote.close()


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A click warehouse of 20,000 rows in three days, several files and row groups per day; read it only."""
    from feedline.workbench.generate.clicks import ClickRecipe
    from feedline.workbench.generate.generate import generate_clicks

    directory = tmp_path_factory.mktemp("warehouse") / "clicks"
    recipe = ClickRecipe(
        rows=20_000,
        days=3,
        seed=7,
        dense=4,
        ids=4,
        strings=1,
        histories=2,
        history_max=12,
        row_group_rows=1_024,
        part_rows=4_096,
    )
    generate_clicks(str(directory), recipe)
    return directory


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Every test starts from the same random numbers, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)  # for libraries that draw from the legacy generator
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)  # `manual_seed` formats the stack each time, for CUDA


@pytest.fixture
def plain_starts() -> Iterator[None]:
    """Programs start as they do for users, not by a fork: for tests of starting itself."""
    zygote.switch(False)
    yield
    zygote.switch(True)


@pytest.fixture(autouse=True, scope="module")
def module_leak_scan() -> Iterator[None]:
    """Fails the last test of a module that leaves something behind, its fixtures included.

    What modules have imported since is left out of collections, too.
    """
    gc.collect()
    gc.freeze()
    with no_leaks():
        yield


@pytest.fixture(autouse=True)
def leak_scan(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails each test of `tests/system/` that leaves something behind: elsewhere a scan per test costs more than most
    tests do.
    """
    if "system" not in request.path.parent.parts:
        yield
        return
    with no_leaks():
        yield


@contextmanager
def no_leaks() -> Iterator[None]:
    """No process, memfd, pidfd, listening, TCP or packet socket stays behind.

    Whatever existed before is not counted, fixtures of a wider scope among it. Descriptors that libraries keep for good
    (an event loop's socket pair, Arrow's and Polars' pipes and files) are of other kinds.
    """
    processes, descriptors = _children(), _descriptors()
    yield
    left = _remaining(lambda: sorted(_children().items() - processes.items()))
    assert not left, f"processes left behind: {left}"
    left = _remaining(lambda: _new_descriptors(descriptors))
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


def _remaining(look: Callable[[], list]) -> list:
    """What is still there after garbage collection and the grace time."""
    deadline = time.monotonic() + LEAK_GRACE_S
    while (left := look()) and time.monotonic() < deadline:
        gc.collect()
        threading.Event().wait(0.02)
    return left


def _children() -> dict[int, str]:
    """This process's descendants, zombies included: pid and command line."""
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
