"""The status of a real feeder, while it runs and when it has ended."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from pipelines import PATIENCE_S, Place, eventually, furnished
from ringless_trainers import trainers_of, write_pipeline
from schedulers import local_cluster

from feedline import FeedlineDataset
from feedline.config import load_spec
from feedline.errors import DataError
from feedline.loader.ring.status_files import live_statuses
from feedline.loader.wire.run_status import FeederStatus
from feedline.service import feeder_status as status_gatherer
from feedline.service.feeder_status import StatusGatherer
from feedline.service.last_runs import LastRun, last_status
from feedline.service.scheduler.extension import statuses_of

ROWS = 20_000


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def live(condition: Any) -> FeederStatus:
    """The status of the only feeder, as soon as a condition holds."""
    found = eventually(lambda: [each for each in live_statuses() if condition(each)])
    assert len(found) == 1
    return cast("FeederStatus", found[0])


def test_a_run_is_seen_while_it_runs_and_afterwards(place: Place):
    path = place.write(epochs=2)
    with FeedlineDataset(path) as dataset:
        iterator = iter(dataset)
        for _ in range(10):
            next(iterator)
        status = live(lambda each: each.ranks and each.ranks[0].stats.batches >= 10 and each.ranks[0].plan is not None)
        feeder = psutil.Process(status.pid)
        assert feeder.ppid() == os.getpid()
        assert (status.name, status.pipeline, status.form) == ("clicks", str(path), "threads")
        assert (status.workers, status.threads, status.epochs, status.cores) == (1, 1, 0, status.cores)
        assert 0 < status.cpu_s <= sum(feeder.cpu_times()[:2]) + 0.1
        assert status.started_s < status.now_s
        [rank] = status.ranks
        assert (rank.rank, rank.state, rank.trainer, rank.trainers) == (0, "feeding", os.getpid(), 1)
        assert rank.plan is not None
        assert (rank.plan.rows, rank.plan.steps, rank.plan.plan) == (ROWS, ROWS // 256, dataset.state_dict()["plan"])
        assert any(decision.topic == "window" for decision in status.decisions)
        for _ in iterator:
            pass
    assert live_statuses() == []
    last = last_status(load_spec(path))
    assert last is not None
    assert (last.feeder, last.ranks[0].state, last.ranks[0].error) == (status.feeder, "ended", "")
    assert last.ranks[0].stats.rows >= ROWS // 256 * 256
    assert last.ranks[0].stats.delivery.blocks > 0


def test_the_scheduler_of_a_cluster_knows_its_feeders(tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch):
    """By address, as pages and metrics of a scheduler see them."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))

    def delivering() -> list[FeederStatus]:
        return [each for each in source() if each.ranks and each.ranks[0].stats.batches >= 5]

    with local_cluster("feedline.service.scheduler.preload", workers=2) as local:
        source = statuses_of(local.scheduler)
        assert source is not None
        path = Place(folder=tmp_path, table=clicks).write(cluster={"scheduler": local.scheduler_address})
        with FeedlineDataset(path) as dataset:
            iterator = iter(dataset)
            for _ in range(5):
                next(iterator)
            [status] = eventually(
                lambda: [each for each in source() if each.ranks and each.ranks[0].stats.batches >= 5]
            )
            assert (status.form, status.workers, status.threads) == ("scheduler", 2, 2)
            assert (status.lost, status.regained) == (0, 0)
            jobs = local.scheduler.plugins["feedline-jobs"].book.reports(time.time())
            assert [(report.job, report.feeder) for report in jobs] == [(status.job, status.feeder)]
        assert eventually(lambda: source() == [])
    last = last_status(load_spec(path))
    assert last is not None
    assert last.ranks[0].state == "ended"


