"""The bound is the least quotient of capacity and use, as an exhaustive search finds it, too."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.limits.linear_bound import Resource, ResourceLimits, limits_of, ties
from feedline.loader.limits.run_facts import Capacity, RunFacts

USES = st.floats(1e-7, 1e-3)


def resource(name: str, capacity: float, use: float) -> Resource:
    return Resource(name=name, capacity=capacity, uses={"ops": use}, unit="s")  # type: ignore[arg-type]


@examples(25)
@given(st.lists(st.tuples(st.floats(0.5, 64), USES), min_size=1, max_size=5))
def test_bound_is_the_largest_rate_that_all_capacities_allow(pairs: list[tuple[float, float]]):
    names = ("trainer", "threads", "cores", "store", "loop")
    limits = ResourceLimits(
        resources=tuple(resource(name, *pair) for name, pair in zip(names, pairs, strict=False)), measured=1.0
    )
    capacities, uses = np.array(pairs).T
    rates = np.geomspace(1, 1e10, 20_001)
    feasible = rates[(rates[:, None] * uses <= capacities).all(axis=1)]
    assert limits.rows_per_s == pytest.approx(feasible.max(), rel=0.002)


def test_resources_of_a_run_are_what_its_rows_use():
    facts = RunFacts(
        wall_s=10.0,
        rows=1000,
        batches=10,
        trainer_wait_s=5.0,
        trainer_cpu_s=1.0,
        blocks=20,
        block_rows=2000,
        nbytes_read=4_000_000,
        times=BlockTimes(
            read_s=8.0,
            read_cpu_s=2.0,
            fetch_s=4.0,
            transform_s=4.0,
            transform_cpu_s=4.0,
            encode_s=2.0,
            encode_cpu_s=2.0,
            contended_s=2.0,
        ),
        loop_cpu_s=0.5,
        copy_s=0.2,
        copy_cpu_s=0.1,
    )
    limits = limits_of(facts, Capacity(cores=2, threads=4, store_bytes_per_s=1e6))
    rates = {each.name: each.rows_per_s for each in limits.resources}
    assert rates["trainer"] == pytest.approx(1000 / 5)
    assert rates["threads"] == pytest.approx(4 * 2000 / (8 + 4 + 2 - 2))
    assert rates["cores"] == pytest.approx(2 / (8 / 2000 + (0.5 + 0.1 + 1.0) / 1000))
    assert rates["store"] == pytest.approx(1e6 / 2000)
    assert rates["loop"] == pytest.approx(1000 / 0.5)
    assert rates["copy"] == pytest.approx(2 * 1000 / 0.2)
    threads = limits.get("threads")
    assert threads is not None
    assert threads.stage == "store wait"
    assert threads.stage_share == pytest.approx(4 / 12)
    assert limits.binding.name == "trainer"
    apart = limits_of(facts, Capacity(cores=2, threads=4, own_cores=False)).get("cores")
    assert apart is not None
    assert apart.rows_per_s == pytest.approx(2 * 2000 / 8)


def test_threads_of_a_process_share_the_interpreters_lock():
    facts = RunFacts(
        wall_s=1.0,
        rows=1000,
        block_rows=2000,
        times=BlockTimes(read_s=8.0, read_cpu_s=2.0, fetch_s=6.0, transform_s=4.0, transform_cpu_s=4.0),
        loop_cpu_s=0.5,
        copy_cpu_s=0.1,
        other_cpu_s=0.3,
    )
    capacity = Capacity(cores=64, threads=8, workers=1, lock_share=0.25)
    limits = limits_of(facts, capacity)
    lock, cores = limits.get("lock"), limits.get("cores")
    assert lock is not None
    assert cores is not None
    assert lock.rows_per_s == pytest.approx(1 / (0.25 * 6 / 2000 + (0.5 + 0.3) / 1000))
    assert cores.rows_per_s == pytest.approx(64 / (6 / 2000 + (0.5 + 0.1 + 0.3) / 1000))
    # Workers have a lock each, and neither the loop nor the feeder's other threads want it.
    workers = limits_of(facts, replace(capacity, form="processes", workers=3)).get("lock")
    assert workers is not None
    assert workers.rows_per_s == pytest.approx(3 / (0.25 * 6 / 2000))
    assert limits_of(facts, replace(capacity, lock_share=None)).get("lock") is None
    # What a stage saves of CPU seconds, it saves of the lock in part.
    saved = limits.saving("ops", 1 / 2000).get("lock")
    assert saved is not None
    assert saved.use == pytest.approx(lock.use - 0.25 / 2000)


@pytest.mark.parametrize(("window", "binding"), [(0, "threads"), (2, "window"), (7, "window"), (8, "threads")])
def test_blocks_in_flight_limit_threads_that_have_none(window: int, binding: str):
    facts = RunFacts(
        wall_s=1.0,
        rows=100,
        blocks=1,
        block_rows=100,
        times=BlockTimes(transform_s=1.0, transform_cpu_s=1.0),
    )
    limits = limits_of(facts, Capacity(cores=64, threads=8, window=window))
    assert limits.binding.name == binding
    assert limits.rows_per_s == 100 * (window if binding == "window" else 8)


def test_ratio_keeps_the_part_of_the_bound_that_was_reached():
    limits = ResourceLimits(resources=(resource("threads", 2, 0.01), resource("cores", 8, 0.01)), measured=150.0)
    assert limits.ratio_to(limits.with_capacity({"threads": 4})) == pytest.approx(2)
    assert limits.ratio_to(limits.with_capacity({"threads": 100})) == pytest.approx(4)  # the cores
    trainer = ResourceLimits(resources=(*limits.resources, resource("trainer", 1, 1 / 180)), measured=150.0)
    assert trainer.ratio_to(trainer.with_capacity({"threads": 100})) == pytest.approx(180 / 150)


def test_saving_lowers_what_a_stage_uses_of_cores_and_threads():
    limits = ResourceLimits(resources=(resource("threads", 2, 0.01), resource("cores", 2, 0.02)), measured=80.0)
    saved = limits.saving("ops", 0.005)
    assert [each.use for each in saved.resources] == pytest.approx([0.005, 0.015])
    assert limits.saving("decoding", 0.005) == limits
    assert limits.ratio_to(saved) == pytest.approx(100 / 0.75 / 100)


def test_nothing_measured_promises_nothing():
    empty = limits_of(RunFacts(), Capacity(cores=2, threads=2))
    assert empty.resources == ()
    unknown = ResourceLimits(resources=(resource("threads", 2, 0.0),), measured=10.0)
    assert unknown.rows_per_s == math.inf
    assert unknown.ratio_to(unknown) == 1.0


def test_ties_are_the_bounds_that_are_close():
    resources = [resource("cores", 1, 0.01), resource("threads", 1, 0.0096), resource("loop", 1, 0.001)]
    assert [each.name for each in ties(resources, 0.1)] == ["cores", "threads"]
    assert [each.name for each in ties(resources, 0.01)] == ["cores"]
