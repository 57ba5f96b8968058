"""Capacities follow from pipeline.yaml and the feeder's counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from explained_runs import spec_with

from feedline.loader.limits.capacities import capacity_of
from feedline.loader.wire.facts import FeederStats

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
