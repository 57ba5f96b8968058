"""The verdict names what limits a run, says ties, and says nothing where the trainer is the limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.limits.linear_bound import limits_of
from feedline.loader.limits.machine_advice import Advice
from feedline.loader.limits.run_facts import Capacity, RunFacts
from feedline.loader.limits.verdict import busy_share, idle_sentence, is_idle, judge, short

TWO = Capacity(cores=2, threads=2)
FOUR = Capacity(cores=4, threads=4)
Staged = Callable[..., RunFacts]


def test_decoding_on_busy_cores(staged: Staged):
    verdict = judge([staged(wait_s=0.41, decode_s=1.2, ops_s=0.5, encode_s=0.25)], TWO)
    assert (verdict.limit, verdict.stage, verdict.ties) == ("cores", "decoding", ())
    assert str(verdict) == ("Trainer waits 41%: decoding takes 62% of CPU; the limit is 1.03 M rows/s with 2 cores.")
    assert verdict.headroom == pytest.approx(1 / 0.59)


def test_a_slow_trainer(staged: Staged):
    verdict = judge([staged(wait_s=0.01, decode_s=0.5)], TWO)
    assert (verdict.limit, verdict.advice, verdict.ties) == ("trainer", (), ())
    assert verdict.sentence.startswith("Nothing: your trainer is the limit. It waits 1.0% of the time")
    assert verdict.headroom == pytest.approx(1 / 0.99)
    assert "could deliver 4 M rows/s" in verdict.sentence


def test_no_feature_is_given_up_where_the_trainer_is_the_limit(staged: Staged):
    advice = [Advice(kind=kind, change=kind, reason=kind, cpu_s_saved=0.5) for kind in ("feature", "op", "decode")]
    limited, waiting = (judge([staged(wait_s=wait_s, decode_s=0.5)], TWO, advice) for wait_s in (0.01, 0.41))
    assert [each.kind for each in limited.advice] == ["decode"]
    assert {each.kind for each in waiting.advice} >= {"feature", "op", "decode"}


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


@pytest.mark.parametrize(
    ("reason", "kind", "change"),
    [
        ("`memory` has room for 10 MB of blocks", "memory", "memory: a larger share"),
        ("cluster.window", "window", "cluster: {window: 16}"),
        ("the trainer uses up a block in 1 s", None, None),  # which follows its pace
    ],
)
def test_fewer_blocks_in_flight_than_threads(staged: Staged, reason: str, kind: str | None, change: str | None):
    capacity = Capacity(cores=64, threads=8, window=2, window_reason=reason)
    verdict = judge([staged(wait_s=0.6, ops_s=1.9)], capacity)
    assert verdict.limit == "window"
    assert verdict.sentence.endswith(f"with 2 blocks in flight ({reason}).")
    first = next(iter(verdict.advice), None)
    assert (first and first.kind, first and first.change) == (kind, change)
    if first is not None:
        assert first.rows_ratio == pytest.approx(1 / 0.4)  # until the trainer is the limit


def test_other_threads_are_a_stage_that_may_be_named(staged: Staged):
    facts = staged(wait_s=0.5, ops_s=0.2, loop_cpu_s=0.4, other_cpu_s=1.2)
    verdict = judge([facts], Capacity(cores=2, threads=8))
    assert verdict.sentence.startswith("Trainer waits 50%: other threads take 67% of CPU")
    assert [each.cpu_s for each in verdict.stages if each.name == "other threads"] == [1.2]
    assert "other threads" not in {each.name for each in judge([staged(ops_s=0.2)], TWO).stages}


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


# What is staged, on which machine: the limit, the stage that takes most of it, and the kind of the best advice.
SITUATIONS = {
    "slow store": ({"fetch_s": 1.8, "decode_s": 0.1}, TWO, "threads", "store wait", "threads"),
    "store with few MB/s": (
        {"fetch_s": 1.8, "decode_s": 0.1},
        replace(TWO, store_bytes_per_s=50e6, epochs=2),
        "store",
        "store wait",
        "store",
    ),
    "heavy list decode": ({"decode_s": 1.7, "ops_s": 0.1, "encode_s": 0.1}, TWO, "cores", "decoding", "workers"),
    "heavy op": ({"decode_s": 0.2, "ops_s": 1.7}, TWO, "cores", "ops", "workers"),
    "slow trainer": ({"wait_s": 0.01, "decode_s": 0.3}, TWO, "trainer", "trainer", None),
    "one core": ({"encode_s": 0.9}, Capacity(cores=1, threads=1), "cores", "encoding", "workers"),
    "starved cluster": (
        {"slept_s": 1.9},
        Capacity(cores=64, threads=2, workers=2, form="processes"),
        "threads",
        "ops",
        "workers",
    ),
    "tiny row groups": (
        {"decode_s": 0.6, "encode_s": 0.2, "read_s": 1.5},
        Capacity(cores=8, threads=2),
        "threads",
        "decoding",
        "processes",
    ),
    "the feeder's loop": (
        {"ops_s": 0.2, "loop_cpu_s": 0.97},
        Capacity(cores=64, threads=8),
        "loop",
        "delivery",
        "batch",
    ),
    "cold cache": (
        {"ops_s": 1.9, "computed": 10},
        replace(TWO, cached=True, epochs=3),
        "cores",
        "ops",
        "cache",
    ),
}


@pytest.mark.parametrize(("uses", "capacity", "limit", "stage", "advice"), SITUATIONS.values(), ids=SITUATIONS)
def test_situations(
    staged: Staged, uses: dict[str, float], capacity: Capacity, limit: str, stage: str, advice: str | None
):
    read_s = uses.get("read_s")
    facts = staged(**{"wait_s": 0.5, **{name: value for name, value in uses.items() if name != "read_s"}})
    facts = facts if read_s is None else replace(facts, times=replace(facts.times, read_s=read_s))
    verdict = judge([facts] * 4, capacity)
    assert (verdict.limit, verdict.stage) == (limit, stage)
    assert next((each.kind for each in verdict.advice), None) == advice


BUSY = {"decode_s": 1.9}
ODD = {
    "zero rows": ({"rows": 0, "batches": 0, **BUSY}, "", "10 blocks computed, no step complete"),
    "nothing at all": ({"rows": 0, "blocks": 0}, "", "no block was computed"),
    "no time": ({"wall_s": 0.0, **BUSY}, "", "there is no rate to explain"),
    "one step": ({"rows": 256, "batches": 1, **BUSY}, "threads", "Trainer waits 50%"),
    "not a number": ({"wait_s": math.nan, **BUSY}, "", "there is no rate to explain"),
    "negative": ({"decode_s": -1.0}, "", "there is no rate to explain"),
    "waits always": ({"wait_s": 1.0, **BUSY}, "cores", "Trainer waits 100%: decoding takes 100% of CPU"),
    "waits longer than it ran": ({"wait_s": 3.0, **BUSY}, "cores", "Trainer waits 100%"),
    "no block in the time": ({"wait_s": 1.0, "blocks": 0, "block_rows": 0}, "", "no block was finished in 1.0 s"),
    "idle": ({"wait_s": 0.9, "decode_s": 0.05}, "idle", "while nothing of the loader is busy (threads 2%)"),
}


@pytest.mark.parametrize(("counts", "limit", "words"), ODD.values(), ids=ODD)
def test_odd_runs(staged: Staged, counts: dict[str, float], limit: str, words: str):
    given = {"wait_s": 0.5, **counts}
    after = {name: given.pop(name) for name in ("rows", "batches", "blocks", "block_rows", "wall_s") if name in given}
    verdict = judge([replace(staged(**given), **after)], TWO)
    assert verdict.limit == limit
    assert words in verdict.sentence
    for each in verdict.advice:
        assert 1 <= each.rows_ratio <= 8
        assert each.rows_interval is None or 0 <= each.rows_interval.low <= each.rows_interval.high


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


def test_a_sample_that_is_not_sound_is_left_out(staged: Staged):
    sound = staged(wait_s=0.41, decode_s=1.9)
    assert judge([sound, replace(sound, times=replace(sound.times, read_s=math.nan)), sound], TWO) == judge(
        [sound, sound], TWO
    )


def test_epochs_that_end_within_the_time_are_part_of_it(staged: Staged):
    """Half of the time nothing is computed, and the trainer waits: the limit is that of the other half."""
    verdict = judge([staged(wait_s=0.1, decode_s=1.8)] * 2 + [RunFacts(wall_s=1.0, trainer_wait_s=0.9)] * 2, TWO)
    assert (verdict.limit, verdict.rows_per_s, verdict.trainer_wait) == ("threads", 500_000, 0.5)
    assert verdict.interval is not None
    assert verdict.interval.low < 500_000 < verdict.interval.high


def test_all_resources_that_are_as_close_are_named(staged: Staged):
    facts = staged(wait_s=0.5, decode_s=2.0, loop_cpu_s=1.0, copy_s=2.0)
    verdict = judge([facts] * 4, Capacity(cores=2, threads=2, own_cores=False, store_bytes_per_s=50e6))
    assert {verdict.limit, *verdict.ties} >= {"loop", "copy", "store"}
    assert not verdict.advice, "no change alone helps"


def test_rates_are_short():
    assert [short(each) for each in (312_400, 2_000_000, 12, float("inf"))] == [
        "312 k rows/s",
        "2 M rows/s",
        "12 rows/s",
        "any rows/s",
    ]
