"""Patches of Dask are refused, or left out with one warning, for versions of distributed that are not supported."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Nanny
from schedulers import local_cluster

from feedline.errors import ClusterError
from feedline.service.dask_patches import versions
from feedline.service.dask_patches.scheduler_patches import (
    TaskQueue,
    drop_spans,
    finish_before_retirement,
    remove_silent_workers,
    replace_adaptive_target,
    scheduler_class,
)
from feedline.service.dask_patches.steady_loop import steady, steady_scheduler
from feedline.service.dask_patches.worker_patches import (
    ClosingWorker,
    SchedulerWatch,
    with_recorded_failure,
    worker_class,
)

ROOT = Path(__file__).resolve().parents[3]


def test_supported_versions_are_those_that_are_installed_with_feedline():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"distributed{versions.SUPPORTED}" in project["dependencies"]
    assert f"distributed{versions.SUPPORTED}" in (ROOT / "docker/requirements-worker.txt").read_text().splitlines()
    versions.require("tests pass")


@pytest.mark.parametrize("version", ["2026.8.0", "2026.8.1+3.g0123abc", "2026.12.0"])
def test_supported_versions_are_patched(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(versions, "INSTALLED", version)
    versions.require("clocks go on")
    assert versions.allow("speed")
    assert not caplog.records


@pytest.mark.parametrize("version", ["2026.7.1", "2025.12.0", "2027.1.0", "2030.1.0.dev1"])
def test_other_versions_are_refused_or_warned_of_once(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(versions, "INSTALLED", version)
    with pytest.raises(ClusterError, match=rf"distributed {version} is not supported: expected >=2026.8,<2027, .*"):
        versions.require("clocks go on")
    assert not versions.allow(f"speed of {version}")
    assert not versions.allow(f"speed of {version}")
    [warning] = caplog.messages
    assert warning == (
        f"distributed {version} is not supported, expected >=2026.8,<2027: Feedline works without speed of {version}. "
        "Install one of them (pip install 'distributed>=2026.8,<2027')"
    )


@pytest.mark.parametrize(
    ("change", "patch"),
    [
        ("clusters follow the demand of jobs", lambda node: replace_adaptive_target(node, max, max)),
        ("routes share workers with other tasks", TaskQueue),
        ("schedulers open no port for HTTP", lambda _: scheduler_class(http=False)),
        ("workers open no port for HTTP", lambda _: worker_class(http=False)),
        ("workers leave without losing work", ClosingWorker),
        ("workers notice a scheduler that does not answer", SchedulerWatch),
        ("periodic callbacks go on when the clock is set", steady),
        ("periodic callbacks go on when the clock is set", lambda _: steady_scheduler(SimpleNamespace(io_loop=None))),
    ],
)
def test_patches_that_correctness_needs_are_refused(
    change: str, patch: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(versions, "INSTALLED", "2027.3.0")
    with pytest.raises(ClusterError, match=rf"distributed 2027\.3\.0 is not supported: .* make {change}"):
        patch(object())


def test_other_patches_are_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(versions, "INSTALLED", "2027.3.0")
    with local_cluster(workers=0) as local:
        scheduler: Any = local.scheduler
        before = dict(scheduler.handlers), dict(scheduler.extensions), scheduler.worker_ttl
        for patch in (finish_before_retirement, drop_spans, remove_silent_workers):
            patch(scheduler)
        assert (scheduler.handlers, scheduler.extensions, scheduler.worker_ttl) == before
    assert with_recorded_failure(Nanny) is Nanny