def test_an_error_is_kept_without_the_value_that_it_quotes(place: Place):
    features = {
        "dense": {"dense_1": [{"fill_null": 0}]},
        "categorical": {"id_0": {"column": "id_0", "expect": {"max": "< 3"}}},
        "label": {"clicked": []},
    }
    path = place.write(features=features, on_expect="error")
    with FeedlineDataset(path) as dataset, pytest.raises(DataError, match="got max"):
        for _ in dataset:
            pass
    last = last_status(load_spec(path))
    assert last is not None
    [rank] = last.ranks
    assert rank.error.startswith("DataError: feature 'id_0' is not as expected in epoch 0 (the log has the value)")
    assert [finding.partition(": ")[2].partition(",")[0] for finding in rank.findings] == ["got max …"]


def test_what_a_trainer_did_is_kept_when_it_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its feeder goes on to serve the other rank."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    path = write_pipeline(tmp_path, steps=8)
    spec = load_spec(path)

    def kept() -> list[tuple[str, int]]:
        status = last_status(spec)
        if status is not None:  # a rank that has ended holds nothing
            ended = [each for each in status.ranks if each.state == "ended"]
            assert {(each.ready, each.held_bytes, each.stats.blocks_in_flight) for each in ended} <= {(0, 0, 0)}
        return [] if status is None else [(rank.state, rank.stats.batches) for rank in status.ranks]

    with trainers_of(path, ranks=2, with_status=True) as (first, second):
        first.begin(last=True)
        assert first.read() == [0, 1, 2, 3]
        first.channel.close()
        assert eventually(lambda: kept() and kept()[0] == ("ended", 4))
        assert kept()[1][1] == 0
        second.begin(last=True)
        assert second.read() == [0, 1, 2, 3]
    assert kept() == [("ended", 4)] * 2


def test_ranks_wait_before_trainers_come_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A feeder in this process, whose loop looks as often as it can."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    states: list[str] = []
    gatherers: list[StatusGatherer] = []
    original = StatusGatherer._gather

    def gather(gatherer: StatusGatherer, sessions: Any) -> None:
        if not gatherers:
            gatherers.append(gatherer)
            gatherer._publish_ranks()
            states.extend(rank.state for rank in gatherer.status.ranks)
        original(gatherer, sessions)

    monkeypatch.setattr(StatusGatherer, "_gather", gather)
    with trainers_of(write_pipeline(tmp_path, steps=8), ranks=2, with_status=True) as (first, second):
        for trainer in (first, second):
            trainer.begin(last=True)
            assert trainer.read() == [0, 1, 2, 3]
    [gatherer] = gatherers
    assert states == ["waiting", "waiting"]
    assert [(rank.state, rank.stats.batches) for rank in gatherer.status.ranks] == [("ended", 4)] * 2
    assert os.getpid() not in {each.pid for each in live_statuses()}


def test_a_status_that_cannot_be_gathered_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))

    def fail(gatherer: StatusGatherer, sessions: Any) -> None:
        raise ZeroDivisionError("of nothing")

    with trainers_of(write_pipeline(tmp_path, steps=4), with_status=True) as (trainer,):
        with monkeypatch.context() as patch:
            patch.setattr(StatusGatherer, "_gather", fail)
            trainer.begin(last=True)
            assert trainer.read() == [0, 1, 2, 3]
            assert eventually(lambda: caplog.records)
        assert live(lambda each: each.ranks and each.ranks[0].stats.batches == 4)
        monkeypatch.setattr(StatusGatherer, "_gather", fail)
    lines = [record.getMessage() for record in caplog.records if record.exc_info is None]
    assert lines == ["the feeder's status cannot be gathered: ZeroDivisionError: of nothing"] * 2


def test_a_store_that_does_not_answer_delays_the_end_of_a_feeder_by_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    monkeypatch.setattr(status_gatherer, "_LAST_S", 0.05)
    writing, answered = threading.Event(), threading.Event()

    def write(last_run: LastRun, status: FeederStatus) -> None:
        writing.set()
        assert answered.wait(PATIENCE_S)

    monkeypatch.setattr(LastRun, "write", write)
    try:
        with trainers_of(write_pipeline(tmp_path, steps=4), with_status=True) as (trainer,):
            trainer.begin(last=True)
            assert trainer.read() == [0, 1, 2, 3]
        assert writing.is_set()
        assert not answered.is_set(), "the feeder has ended before"
    finally:
        answered.set()
    assert eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "feedline-status"])
