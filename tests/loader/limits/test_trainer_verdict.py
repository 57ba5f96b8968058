"""A trainer's marks become samples, an epoch a line, and a repeated batch its own pace."""

from __future__ import annotations

import pytest
from explained_runs import spec_with

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.limits.trainer_verdict import Headspace, TrainerMark, TrainerSamples
from feedline.loader.wire.facts import BlockStats, FeederStats


def mark(at_s: float, rows: int, wait_s: float, *, epoch: int = 0) -> TrainerMark:
    """One thread computes 1,000 rows/s; the feeder has announced 100 rows more."""
    blocks = BlockStats(
        blocks=rows // 100,
        rows=rows,
        times=BlockTimes(transform_s=rows / 1000, transform_cpu_s=rows / 1000),
    )
    stats = FeederStats(batches=rows // 10, rows=rows + 100, epoch=epoch, threads=1, delivery=blocks)
    return TrainerMark(at_s=at_s, wait_s=wait_s, cpu_s=0.0, rows=rows, stats=stats)


def test_marks_become_samples() -> None:
    samples = TrainerSamples(began_s=100.0)
    for second in range(1, 6):
        samples.add(mark(100.0 + second, 1000 * second, 0.5 * second))
    verdict = samples.verdict(spec_with(cluster={"threads": 1}), cores=4)
    assert verdict.rows_per_s == pytest.approx(1000)
    assert (verdict.trainer_wait, verdict.limit, verdict.stage) == (0.5, "threads", "ops")
    assert verdict.interval is not None


def test_marks_within_a_second_are_one_sample() -> None:
    samples = TrainerSamples(began_s=100.0)
    samples.add(mark(101.0, 1000, 0.5))
    samples.add(mark(101.2, 1200, 0.6))
    samples.add(mark(101.4, 1400, 0.7))
    verdict = samples.verdict(spec_with(), cores=4)
    assert verdict.rows_per_s == pytest.approx(1000)
    assert verdict.interval is None


def test_before_the_first_batch_there_is_nothing_to_say() -> None:
    samples = TrainerSamples(began_s=None)
    samples.add(mark(1.0, 0, 0.0))
    assert samples.verdict(spec_with(), cores=4).sentence.startswith("Nothing was delivered")


def test_a_line_is_about_its_own_epoch() -> None:
    samples, spec = TrainerSamples(began_s=100.0), spec_with(cluster={"threads": 1})
    first = samples.epoch_line(mark(102.0, 2000, 1.0), spec, cores=4)
    assert first.startswith("epoch 0: 1 k rows/s. Trainer waits 50%: ops take 100% of the block threads' time")
    assert "Best advice: cluster: {threads: 2} (2.00x rows/s predicted)." in first
    second = samples.epoch_line(mark(112.0, 3000, 1.1, epoch=1), spec, cores=4)
    assert second.startswith("epoch 1: 100 rows/s. Nothing: your trainer is the limit. It waits 1.0%")
    assert "advice" not in second


def test_headspace_is_the_trainers_own_pace() -> None:
    now = [0.0]
    probe = Headspace("batch", 10, steps=4, rows_per_s=20.0, clock=lambda: now[0])
    assert probe.gain == 1.0
    for step, batch in enumerate(probe):
        assert batch == "batch"
        now[0] += 5.0 if step == 0 else 0.25  # the first one warms up
    assert (probe.steps, probe.seconds, probe.rows_per_s, probe.gain) == (4, 1.0, 40.0, 2.0)


def test_headspace_that_was_left_early_counts_whole_steps() -> None:
    now = [0.0]
    probe = Headspace("batch", 10, steps=100, rows_per_s=20.0, clock=lambda: now[0])
    for step, _ in enumerate(probe):
        if step == 3:
            break
        now[0] += 0.5
    assert (probe.steps, probe.rows_per_s) == (2, 20.0)
