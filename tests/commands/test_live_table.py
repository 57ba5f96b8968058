"""The display of `feedline run` shows the current state of each rank, in terminals of any width."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from answers import answer_with
from rich.console import Console

from feedline.commands.live_table import Counters, LiveTable, RankView, RecentRates, display, line, short_line
from feedline.commands.run import drain_view, trainer_view
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.wire.facts import BlockStats, FeederStats
from feedline.loader.wire.run_status import FILES_PHASE
from feedline.progress import Progress
from feedline.service.drain import DrainProgress
from feedline.service.feeder.supervisor import RankReports

VIEW = RankView(
    rank=0,
    state="feeding",
    epoch=2,
    epochs=12,
    step=40,
    steps=100,
    rows=123_456,
    rows_per_s=45_678.0,
    batches_per_s=0.5,
    ring_fill=0.5,
    waits="feeder",
)


class Clock:
    """A clock set by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    return Clock()


def counters(rows: int, trainer_s: float = 0.0, feeder_s: float = 0.0) -> Counters:
    return Counters(rows=rows, batches=rows // 10, trainer_s=trainer_s, feeder_s=feeder_s)


def test_a_rank_that_waits_for_files_says_so_instead_of_its_last_step():
    progress = Progress(phase=FILES_PHASE, done=34, total=None, unit="s")
    view = trainer_view(RankReports(rank=0, trainer=7, planning=progress), RecentRates(), 1)
    assert line(view) == "rank 0 waiting for files: 34 s"
    view = replace(VIEW, state=view.state, step=100, planning=progress)
    assert line(view) == "rank 0 waiting for files: 34 s"
    assert view.remaining_s is None
    assert "100/100" in line(replace(view, planning=None))


def test_rates_cover_the_last_seconds(clock: Clock):
    """1,000 rows/s for a minute, then 100: ten seconds later the rate is 100."""
    pace, rows, seen = RecentRates(clock), 0, {}
    for tick in range(4 * 80):
        clock.now = tick / 4
        rows += 250 if clock.now < 60 else 25
        seen[clock.now] = pace.add(counters(rows))
    assert seen[50].rows_per_s == pytest.approx(1000)
    assert 100 < seen[65].rows_per_s < 1000
    assert (seen[75].rows_per_s, seen[75].batches_per_s) == (pytest.approx(100), pytest.approx(10))


def test_rates_begin_with_the_first_batch_of_each_trainer(clock: Clock):
    pace = RecentRates(clock)
    for clock.now in (0.0, 100.0):
        assert pace.add(counters(0)).rows_per_s == 0
    for clock.now, rows in ((200.0, 500), (202.0, 1500)):
        change = pace.add(counters(rows))
    assert change.rows_per_s == 500
    clock.now = 203.0
    assert pace.add(counters(10)).rows_per_s == 0  # the first of another trainer
    clock.now = 205.0
    assert pace.add(counters(30)).rows_per_s == 10


def test_a_stalled_trainer_has_a_rate_of_zero(clock: Clock):
    """Nothing new is counted: the rate falls to zero within the window."""
    pace = RecentRates(clock)
    for clock.now, rows in ((0.0, 10), (1.0, 1010), (6.0, 1010), (10.9, 1010)):
        assert (pace.add(counters(rows)).rows_per_s > 0) is (clock.now > 0)
    clock.now = 11.1
    assert pace.add(counters(1010)).rows_per_s == 0


def test_a_rank_with_a_trainer_shows_what_its_feeder_counts(clock: Clock):
    """The fields of the feeder's statistics are used; an old wait no longer counts."""
    rank, pace = RankReports(rank=3, trainer=77), RecentRates(clock)
    stats = FeederStats(batches=1, rows=256, wait_blocks_s=30.0, epoch=2, step=1, steps=78, ring_slots=4, ring_free=1)
    rank.stats = stats
    trainer_view(rank, pace, 12)
    clock.now = 4.0
    rank.stats = replace(stats, batches=21, rows=256 * 21, wait_slots_s=3.0, step=21)
    view = trainer_view(rank, pace, 12)
    assert (view.rank, view.state, view.epoch, view.epochs, view.waits) == (3, "feeding", 2, 12, "feeder")
    assert (view.rows, view.rows_per_s, view.batches_per_s, view.ring_fill) == (5376, 1280, 5, 0.75)
    assert view.remaining_s == (78 - 21 + 9 * 78) / 5
    rank.stats = None
    assert trainer_view(rank, pace, 12).remaining_s is None


def test_a_drained_rank_has_no_trainer_that_could_wait(clock: Clock):
    pace = RecentRates(clock)
    drained = DrainProgress(rank=0, answer=answer_with(steps=10), rows=100, batches=1, seconds=50.0, step=1)
    drain_view(drained, pace, 1)
    clock.now = 2.0
    drained.rows, drained.batches, drained.step, drained.seconds = 500, 5, 5, 52.0
    view = drain_view(drained, pace, 1)
    assert (view.waits, view.rows_per_s, view.remaining_s) == ("", 200, 2.5)
    drained.done = True
    assert drain_view(drained, pace, 1).rows_per_s == pytest.approx(500 / 52)


@pytest.mark.parametrize(
    ("left_s", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3723, "1:02:03"), (273_600, "3d 4h")]
)
def test_lines(left_s: float, text: str):
    view = replace(VIEW, epochs=3, step=99, batches_per_s=1 / left_s)
    assert line(view) == (
        f"rank 0 feeding: epoch 3 of 3, step 99/100 (99%), 123,456 rows, 45,678 rows/s, ETA {text}, ring 50% full, "
        "feeder waits"
    )
    assert short_line(view) == f"rank 0: epoch 3 of 3, 99%, 45,678 rows/s, ETA {text}, feeder waits"
    assert line(replace(VIEW, steps=0, state="waiting")) == short_line(replace(VIEW, steps=0, state="waiting"))
    assert "epoch 14, " in line(replace(VIEW, epoch=13))


