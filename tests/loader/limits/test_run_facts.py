"""Samples are differences of counts, they add up, and their variation is the interval of a rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from explained_runs import spec_with

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.limits.run_facts import Interval, RunFacts, capacity_of, interval_of, sum_samples, with_other_cpu
from feedline.loader.wire.facts import BlockStats, FeederStats

OLD = FeederStats(
    batches=5,
    rows=500,
    loop_cpu_s=0.5,
    copy_s=0.25,
    planning_s=1.0,
    delivery=BlockStats(
        blocks=2, rows=800, times=BlockTimes(read_s=1.0, fetch_s=0.5), cached=CacheCounts(found=1, computed=3)
    ),
)
NEW = FeederStats(
    batches=9,
    rows=900,
    loop_cpu_s=0.75,
    copy_s=0.5,
    planning_s=1.0,
    delivery=BlockStats(
        blocks=4, rows=1600, times=BlockTimes(read_s=3.0, fetch_s=2.0), cached=CacheCounts(found=11, computed=4)
    ),
)


def test_a_sample_is_the_difference_of_two_counts():
    facts = RunFacts.between(NEW, OLD, wall_s=2.0, trainer_wait_s=0.5)
    assert (facts.rows, facts.batches, facts.block_rows, facts.blocks) == (400, 4, 800, 2)
    assert (facts.times.read_s, facts.times.fetch_s, facts.copy_s, facts.loop_cpu_s, facts.planning_s) == (
        2.0,
        1.5,
        0.25,
        0.25,
        0.0,
    )
    assert (facts.found, facts.computed) == (10, 1)
    assert facts.rows_per_s == 200
    assert facts.trainer_wait == 0.25


def test_counts_that_have_begun_again_are_taken_whole():
    facts = RunFacts.between(OLD, NEW, wall_s=2.0, trainer_wait_s=None)
    assert (facts.rows, facts.times.read_s, facts.planning_s, facts.found) == (500, 1.0, 1.0, 1)
    assert facts.trainer_wait is None


def test_samples_add_up():
    one = RunFacts(wall_s=1.0, rows=10, trainer_wait_s=0.25, times=BlockTimes(read_s=0.5))
    both = sum_samples([one, replace(one, rows=30), replace(one, rows=5, trainer_wait_s=None)])
    assert (both.wall_s, both.rows, both.trainer_wait_s, both.times.read_s) == (3.0, 45, 0.5, 1.5)
    assert sum_samples([]) == RunFacts()


def test_other_threads_are_what_no_count_has_without_the_start_of_dask():
    counted = RunFacts(wall_s=2.0, rows=10, times=BlockTimes(read_cpu_s=0.5), loop_cpu_s=0.1, copy_cpu_s=0.2)
    found = with_other_cpu([counted] * 4, [1.8, 1.0, 0.9, 1.0])
    assert [each.other_cpu_s for each in found] == pytest.approx([0.2] * 4)
    assert found[0].cores_used == pytest.approx(0.5)
    assert [each.other_cpu_s for each in with_other_cpu([counted], [0.1])] == [0.0]
    assert with_other_cpu([], []) == []


def test_interval_covers_the_true_rate_about_as_often_as_it_says():
    draw = np.random.default_rng(3)
    covered = 0
    for _ in range(60):
        rows = draw.normal(1000, 100, 12).astype(int).tolist()
        interval = interval_of([RunFacts(wall_s=1.0, rows=each) for each in rows], lambda each: each.rows_per_s)
        assert interval is not None
        covered += interval.low <= 1000 <= interval.high
    assert 48 <= covered <= 60  # 95 % of 60 are 57; the bootstrap of a dozen samples is a little narrow


def test_two_samples_have_no_interval():
    assert interval_of([RunFacts(wall_s=1.0, rows=1)] * 2, lambda each: each.rows_per_s) is None


def test_interval_scales():
    assert Interval(low=1.0, high=2.0).scaled(-2) == Interval(low=-4.0, high=-2.0)


@pytest.mark.parametrize(("waited_s", "share"), [(-0.5, 0.0), (9.0, 1.0)])
def test_share_of_waiting_is_a_share(waited_s: float, share: float):
    assert RunFacts(wall_s=3.0, trainer_wait_s=waited_s).trainer_wait == share


# -- capacities ----------------------------------------------------------------------------------------------------

STATS = FeederStats(threads=6, window=3, window_reason="`memory` has room")


@pytest.mark.parametrize(
    ("cluster", "form", "workers", "cores", "own"),
    [
        ({"threads": 6}, "threads", 1, 2.0, True),
        ({"workers": 3, "threads": 2}, "processes", 3, 2.0, True),
        ({"scheduler": "tcp://127.0.0.1:1"}, "scheduler", 1, 6.0, False),
    ],
)
def test_capacities_by_the_form_of_the_cluster(
    cluster: dict[str, Any], form: str, workers: int, cores: float, own: bool
) -> None:
    found = capacity_of(spec_with(cluster=cluster), STATS, cores=2.0)
    assert (found.form, found.workers, found.cores, found.own_cores) == (form, workers, cores, own)
    assert (found.threads, found.window, found.window_reason) == (6, 3, "`memory` has room")
    known = capacity_of(spec_with(cluster=cluster), replace(STATS, cores=1.5), cores=2.0)
    assert known == replace(found, cores=2.0 if own else 1.5), "cores that workers have sent"


def test_the_workers_of_a_running_cluster_count_more_than_those_of_the_file() -> None:
    assert capacity_of(spec_with(cluster={"workers": {"min": 1, "max": 8}}), STATS, cores=2, workers=5).workers == 5


def test_epochs_and_cache() -> None:
    assert not capacity_of(spec_with(), STATS, cores=2).cached
    assert not capacity_of(spec_with(cache={"dir": "/c", "mode": "off"}), STATS, cores=2).cached
    found = capacity_of(spec_with(cache="/c", epochs=7), STATS, cores=2, store_bytes_per_s=5.0)
    assert (found.cached, found.epochs, found.store_bytes_per_s) == (True, 7, 5.0)


def test_a_feeder_without_a_block_has_a_thread() -> None:
    assert capacity_of(spec_with(), FeederStats(), cores=2).threads == 1
