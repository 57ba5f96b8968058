"""A scheduler keeps nothing of tasks that are over."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from distributed.spans import SpansSchedulerExtension, SpansWorkerExtension
from schedulers import local_cluster

from feedline.service.dask_patches import versions
from feedline.service.dask_patches.no_spans import drop_spans


def test_what_is_overridden_is_there():
    spans = SpansSchedulerExtension
    assert list(inspect.signature(spans.observe_tasks).parameters) == ["self", "tss", "code", "span_metadata"]
    assert list(inspect.signature(spans.heartbeat).parameters) == ["self", "ws", "data"]
    assert "heartbeat" in vars(SpansWorkerExtension)


@pytest.mark.parametrize(("version", "keeps"), [(versions.INSTALLED, False), ("2027.3.0", True)])
def test_spans_are_kept_by_other_versions_only(version: str, keeps: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(versions, "INSTALLED", version)
    with local_cluster(workers=0) as local:
        scheduler: Any = local.scheduler
        before = scheduler.extensions["spans"]
        assert type(before) is SpansSchedulerExtension
        drop_spans(scheduler)
        assert (scheduler.extensions["spans"] is before) is keeps
        assert keeps or scheduler.extensions["spans"].observe_tasks([], code=()) == {}
