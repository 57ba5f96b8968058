"""What is known of runs whose trainer waits while nothing is busy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.limits.linear_bound import limits_of
from feedline.loader.limits.run_facts import Capacity, RunFacts
from feedline.loader.limits.verdict import busy_share, idle_sentence, is_idle

FOUR = Capacity(cores=4, threads=4)
Staged = Callable[..., RunFacts]


def test_blocks_that_are_not_delivered_yet_use_threads_too(staged: Staged):
    facts = replace(staged(wait_s=0.9, decode_s=3.0), rows=10_000)
    threads = limits_of(facts, FOUR).get("threads")
    assert threads is not None
    assert busy_share(threads, facts, FOUR) == pytest.approx(0.75)
    assert not is_idle(threads, facts, FOUR)
    idle = replace(facts, times=BlockTimes(read_s=0.3, read_cpu_s=0.3))
    assert is_idle(threads, idle, FOUR)
    assert not is_idle(threads, replace(idle, trainer_wait_s=0.1), FOUR)
    assert not is_idle(threads, replace(idle, trainer_wait_s=None), FOUR)


@pytest.mark.parametrize(
    ("counts", "capacity", "words"),
    [
        ({"planning_s": 0.6}, FOUR, "it planned for 0.6 s"),
        ({}, replace(FOUR, window=1, window_reason="cluster.window"), "one block may be in flight for 4 threads (clus"),
        ({"queued_s": 5.0}, replace(FOUR, form="scheduler"), "blocks wait for workers, which may compute those of"),
        ({"queued_s": 5.0}, FOUR, "an epoch may have begun or ended"),
    ],
)
def test_causes(staged: Staged, counts: dict[str, float], capacity: Capacity, words: str):
    facts = staged(wait_s=0.9, decode_s=0.1, **counts)
    threads = limits_of(facts, capacity).get("threads")
    assert f"Trainer waits 90%, while nothing of the loader is busy (threads 2%): {words}" in idle_sentence(
        threads, facts, capacity
    )