def test_a_line_says_what_the_cache_had(clock: Clock):
    delivery = BlockStats(blocks=1, cached=CacheCounts(found=95, computed=5))
    rank = RankReports(rank=3, trainer=77, stats=FeederStats(rows=256, step=1, steps=78, delivery=delivery))
    assert ", 95% found in the cache" in line(trainer_view(rank, RecentRates(clock), 1))
    rank.stats = FeederStats(rows=256, step=1, steps=78)
    assert "cache" not in line(trainer_view(rank, RecentRates(clock), 1))
    drained = DrainProgress(rank=0, answer=answer_with(steps=10), reports=SimpleNamespace(stats=FeederStats()))
    assert "cache" not in line(drain_view(drained, RecentRates(clock), 1))
    drained.reports = SimpleNamespace(stats=FeederStats(delivery=BlockStats(cached=CacheCounts())))
    assert ", 0% found in the cache" in line(drain_view(drained, RecentRates(clock), 1))


def rendered(width: int, *views: RankView) -> list[str]:
    """Render for a terminal of some width."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    console.print(display(console, "clicks", views))
    return out.getvalue().splitlines()


def test_a_wide_terminal_has_a_table():
    text = "\n".join(rendered(110, VIEW, replace(VIEW, rank=1)))
    for word in ("3 of 12", "40/100", "45,678", "32:00", "████░░░░", "feeder"):
        assert word in text


@pytest.mark.parametrize("width", [79, 70, 40])
def test_a_narrow_terminal_has_one_whole_line_per_rank(width: int):
    lines = rendered(width, VIEW, replace(VIEW, rank=1))
    assert [text[:6] for text in lines] == ["rank 0", "rank 1"]
    assert all(len(text) <= width for text in lines)
    if width >= 70:
        assert lines[1] == "rank 1: epoch 3 of 12, 40%, 45,678 rows/s, ETA 32:00, feeder waits"


def test_a_table_that_does_not_fit_becomes_lines():
    """Nothing is cut off: long numbers are shown in lines."""
    large = replace(VIEW, step=1_234_567, steps=12_345_678, rows=123_456_789_012)
    assert not any("┃" in text for text in rendered(90, large))
    assert any("┃" in text for text in rendered(90, VIEW))


def test_ranks_that_plan_have_a_line_of_progress_before_the_table():
    out = io.StringIO()
    plans = replace(VIEW, steps=0, state="planning", planning=Progress(phase="counting", done=1, total=4, unit="rows"))
    with LiveTable(Console(file=out, width=110, force_terminal=True, color_system=None), title="clicks") as progress:
        progress.show([replace(plans, planning=None), plans])
        assert "counting: 1 of 4 rows (25%)" in out.getvalue()
        assert "clicks" not in out.getvalue()
        progress.show([plans, VIEW])
        assert "clicks" in out.getvalue()
    assert line(plans) == "rank 0 planning: counting: 1 of 4 rows"
    assert trainer_view(RankReports(rank=0, trainer=7, planning=plans.planning), RecentRates(), 1).state == "planning"


@pytest.mark.parametrize("terminal", [True, False])
def test_without_a_terminal_there_are_plain_lines(terminal: bool):
    out = io.StringIO()
    with LiveTable(Console(file=out, width=70, force_terminal=terminal, color_system=None), title="clicks") as progress:
        progress.show([VIEW], force=True)
        progress.show([VIEW], force=True)
    assert terminal or out.getvalue().count("rank") == 1, "the last line is not repeated"
    assert (short_line(VIEW) if terminal else line(VIEW) + "\n") in out.getvalue()
    assert ("\x1b" in out.getvalue()) is terminal


def test_a_terminal_that_cannot_be_redrawn_has_plain_lines():
    out = io.StringIO()
    with LiveTable(
        Console(file=out, width=200, force_terminal=True, _environ={"TERM": "dumb"}), title="clicks"
    ) as progress:
        progress.show([VIEW])
        assert out.getvalue() == line(VIEW) + "\n"
