"""The feeder's loop, and what it tells its cluster."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from pipelines import PATIENCE_S
from ringless_trainers import trainers_of, write_pipeline

from feedline.loader.ring.channel import ChannelClosedError, pair
from feedline.service.cluster.cluster import Cluster
from feedline.service.feeder import Feeder
from feedline.service.trainer_session import TrainerSession
from feedline.spec.cluster_section import ClusterSpec


class Session:
    """A trainer that left."""

    def __init__(self) -> None:
        self.channel, theirs = pair()
        theirs.close()

    def close(self) -> None:
        pass


def test_trainers_share_the_threads_equally():
    ended: list[Any] = []
    with closing(Cluster(ClusterSpec(dashboard=False), threads=5, early=True)) as cluster:
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


def test_a_trainer_that_reads_nothing_delays_no_other(tmp_path: Path):
    """Its socket has no room for the feeder's next message; later it reads all of them, in order."""
    questions = 2000  # a packet takes about 1 KB of the socket's 208
    with trainers_of(write_pipeline(tmp_path, steps=40), ranks=2) as (stuck, other), ThreadPoolExecutor(1) as pool:
        stuck.begin(last=True)
        for _ in range(questions):
            stuck.channel.send_json({"type": "diagnose"})
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
            trainer.channel.send_json({"type": "diagnose"})
        trainer.channel.send_json({"type": "begin", "stream": "?"})
        kinds = [trainer.channel.receive()[1]["type"] for _ in range(2001)]
        assert kinds == ["diagnosis"] * 2000 + ["error"]
        with pytest.raises(ChannelClosedError):
            trainer.channel.receive()
