"""The CPU time of Polars' threads is taken once, and counts what they did."""

from __future__ import annotations

import os
import time

import polars as pl

from feedline.resources.thread_clocks import PoolClock, contended_s, process_cpu_s, tree_cpu_s


def test_the_pools_cpu_time_and_the_callers_are_the_process():
    frame = pl.DataFrame({"x": range(400_000)})
    clock = PoolClock()
    frame.select((pl.col("x") * 3 + 1).log())  # the pool exists
    clock.take(0.0)
    process_s, thread_s = time.process_time(), time.thread_time()
    for _ in range(20):
        frame.select((pl.col("x") * 3 + 1).log().exp())
    thread_s, pool_s = time.thread_time() - thread_s, clock.take(1.0)
    process_s = time.process_time() - process_s
    assert pool_s > 0
    assert thread_s + pool_s <= process_s + 0.01
    assert thread_s + pool_s >= 0.8 * process_s


def test_a_second_is_taken_once_and_not_at_every_call():
    clock = PoolClock()
    pl.DataFrame({"x": range(200_000)}).select(pl.col("x").cast(pl.Float64).sin())
    first = clock.take(10.0)
    pl.DataFrame({"x": range(200_000)}).select(pl.col("x").cast(pl.Float64).sin())
    assert clock.take(10.01) == 0.0  # a moment later
    assert first + clock.take(11.0) >= first


def test_waiting_for_a_cpu_only_grows():
    first = contended_s()
    assert contended_s() >= first >= 0.0


def test_a_process_counts_with_those_that_it_started():
    own_s = process_cpu_s(os.getpid())
    assert abs(own_s - time.process_time()) < 1.0
    assert tree_cpu_s(os.getpid()) >= own_s
    assert tree_cpu_s(os.getppid()) >= own_s
    assert tree_cpu_s(2**22 + 1) == process_cpu_s(2**22 + 1) == 0.0, "no process has that number"
