"""What is read of clients and deployments in private: totals of workers, whether they scale, what could not start."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, SpecCluster, Status
from distributed.deploy.cluster import Cluster
from pipelines import eventually
from schedulers import connected, local_cluster

from feedline.service.dask_patches import versions
from feedline.service.dask_patches.deployments import forget_unstarted, has_fixed_workers, worker_totals


def test_totals_are_read_without_a_question_or_asked_of_the_scheduler(monkeypatch: pytest.MonkeyPatch):
    with local_cluster(workers=2, threads=3) as local, connected(local) as cluster:
        assert eventually(lambda: (worker_totals(cluster.client) or {}).get("total_threads") == 6)
        with monkeypatch.context() as patch:
            patch.setattr(Client, "sync", None)
            assert cluster.connection.workers() == 2
        monkeypatch.setattr(versions, "INSTALLED", "2027.3.0")
        assert worker_totals(cluster.client) is None
        assert eventually(lambda: (cluster.connection.workers(), cluster.connection.threads()) == (2, 6))


class FixedDeployment(Cluster):
    """A deployment that cannot scale."""

    _supports_scaling = False


class Node:
    """A worker of a deployment."""

    def __init__(self, status: Status) -> None:
        self.status = status


def test_deployments_scale_unless_they_say_otherwise(monkeypatch: pytest.MonkeyPatch):
    assert Cluster._supports_scaling is True
    assert isinstance(SpecCluster._supports_scaling, property)
    assert has_fixed_workers(object.__new__(FixedDeployment))
    assert not has_fixed_workers(object.__new__(Cluster))
    assert not has_fixed_workers(SimpleNamespace())
    monkeypatch.setattr(versions, "INSTALLED", "2027.3.0")
    assert not has_fixed_workers(object.__new__(FixedDeployment)), "which then refuses by itself"


@pytest.mark.parametrize(("version", "left"), [(versions.INSTALLED, 1), ("2027.3.0", 2)])
def test_workers_that_could_not_start_are_forgotten(version: str, left: int, monkeypatch: pytest.MonkeyPatch):
    with local_cluster(workers=0) as local:
        assert isinstance(local._created, weakref.WeakSet)
    monkeypatch.setattr(versions, "INSTALLED", version)
    deployment: Any = object.__new__(SpecCluster)
    nodes = [Node(Status.created), Node(Status.closed)]
    deployment._created = weakref.WeakSet(nodes)
    deployment.status = Status.closed
    forget_unstarted(deployment)
    assert len(deployment._created) == left
    assert nodes[1] in deployment._created
