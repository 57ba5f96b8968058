"""Dask's question how many workers there should be is answered by Feedline, in the scheduler and by its handler."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from distributed import Scheduler
from distributed.deploy.adaptive import Adaptive
from schedulers import local_cluster

from feedline.errors import ClusterError
from feedline.service.dask_patches import versions
from feedline.service.dask_patches.adaptive_target import replace_adaptive_target


def test_dask_asks_what_is_replaced():
    assert list(inspect.signature(Scheduler.adaptive_target).parameters) == ["self", "target_duration"]
    assert "self.scheduler.adaptive_target(" in inspect.getsource(Adaptive.target)
    with local_cluster(workers=0) as local:
        scheduler: Any = local.scheduler
        assert scheduler.handlers["adaptive_target"] == scheduler.adaptive_target
        replace_adaptive_target(scheduler, lambda **_: 7, lambda **_: 3)
        assert scheduler.adaptive_target() == 7
        assert local.sync(local.scheduler_comm.adaptive_target, target_duration="5s") == 3


def test_another_version_of_dask_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(versions, "INSTALLED", "2027.3.0")
    with pytest.raises(ClusterError, match=r"distributed 2027\.3\.0 is not supported"):
        replace_adaptive_target(object(), lambda **_: 7, lambda **_: 3)
