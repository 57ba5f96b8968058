"""A running job is explained from its feeders' statuses, the last one from its last status."""

from __future__ import annotations

from dataclasses import replace

import pytest
from explained_runs import spec_with
from feeder_statuses import STATUS

from feedline.errors import PlanError
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.wire.facts import BlockStats, FeederStats
from feedline.loader.wire.run_status import FeederStatus, RankStatus
from feedline.workbench.explain.explained_costs import Measuring
from feedline.workbench.explain.observed_runs import explain_last, watch_feeders

SPEC = spec_with(cluster={"threads": 2})


def rank(number: int, rows: int, stalled_s: float, trainer: int = 77) -> RankStatus:
    blocks = BlockStats(
        blocks=rows // 100,
        rows=rows,
        times=BlockTimes(read_s=rows / 500, read_cpu_s=rows / 500),
    )
    stats = FeederStats(batches=rows // 10, rows=rows, threads=2, fed_s=rows / 1000, delivery=blocks)
    return RankStatus(rank=number, state="feeding", stats=stats, stalled_s=stalled_s, trainer=trainer)


def status(now_s: float, *ranks: RankStatus, job: str = "job", feeder: str = "f") -> FeederStatus:
    return replace(STATUS, job=job, feeder=feeder, started_s=0.0, now_s=now_s, cpu_s=0.0, ranks=ranks)


class Clock:
    """Statuses of a job that go on by a second at each pause of four, beside those of another job."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def statuses(self) -> list[FeederStatus]:
        second = int(self.seconds)
        own = status(100.0 + second, rank(0, 1000 * second, 0.1 * second), rank(1, 1000 * second, 0.5 * second))
        return [own, status(100.0 + second, rank(0, 5, 0.0), job="another", feeder="g")]

    def pause(self, seconds: float) -> None:
        self.seconds += seconds


def test_a_running_job_is_explained_by_rank() -> None:
    clock = Clock()
    found = watch_feeders(SPEC, "job", clock.statuses, Measuring(seconds=6.0, stop=lambda: False), pause=clock.pause)
    assert [each.rank for each in found.ranks] == [0, 1]
    assert found.slowest.rank == 1
    assert len(found.slowest.samples) == 6
    verdict = found.slowest.verdict()
    assert (verdict.limit, verdict.stage, verdict.rows_per_s) == ("cores", "decoding", 1000.0)
    assert verdict.trainer_wait == pytest.approx(0.5)
    assert (found.seconds, found.stopped, found.source) == (6.0, False, "running")


def test_threads_of_the_feeder_that_nobody_counts_use_its_cores() -> None:
    """Two ranks' blocks take 2 CPU-s each per second; the process takes 4.5."""
    seen = iter(replace(status(n, rank(0, 1000 * n, 0.5), rank(1, 1000 * n, 0.5)), cpu_s=4.5 * n) for n in range(9))
    found = watch_feeders(
        SPEC, "job", lambda: [next(seen)], Measuring(seconds=2.0, stop=lambda: False), pause=lambda _: None
    )
    assert [each.samples[0].other_cpu_s for each in found.ranks] == pytest.approx([0.5, 0.5])
    workers = spec_with(cluster={"workers": 2})
    seen = iter(replace(status(n, rank(0, 1000 * n, 0.5)), form="processes", cpu_s=0.25 * n) for n in range(9))
    found = watch_feeders(
        workers, "job", lambda: [next(seen)], Measuring(seconds=2.0, stop=lambda: False), pause=lambda _: None
    )
    assert found.slowest.samples[0].other_cpu_s == pytest.approx(0.25)


def test_an_interrupt_explains_what_was_seen() -> None:
    clock = Clock()
    found = watch_feeders(
        SPEC, "job", clock.statuses, Measuring(seconds=60.0, stop=lambda: clock.seconds >= 3), pause=clock.pause
    )
    assert (found.seconds, found.stopped) == (3.0, True)


def test_a_run_that_waits_for_files_has_nothing_to_explain() -> None:
    waiting = replace(rank(0, 1000, 0.0), state="waiting for files")
    with pytest.raises(PlanError, match=r"nothing to explain: got a run of .* that waits for files to land, expected"):
        watch_feeders(SPEC, "job", lambda: [status(1.0, waiting)], Measuring(seconds=0.0, stop=lambda: False))


def test_a_new_trainer_begins_new_samples() -> None:
    first, second = status(1.0, rank(0, 1000, 0.0)), status(2.0, rank(0, 100, 0.0, trainer=78))
    seen = iter([first, second, *[status(3.0, rank(0, 1100, 0.5, trainer=78))] * 9])
    found = watch_feeders(
        SPEC, "job", lambda: [next(seen)], Measuring(seconds=1.0, stop=lambda: False), pause=lambda _: None
    )
    assert [sample.rows for sample in found.slowest.samples] == [1000]


@pytest.mark.parametrize(
    "others", [[], [status(1.0, rank(0, 5, 0.0), job="another")], [status(1.0, rank(0, 0, 0.0, 0))]]
)
def test_no_run_to_attach_to(others: list[FeederStatus]) -> None:
    with pytest.raises(PlanError, match=r"there is no run of this pipeline to attach to: got .*, expected a feeder"):
        watch_feeders(SPEC, "job", lambda: others, Measuring(seconds=1.0, stop=lambda: False))


def test_the_last_run_is_one_sample() -> None:
    ended = status(9.0, replace(rank(0, 4000, 2.0), state="ended"), rank(1, 0, 0.0))
    found = explain_last(SPEC, ended)
    assert [each.rank for each in found.ranks] == [0]
    verdict = found.slowest.verdict()
    assert (verdict.rows_per_s, verdict.trainer_wait, verdict.interval) == (1000.0, 0.5, None)


def test_a_run_that_died_after_its_first_batch_has_no_rate() -> None:
    crashed = replace(rank(0, 10, 0.0), stats=replace(rank(0, 10, 0.0).stats, fed_s=0.0), error="DataError: x")
    assert "there is no rate to explain yet" in explain_last(SPEC, status(9.0, crashed)).slowest.verdict().sentence


def test_the_straggler_of_many_ranks_is_explained() -> None:
    ranks = [replace(rank(number, 1000, 0.9 if number == 17 else 0.05)) for number in range(64)]
    found = explain_last(SPEC, status(9.0, *ranks))
    assert found.slowest.rank == 17


@pytest.mark.parametrize("last", [None, status(9.0, rank(0, 0, 0.0))])
def test_no_last_run(last: FeederStatus | None) -> None:
    with pytest.raises(PlanError, match=r"there is no last run to explain: got .*Run it first"):
        explain_last(SPEC, last)
