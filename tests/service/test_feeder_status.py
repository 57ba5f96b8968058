"""The status of a real feeder, while it runs and when it has ended; and what it says of plans, decisions and errors."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import duckdb
import psutil
import pyarrow.parquet as pq
import pytest
from pipelines import PATIENCE_S, Place, eventually, furnished
from ringless_trainers import trainers_of, write_pipeline

from feedline import FeedlineDataset, Pipeline
from feedline.config import load_spec
from feedline.errors import DataError
from feedline.loader.ring.status_files import live_statuses
from feedline.loader.wire.run_status import FeederStatus
from feedline.service import feeder_status as status_gatherer
from feedline.service.feeder_status import DecisionLog, StatusGatherer, plan_status, shown_finding, shown_text
from feedline.service.last_runs import LastRun, last_status

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
    monkeypatch.setattr(status_gatherer, "_WRITE_S", 0.05)

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


def test_a_plan_says_what_it_prunes(tmp_path: Path, clicks: Path):
    """Partitions by their keys, and row groups by statistics of `ts`, which rises from file to file."""
    files = sorted(clicks.rglob("*.parquet"))
    days = sorted({path.parent.name for path in files})
    kept = [path for path in files if path.parent.name != days[0]]
    every = {
        path: [pq.read_metadata(path).row_group(index) for index in range(pq.read_metadata(path).num_row_groups)]
        for path in files
    }
    name = "ts"
    index = pq.read_schema(files[0]).get_field_index(name)
    stops = sorted(group.column(index).statistics.max for path in kept for group in every[path])
    bound = stops[len(stops) // 2]
    column, day = days[0].split("=")
    where = f"{column} > '{day}' and ts > {_literal(bound)}"
    with furnished(tmp_path, clicks) as place:
        status = plan_status(Pipeline.from_yaml(place.write(source={"where": where})).plan())
    groups = sum(map(len, every.values()))
    of_kept = sum(len(every[path]) for path in kept)
    after = [group for path in kept for group in every[path] if group.column(index).statistics.max > bound]
    parts = {part.what: part for part in status.pruning}
    assert (parts["row groups by partitions"].total, parts["row groups by partitions"].kept) == (groups, of_kept)
    assert (parts["row groups by statistics"].total, parts["row groups by statistics"].kept) == (of_kept, len(after))
    left = {path for path in kept for group in every[path] if group.column(index).statistics.max > bound}
    assert (parts["files"].total, parts["files"].kept) == (len(files), len(left))
    sizes = [part.nbytes for part in status.pruning]
    assert all(size is not None and size > 0 for size in sizes)
    [(rows,)] = duckdb.sql(
        f"select count(*) from read_parquet('{clicks}/**/*.parquet', hive_partitioning=true) "
        f"where {column} > '{day}' and ts > {_literal(bound)}"
    ).fetchall()
    assert (status.rows, status.batch_size, status.steps) == (rows, 256, rows // 256)
    assert status.rows_dropped == rows % 256


def _literal(value: object) -> str:
    return str(value) if isinstance(value, (int, float)) else f"'{value}'"


def test_decisions_are_kept_by_topic(caplog: pytest.LogCaptureFixture):
    with closing(DecisionLog()) as log:
        logging.getLogger("feedline.window").warning("before the beginning")
        log.begin()
        for name in ("feedline.window", "feedline.scaling", "feedline.cache"):
            caplog.set_level(logging.INFO, name)
            logging.getLogger(name).info("rank %d: more", 3)
        logging.getLogger("feedline.service.cluster.scheduler_connection").warning("it is gone: got OSError")
        logging.getLogger("feedline.service.feeder.delivery").warning("of another part")
    logging.getLogger("feedline.window").warning("after the end")
    decisions = log.last()
    assert [decision.topic for decision in decisions] == ["window", "workers", "cache", "cluster"]
    assert [decision.text for decision in decisions[::3]] == ["rank 3: more", "it is gone (the log has the value)"]
    assert decisions[0].at_s == pytest.approx(caplog.records[1].created)


def test_the_last_50_are_kept():
    with closing(DecisionLog()) as log:
        log.begin()
        for number in range(60):
            logging.getLogger("feedline.window").warning("%d", number)
        assert [decision.text for decision in log.last()] == [str(number) for number in range(10, 60)]


def test_values_and_secrets_are_left_out():
    assert shown_text("feature x: a value breaks clip: got 'Jane Doe', expected a number") == (
        "feature x: a value breaks clip (the log has the value)"
    )
    assert shown_text("the store s3://me:secret@host/b is slow\nagain") == "the store s3://host/b is slow again"
    assert shown_text("8 blocks in flight, 4 ring slots: the pace is not known yet").endswith("not known yet")


def test_findings_keep_rates_and_no_values():
    text = "feature 'x' is not as expected in epoch 0: got null_rate 0.03, expected <= 0.01; got min -7, expected >= 0"
    assert shown_finding(text) == text.replace("min -7", "min …")
