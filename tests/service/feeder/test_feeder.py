"""The loop of a feeder, what it tells its cluster, and what a session counts of its trainer."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from finished_blocks import BLOCK_RESULT
from pipelines import PATIENCE_S
from ringless_trainers import trainers_of, write_pipeline

from feedline.config.cluster_section import ClusterSpec
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.ring.channel import ChannelClosedError, pair
from feedline.loader.wire.codec import WIRE_VERSION, pack, unpack
from feedline.loader.wire.facts import BlockStats, FeederStats, Hello
from feedline.loader.wire.ring_messages import Diagnose, Diagnosis, EpochDone, FeederFailure, PlanAnswer, PlanRequest
from feedline.progress import Progress, report_progress
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.feeder.feeder import Feeder
from feedline.service.feeder.planner import Planner
from feedline.service.feeder.trainer_session import FeederCounters, TrainerSession
from feedline.service.monitoring.block_counts import count_block
from feedline.version import VERSION


class Session:
    """A trainer that left."""

    def __init__(self) -> None:
        self.channel, theirs = pair()
        theirs.close()

    def close(self) -> None:
        pass


def test_trainers_share_the_threads_equally():
    ended: list[Any] = []
    with closing(open_cluster(ClusterRequest(ClusterSpec(dashboard=False), threads=5, early=True))) as cluster:
        feeder = Feeder(cluster, on_end=lambda session, error: ended.append(session))
        assert cluster.threads_per_trainer() == 5
        sessions = [cast("TrainerSession", Session()) for _ in range(6)]
        shares = []
        for session in sessions:
            feeder.add(session)
            shares.append(cluster.threads_per_trainer())
        assert shares == [5, 3, 2, 2, 1, 1]
        for session in sessions:
            feeder._end(session, None)
        assert (ended, cluster.threads_per_trainer()) == (sessions, 5)


def test_the_window_follows_the_pace_as_soon_as_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An epoch may be over before the loop has looked after it once."""
    reasons: list[str] = []

    def adjust(session: TrainerSession, stream: Any) -> None:
        original(session, stream)
        reasons.append(session.counters.window_reason)

    original = TrainerSession._adjust_window
    monkeypatch.setattr(TrainerSession, "_adjust_window", adjust)
    monkeypatch.setattr(Feeder, "_look_after_cluster", lambda feeder: None)
    with trainers_of(write_pipeline(tmp_path, steps=40)) as (trainer,):
        trainer.begin(last=True)
        assert trainer.read() == list(range(40))
    [reason] = reasons
    assert reason.startswith(("the trainer is faster", "the trainer uses up a block"))


def test_a_trainer_that_reads_nothing_delays_no_other(tmp_path: Path):
    """Its socket has no room for the feeder's next message; later it reads all of them, in order."""
    questions = 2000  # a packet takes about 1 KB of the socket's 208
    with trainers_of(write_pipeline(tmp_path, steps=40), ranks=2) as (stuck, other), ThreadPoolExecutor(1) as pool:
        stuck.begin(last=True)
        for _ in range(questions):
            stuck.channel.send_message(Diagnose())
        other.begin(last=True)
        try:
            assert pool.submit(other.read).result(PATIENCE_S) == list(range(20))
            assert pool.submit(stuck.read).result(PATIENCE_S) == list(range(20))
        finally:
            for trainer in (stuck, other):
                trainer.channel.shut_down()


def test_a_trainer_whose_socket_is_full_reads_why_its_session_ended(tmp_path: Path):
    with trainers_of(write_pipeline(tmp_path, steps=4)) as (trainer,):
        for _ in range(2000):
            trainer.channel.send_message(Diagnose())
        trainer.channel.send(b"J" + pack(EpochDone(epoch=0), "begin"))
        kinds = [type(trainer.channel.receive()[1]) for _ in range(2001)]
        assert kinds == [Diagnosis] * 2000 + [FeederFailure]
        with pytest.raises(ChannelClosedError):
            trainer.channel.receive()


def test_a_trainer_of_another_installation_gets_both_versions(tmp_path: Path):
    """Its session ends; the other trainer's goes on."""
    path = write_pipeline(tmp_path, steps=4)
    old = b'J{"type": "hello", "protocol": 8, "feedline": "0.0", "number": 1, "rank": 0, "world_size": 2}'
    mixed = b"J" + pack(PlanRequest(number=2, hello=Hello(rank=0, world_size=2), feedline="0.0"), "hello")
    for packet, name, words in (
        (old, "FeederError", f"got a message of wire version None, expected {WIRE_VERSION}. Install one version"),
        (mixed, "StateError", f"differ in their feedline version: got 0.0, expected {VERSION}. Start both from one"),
    ):
        with trainers_of(path, ranks=2) as (stranger, other):
            stranger.channel.send(packet)
            failure = stranger.channel.receive()[1]
            assert isinstance(failure, FeederFailure)
            assert (failure.name, words in failure.message) == (name, True), failure
            other.begin(last=True)
            assert other.read() == [0, 1]


def test_a_trainer_that_watches_its_plan_hears_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    heard = threading.Event()

    def plan(planner: Planner, hello: Hello, start: Any) -> Any:
        report_progress("counting", 1, 4, "rows")
        assert heard.wait(PATIENCE_S)
        return original(planner, hello, start)

    original = Planner._plan
    with trainers_of(write_pipeline(tmp_path, steps=4)) as (trainer,):
        monkeypatch.setattr(Planner, "_plan", plan)
        trainer.channel.send_message(PlanRequest(number=2, hello=Hello(rank=0, world_size=1), watched=True))
        found = trainer.channel.receive()[1]
        heard.set()
        while not isinstance(trainer.channel.receive()[1], PlanAnswer):
            pass
    assert found == Progress(phase="counting", done=1, total=4, unit="rows")


FOUND = CacheCounts(found=3, nbytes_read=9, waited_s=0.5)
COMPUTED = CacheCounts(computed=1, nbytes_written=8)


def delivered(*cached: CacheCounts | None) -> BlockStats:
    """The sums over a block for each of these counts."""
    stats = BlockStats()
    for counts in cached:
        count_block(stats, replace(BLOCK_RESULT, cached=counts), turnaround_s=3.25)
    return stats


def test_blocks_add_up():
    stats = delivered(None, None)
    assert (stats.blocks, stats.nbytes_read, stats.nbytes_encoded) == (2, 200, 10)
    assert (stats.times, stats.cached) == (BLOCK_RESULT.times + BLOCK_RESULT.times + BlockTimes(queued_s=2.0), None)


@pytest.mark.parametrize(
    ("cached", "total"),
    [
        ((FOUND,), FOUND),
        ((FOUND, COMPUTED, None), FOUND + COMPUTED),
        ((None, CacheCounts()), CacheCounts()),
    ],
)
def test_what_blocks_found_in_the_cache_crosses_the_wire(cached: tuple[CacheCounts | None, ...], total: CacheCounts):
    stats = FeederCounters(delivery=delivered(*cached)).stats()
    assert stats.delivery.cached == total
    assert unpack(FeederStats, pack(stats)) == stats


def test_a_line_says_what_the_cache_had(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="feedline.cache")
    FeederCounters(delivery=delivered(None)).log_cached(0)
    assert not caplog.messages
    FeederCounters(epoch=1, delivery=delivered(FOUND, COMPUTED)).log_cached(2)
    assert caplog.messages == [f"rank 2: after epoch 1, {(FOUND + COMPUTED).describe()}"]
