"""The feeder's loop, and what it tells its cluster."""

from __future__ import annotations

from contextlib import closing
from typing import Any, cast

from feedline.service.cluster.cluster import Cluster
from feedline.service.feeder import Feeder
from feedline.service.trainer_session import TrainerSession
from feedline.spec.cluster_section import ClusterSpec


class Session:
    """A trainer that left."""

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
