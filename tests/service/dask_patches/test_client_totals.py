"""A client's totals of all workers are those that it has fetched."""

from __future__ import annotations

import pytest
from distributed import Client
from pipelines import eventually
from schedulers import connected, local_cluster

from feedline.service.dask_patches import versions
from feedline.service.dask_patches.client_totals import worker_totals


def test_totals_are_those_of_the_scheduler(monkeypatch: pytest.MonkeyPatch):
    with local_cluster(workers=2, threads=3) as local, connected(local) as cluster:
        assert eventually(lambda: (worker_totals(cluster.client) or {}).get("total_threads") == 6)
        assert cluster.connection.workers() == 2

        with monkeypatch.context() as patch:
            patch.setattr(versions, "INSTALLED", "2027.3.0")
            assert worker_totals(cluster.client) is None
            asked = lambda: (cluster.connection.workers(), cluster.connection.threads())  # noqa: E731
            assert eventually(lambda: asked() == (2, 6)), "the scheduler is asked"


def test_totals_are_read_without_a_question(monkeypatch: pytest.MonkeyPatch):
    with local_cluster(workers=1) as local, connected(local) as cluster:
        asked: list[object] = []
        monkeypatch.setattr(Client, "sync", lambda *arguments, **_: asked.append(arguments))
        assert worker_totals(cluster.client) is not None
        assert not asked
        monkeypatch.undo()
