"""A store's rate follows from timed reads, ends where more readers gain nothing, and limits what a run may take."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from drawn_examples import examples
from explained_runs import rank_samples
from hypothesis import given
from hypothesis import strategies as st

from feedline.explain.explanation import Explanation, explanation_facts
from feedline.explain.reader_levels import (
    MOST_READERS,
    ReaderLevel,
    StoreRate,
    TimedRead,
    explained_with_store,
    reader_level,
)
from feedline.loader.limits.run_facts import Capacity, Interval

MB = 1e6


def rate_of(*mb_s: float) -> StoreRate:
    """Levels of 1, 2, 4, … readers with these MB/s."""
    levels = tuple(
        ReaderLevel(readers=2**i, bytes_per_s=each * MB, interval=Interval(low=each * MB, high=each * MB))
        for i, each in enumerate(mb_s)
    )
    return StoreRate(levels=levels, nbytes=5)


@pytest.mark.parametrize(
    ("mb_s", "following", "best", "growing"),
    [
        ([10], 2, 1, True),
        ([10, 20], 4, 2, True),
        ([10, 20, 21], None, 4, False),
        ([10, 20, 15], None, 2, False),
        ([10, 10.9], None, 2, False),
        ([10, 20, 40, 80, 160, 320], None, 32, True),
    ],
)
def test_readers_double_until_they_gain_less_than_a_tenth(
    mb_s: list[float], following: int | None, best: int, growing: bool
) -> None:
    rate = rate_of(*mb_s)
    assert (rate.next_readers, rate.best.readers, rate.is_growing) == (following, best, growing)
    assert rate.best.readers <= MOST_READERS


@pytest.mark.parametrize(
    ("reads", "bytes_per_s", "is_even"),
    [
        ([(0, 8, 80)], 10, True),
        ([(0, 4, 40), (4, 8, 40)], 10, True),
        ([(0, 8, 80), (0, 16, 80)], 15, True),  # half of the longer one lies beyond the window
        ([(-8, 8, 160)], 10, True),
        ([(0, 4, 80)], 10, False),
    ],
)
def test_the_rate_of_a_level(reads: list[tuple[float, float, int]], bytes_per_s: float, is_even: bool) -> None:
    level = reader_level(3, [TimedRead(began_s=a, ended_s=b, nbytes=n) for a, b, n in reads], 0.0, 8.0)
    assert (level.readers, level.bytes_per_s) == (3, pytest.approx(bytes_per_s))
    assert (level.interval.high - level.interval.low < 1e-6) == is_even
    assert 0 <= level.interval.low <= level.bytes_per_s <= level.interval.high


@examples(40)
@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0.01, 1), st.integers(1, 1000)), min_size=1, max_size=20))
def test_reads_within_the_window_count_whole(drawn: list[tuple[float, float, int]]) -> None:
    reads = [TimedRead(began_s=began_s, ended_s=began_s + took_s, nbytes=n) for began_s, took_s, n in drawn]
    assert reader_level(1, reads, 0.0, 10.0).bytes_per_s == pytest.approx(sum(n for *_, n in drawn) / 10)


def explained(nbytes_read: int) -> Explanation:
    """A run of one rank and a thread that waits for the store most of the time. nbytes_read: in each of 4 s."""
    rank = rank_samples(0, 0.9)
    sample = replace(
        rank.samples[0], transform_s=0.1, transform_cpu_s=0.1, read_s=0.9, fetch_s=0.9, nbytes_read=nbytes_read
    )
    capacity = Capacity(cores=2, threads=1)
    ranks = (replace(rank, samples=(sample,) * 4, capacity=capacity),)
    return Explanation(name="n", source="short run", ranks=ranks, seconds=4.0)


@pytest.mark.parametrize(
    ("mb_s", "limit", "ratio"),
    [
        (None, "threads", 4.0),  # the trainer takes 10: advice goes in steps
        (1000.0, "threads", 4.0),
        (25.0, "threads", 2.5),
        (10.5, "store", None),
        (9.5, "store", None),
    ],
)
def test_advice_of_threads_ends_where_the_store_does(mb_s: float | None, limit: str, ratio: float | None) -> None:
    run = explained(10_000_000)
    found = run if mb_s is None else explained_with_store(run, rate_of(mb_s, mb_s))
    verdict = found.slowest.verdict()
    threads = [each for each in verdict.advice if each.kind == "threads"]
    assert verdict.limit == limit or limit in verdict.ties
    if ratio is None:
        assert all(each.rows_ratio < 1.1 for each in verdict.advice if each.kind in ("threads", "workers"))
        return
    [advice] = threads
    assert advice.rows_ratio == pytest.approx(ratio)
    assert ("--probe-store" in advice.caveat) == (mb_s is None)


def test_a_run_that_read_faster_was_not_limited_by_the_store() -> None:
    found = explained_with_store(explained(100_000_000), rate_of(40, 41))
    assert found.slowest.capacity.store_bytes_per_s is None
    assert found.store is not None
    assert "which read 100 MB/s, from memory or a cache" in found.store["skipped"]


def test_what_was_not_measured_is_said_and_facts_are_plain() -> None:
    skipped = explained_with_store(explained(1), None, "not measured")
    assert skipped.store == {"skipped": "not measured"}
    found = explained_with_store(explained(1), rate_of(10, 20, 20))
    facts = explanation_facts(found, found.slowest.verdict())
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["capacity"]["store_bytes_per_s"] == facts["store"]["bytes_per_s"] == 20 * MB
    assert [each["readers"] for each in facts["store"]["levels"]] == [1, 2, 4]
