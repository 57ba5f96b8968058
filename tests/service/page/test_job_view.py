"""What the live page shows of a job: sums, worst ranks, the straggler, the rest of the time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from page_statuses import START_S, rank_at, status_at, troubled

from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.wire.run_status import FeederDecision, FeederStatus
from feedline.service.page.job_view import JobView, view_job
from feedline.service.page.status_history import StatusHistory


def view_of(*moments: list[FeederStatus], job: str = "job-a") -> JobView:
    history = StatusHistory()
    for number, statuses in enumerate(moments):
        history.add(statuses, now_s=START_S + number)
    view = view_job(history, job)
    assert view is not None
    return view


def host(number: int, seconds: float, *waits: float) -> FeederStatus:
    """A feeder of a host, with a rank for each wait."""
    ranks = tuple(rank_at(2 * number + each, seconds, wait=wait) for each, wait in enumerate(waits))
    return replace(status_at(seconds), feeder=f"feeder-{number}", host=f"node-{number}", ranks=ranks)


def test_numbers_of_two_hosts_are_one_job():
    view = view_of(*([host(1, at, 0.3, 0.3), host(0, at, 0.1, 0.5)] for at in (10, 20)))
    assert view.hosts == ("node-0", "node-1")  # by rank
    assert [row.status.rank for row in view.ranks] == [0, 1, 2, 3]
    assert view.now.rows_per_s == pytest.approx(40_000)
    assert view.rows == 4 * 200_000
    assert view.now.trainer == pytest.approx(0.5)
    assert (view.now.blocks, view.now.window, view.ready, view.slots) == (12, 16, 8, 32)
    assert view.cores == 16
    assert view.work.cached == CacheCounts(found=4 * 600, computed=4 * 200, nbytes_read=4 * 8_000_000)


def test_stages_are_shares_of_computing():
    view = view_of([status_at(10)])
    assert {stage.name: round(stage.share, 3) for stage in view.stages} == {
        "store wait": 0.062,
        "decoding": 0.625,
        "ops": 0.188,
        "encoding": 0.125,
    }
    assert sum(stage.share for stage in view.stages) == pytest.approx(1)


def test_the_rest_of_the_time_is_that_of_all_epochs_of_the_last_rank():
    view = view_of(*([status_at(at)] for at in (10, 20)))
    steps = 3 * 4000 - 200
    assert view.eta_s == pytest.approx(steps / 10)
    assert view.done == pytest.approx(200 / 12_000)
    assert {row.eta_s for row in view.ranks} == {view.eta_s}


def test_the_rank_whose_trainer_waits_more_than_the_others_is_the_straggler():
    view = view_of(*([host(0, at, 0.1, 0.4), host(1, at, 0.1, 0.12)] for at in (10, 20)))
    assert [row.status.rank for row in view.ranks if row.straggler] == [1]


def test_slow_ranks_that_are_alike_do_not_take_turns():
    view = view_of(*([host(0, at, 0.1, 0.41, 0.1), host(1, at, 0.12, 0.4, 0.1)] for at in (10, 20)))
    slow = [row.status.rank for row in view.ranks if row.facts is not None and (row.facts.trainer_wait or 0) > 0.3]
    assert len(slow) == 2
    assert [row.status.rank for row in view.stragglers] == slow


@pytest.mark.parametrize(("behind", "waits", "slow"), [(9, (0.6, 0.1), [1]), (8, (0.3, 0.3), [])])
def test_the_rank_that_is_more_than_a_ring_behind_is_the_straggler_whoever_waits(
    behind: int, waits: tuple[float, float], slow: list[int]
):
    def moment(at: float) -> list[FeederStatus]:
        status = host(0, at, *waits)
        first, last = status.ranks
        return [replace(status, ranks=(first, replace(last, stats=replace(last.stats, step=last.stats.step - behind))))]

    assert [row.status.rank for row in view_of(moment(10), moment(20)).stragglers] == slow


@pytest.mark.parametrize("waits", [(0.30, 0.32), (0.9,), (0.0, 0.0)])
def test_ranks_that_are_alike_have_no_straggler(waits: tuple[float, ...]):
    view = view_of(*([host(0, at, *waits)] for at in (10, 20)))
    assert not any(row.straggler for row in view.ranks)


@pytest.mark.parametrize("state", ["planning", "waiting for files"])
def test_a_rank_whose_plan_is_not_there_is_no_straggler_and_has_no_step(state: Any):
    def moment(at: float) -> list[FeederStatus]:
        status = host(0, at, 0.3, 0.3)
        return [replace(status, ranks=(status.ranks[0], replace(status.ranks[1], state=state)))]

    view = view_of(moment(10), moment(20))
    assert not any(row.straggler for row in view.ranks)
    assert view.state == "feeding"
    assert [row.done is None for row in view.ranks] == [False, True]


def test_decisions_are_the_newest_first_and_troubles_name_their_rank():
    view = view_of([troubled(status_at(10))])
    assert [each.topic for each in view.decisions] == ["workers", "window"]
    assert [each.source for each in view.findings] == ["rank 0", "rank 0"]
    assert [each.source for each in view.errors] == ["rank 1"]
    assert (view.lost, view.regained) == (2, 2)


def test_the_limit_is_sought_at_the_rank_whose_trainer_waits_most():
    view = view_of(*([host(0, at, 0.1, 0.4), host(1, at, 0.2, 0.3)] for at in (10, 20)))
    assert view.slowest is not None
    assert (view.slowest.rank.rank, view.slowest.feeder.host) == (1, "node-0")
    assert view.slowest.facts.trainer_wait == pytest.approx(0.4)
    assert view_of([host(0, 10, 0.1)]).slowest is None


def test_trainers_that_count_epochs_by_themselves_see_what_is_done_of_the_epoch():
    """After 20 s a rank is at step 200 of 4,000."""
    for epochs in (0, 3):
        views = [replace(status_at(at), epochs=epochs) for at in (10, 20)]
        ranks = [replace(rank, stats=replace(rank.stats, epoch=5)) for rank in views[-1].ranks]
        view = view_of([views[0]], [replace(views[1], ranks=tuple(ranks))])
        assert (view.done, view.of_epoch) == (pytest.approx(200 / 4_000), True)
        assert view.eta_s == pytest.approx(3800 / 10)
        assert {(row.status.stats.epoch, row.epochs) for row in view.ranks} == {(5, 0)}


def test_a_warning_of_every_epoch_and_rank_is_one_line():
    status = status_at(10, ranks=6)
    text = "feature 'x' is not as expected in epoch {}: got null_rate 0.2, expected <= 0.1"
    ranks = [replace(rank, findings=(text.format(0), text.format(1), "other")) for rank in status.ranks]
    view = view_of([replace(status, ranks=tuple(ranks))])
    assert view.findings == (("ranks 0, 1, 2, 3 and 2 more", text.format(1)), ("ranks 0, 1, 2, 3 and 2 more", "other"))


def test_decisions_about_windows_leave_room_for_others():
    windows = [FeederDecision(at_s=START_S + each, topic="window", text=str(each)) for each in range(40)]
    workers = FeederDecision(at_s=START_S - 100, topic="workers", text="6 workers")
    view = view_of([replace(status_at(10), decisions=(workers, *windows))])
    assert [each.text for each in view.decisions] == ["39", "38", "37", "6 workers"]
