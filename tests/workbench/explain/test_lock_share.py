"""Block threads wait for each other as long as they hold the interpreter's lock."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from feedline.blocks.block_encoder import StageClock
from feedline.errors import DataError
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.limits.run_facts import RunFacts
from feedline.workbench.explain.cost_account import lock_share, measure_lock_share
from feedline.workbench.explain.cpu_time import CpuBudget

DATA = bytes(4 * 2**20)


def threads(cpu_s: float, waits_s: float = 0.0, fetch_s: float = 0.0) -> RunFacts:
    return RunFacts(
        block_rows=1,
        times=BlockTimes(read_s=cpu_s + waits_s + fetch_s, read_cpu_s=cpu_s, fetch_s=fetch_s),
    )


@pytest.mark.parametrize(
    ("alone", "together", "count", "share"),
    [
        (threads(1.0), threads(2.0, waits_s=0.5), 2, 0.5),
        (threads(1.0), threads(2.0, waits_s=2.0), 2, 1.0),
        (threads(1.0), threads(2.0, waits_s=9.0), 2, 1.0),
        (threads(1.0, waits_s=0.1), threads(2.0, waits_s=0.7), 2, 0.5),  # a tenth is no lock's
        (threads(1.0, waits_s=0.5), threads(2.0), 2, 0.0),
        # Of nine threads that wait for the store 7 of 8 seconds, one other computes at a time.
        (threads(1.0, fetch_s=7.0), threads(9.0, waits_s=9 / 4, fetch_s=7 * 45 / 4), 9, 0.5),
        (RunFacts(), RunFacts(), 2, 0.0),
    ],
)
def test_share_follows_from_what_threads_wait(alone: RunFacts, together: RunFacts, count: int, share: float):
    assert lock_share(alone, together, count) == pytest.approx(share)


def block(compute: Callable[[], object]) -> list[Any]:
    clock = StageClock()
    compute()
    clock.lap("encode")
    return [SimpleNamespace(times=clock.times())]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="threads of one core do not wait for the lock")
def test_python_holds_the_lock_and_hashing_does_not():
    def python() -> None:
        ends_s = time.thread_time() + 0.02
        while time.thread_time() < ends_s:
            pass

    held = measure_lock_share(lambda: block(python), CpuBudget(0.5))
    free = measure_lock_share(lambda: block(lambda: hashlib.sha256(DATA)), CpuBudget(0.5))
    assert free < 0.3 < 0.5 < held


def test_an_error_of_a_block_is_raised():
    def fail() -> list[Any]:
        raise DataError("a bad row")

    with pytest.raises(DataError, match="a bad row"):
        measure_lock_share(fail, CpuBudget(1.0))
