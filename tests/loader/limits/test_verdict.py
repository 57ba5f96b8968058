"""The verdict names what limits a run, says ties, and says nothing where the trainer is the limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from feedline.loader.limits.advice import Advice
from feedline.loader.limits.run_facts import Capacity, RunFacts
from feedline.loader.limits.verdict import judge, short

TWO = Capacity(cores=2, threads=2)
Staged = Callable[..., RunFacts]


def test_decoding_on_busy_cores(staged: Staged):
    verdict = judge([staged(wait_s=0.41, decode_s=1.2, ops_s=0.5, encode_s=0.25)], TWO)
    assert (verdict.limit, verdict.stage, verdict.ties) == ("cores", "decoding", ())
    assert str(verdict) == ("Trainer waits 41%: decoding takes 62% of CPU; the limit is 1.03 M rows/s with 2 cores.")
    assert verdict.headroom == pytest.approx(1 / 0.59)


def test_a_slow_store(staged: Staged):
    verdict = judge([staged(wait_s=0.8, decode_s=0.1, fetch_s=1.8)], Capacity(cores=2, threads=2, epochs=3))
    assert (verdict.limit, verdict.stage) == ("threads", "store wait")
    assert "store wait takes 95% of the block threads' time" in verdict.sentence
    assert {each.kind for each in verdict.advice} >= {"threads", "store"}


def test_a_slow_trainer(staged: Staged):
    verdict = judge([staged(wait_s=0.01, decode_s=0.5)], TWO)
    assert (verdict.limit, verdict.advice, verdict.ties) == ("trainer", (), ())
    assert verdict.sentence.startswith("Nothing: your trainer is the limit. It waits 1.0% of the time")
    assert verdict.headroom == pytest.approx(1 / 0.99)
    assert "could deliver 4 M rows/s" in verdict.sentence


def test_a_trainer_that_is_as_fast_as_the_cores_is_a_tie(staged: Staged):
    verdict = judge([staged(wait_s=0.02, decode_s=1.95)], TWO)
    assert verdict.limit == "trainer"
    assert "cores" in verdict.ties
    assert verdict.sentence.endswith("a tie.")


def test_two_resources_that_are_as_close_are_a_tie(staged: Staged):
    facts = staged(wait_s=0.5, decode_s=1.9, loop_cpu_s=0.95)
    verdict = judge([facts], Capacity(cores=2, threads=2, own_cores=False))
    assert verdict.limit in ("cores", "threads")
    assert verdict.ties == ("loop",)
    assert "a tie" in verdict.sentence


def test_ops_that_sleep_in_a_starved_cluster(staged: Staged):
    capacity = Capacity(cores=64, threads=2, workers=2, form="processes")
    verdict = judge([staged(wait_s=0.6, slept_s=1.9, ops_s=0.05)], capacity)
    assert (verdict.limit, verdict.stage) == ("threads", "ops")
    assert verdict.advice[0].kind == "workers"


def test_memory_for_fewer_blocks_than_threads(staged: Staged):
    capacity = Capacity(cores=64, threads=8, window=2, window_reason="`memory` has room for 10 MB of blocks")
    verdict = judge([staged(wait_s=0.6, ops_s=1.9)], capacity)
    assert verdict.limit == "memory"
    assert verdict.advice[0].kind == "memory"
    assert verdict.advice[0].rows_ratio == pytest.approx(1 / 0.4)  # until the trainer is the limit


def test_the_feeders_loop(staged: Staged):
    verdict = judge([staged(wait_s=0.6, ops_s=0.2, loop_cpu_s=0.97)], Capacity(cores=64, threads=8))
    assert (verdict.limit, verdict.advice[0].kind) == ("loop", "batch")


def test_a_store_with_a_known_bandwidth(staged: Staged):
    verdict = judge([staged(wait_s=0.6, fetch_s=1.0)], Capacity(cores=8, threads=8, store_bytes_per_s=50e6))
    assert verdict.limit == "store"
    assert "50 MB/s of the store" in verdict.sentence


def test_a_run_without_a_trainer_has_no_waiting(staged: Staged):
    verdict = judge([staged(wait_s=None, decode_s=1.9)], TWO)
    assert verdict.trainer_wait is None
    assert verdict.sentence.startswith("Decoding takes 100% of CPU")


def test_nothing_delivered_is_no_rate():
    verdict = judge([RunFacts(wall_s=3.0, planning_s=2.5)], TWO)
    assert "it planned for 2.5 s" in verdict.sentence
    assert (verdict.limit, verdict.advice) == ("", ())


def test_other_advice_is_sorted_among_that_on_machines(staged: Staged):
    own = Advice(kind="decode", change="feedline optimize --for decode", reason="", rows_ratio=1.5)
    tiny = Advice(kind="dedup", change="dedup", reason="", cpu_s_saved=1.0)
    verdict = judge([staged(wait_s=0.41, decode_s=1.9)], TWO, [tiny, own])
    ratios = [each.rows_ratio for each in verdict.advice]
    assert {"decode", "dedup", "workers"} <= {each.kind for each in verdict.advice}
    assert ratios == sorted(ratios, reverse=True)


def test_rates_have_intervals(staged: Staged):
    base = staged(wait_s=0.2, decode_s=1.0, loop_cpu_s=0.1)
    samples = [replace(base, rows=rows) for rows in (900_000, 1_000_000, 1_050_000, 1_050_000)]
    verdict = judge(samples, TWO)
    assert verdict.interval is not None
    assert verdict.interval.low < 1_000_000 < verdict.interval.high
    rates = {each.name: each for each in verdict.stages}
    assert rates["decoding"].rows_per_s == pytest.approx(2_000_000)
    assert rates["trainer"].rows_per_s == pytest.approx(1_250_000)
    assert rates["delivery"].interval is not None
    assert {"planning", "store wait", "ops", "encoding", "slot wait"} <= rates.keys()


def test_rates_are_short():
    assert [short(each) for each in (312_400, 2_000_000, 12, float("inf"))] == [
        "312 k rows/s",
        "2 M rows/s",
        "12 rows/s",
        "any rows/s",
    ]
