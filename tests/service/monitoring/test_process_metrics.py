"""Metrics of a process: the names of prometheus_client's, and the values of psutil and of the system."""

from __future__ import annotations

import os
import platform
import resource
import time
from pathlib import Path

import psutil
import pytest
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from feedline.service.monitoring.process_metrics import PROCESS_METRICS, read_process


def test_names_and_labels_are_those_of_prometheus_client():
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    expected = {
        (sample.name, family.type, *sorted(sample.labels)) for family in registry.collect() for sample in family.samples
    }
    assert {(metric.name, metric.type, *sorted(metric.labels)) for metric in PROCESS_METRICS} == expected


def test_values_are_those_of_the_system():
    process = psutil.Process()
    before_s = time.process_time()
    state = read_process()
    assert state is not None
    assert state.resident_bytes == pytest.approx(process.memory_info().rss, rel=0.1)
    assert state.virtual_bytes == pytest.approx(process.memory_info().vms, rel=0.1)
    assert state.started_s == pytest.approx(process.create_time(), abs=1.5)
    assert before_s - 0.1 <= state.cpu_s <= time.process_time() + 0.1
    assert state.max_fds == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with open(os.devnull), open(os.devnull):
        assert read_process().open_fds == state.open_fds + 2 == process.num_fds() - 1  # of its listing


def test_the_release_of_python_is_shown():
    [metric] = [each for each in PROCESS_METRICS if each.name == "python_info"]
    [(values, number)] = metric.samples(read_process())
    assert number == 1
    shown = dict(zip(metric.labels, values, strict=True))
    assert (
        shown["version"]
        == platform.python_version()
        == ".".join(shown[each] for each in ("major", "minor", "patchlevel"))
    )


def test_without_proc_there_is_no_state(monkeypatch: pytest.MonkeyPatch):
    def absent(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", absent)
    assert read_process() is None
