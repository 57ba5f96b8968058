"""Fixtures of all tests: a small warehouse, fixed seeds, a check that nothing outlives the test that made it."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import zygote
from leaks import no_leaks

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
        torch = sys.modules["torch"]
        torch.default_generator.manual_seed(0)  # without CUDA `torch.manual_seed` formats the stack each time
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)


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
