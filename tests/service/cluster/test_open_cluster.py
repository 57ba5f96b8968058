"""A cluster is opened with as many open files as it needs, or refused at once."""

from __future__ import annotations

import resource

import pytest

from feedline.config.cluster_section import ClusterSpec
from feedline.errors import ClusterError
from feedline.service.cluster.open_cluster import require_open_files

THREADS, PROCESSES = ClusterSpec(), ClusterSpec.model_validate({"workers": {"min": 1, "max": 100}})


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Soft and hard."""
    limits = [0, 0]
    monkeypatch.setattr(resource, "getrlimit", lambda number: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda number, values: limits.__setitem__(slice(None), values))
    return limits


@pytest.mark.parametrize(
    ("spec", "before", "after"),
    [
        (THREADS, [1024, 4096], [1024, 4096]),
        (THREADS, [30, 4096], [64, 4096]),
        (THREADS, [30, -1], [64, -1]),
        (PROCESSES, [1024, 4096], [1664, 4096]),
        (PROCESSES, [-1, -1], [-1, -1]),
    ],
)
def test_a_limit_is_raised_as_far_as_needed(limits: list[int], spec: ClusterSpec, before: list[int], after: list[int]):
    limits[:] = before
    require_open_files(spec)
    assert limits == after


def test_a_limit_that_may_not_be_raised_is_refused(limits: list[int]):
    limits[:] = 40, 40
    with pytest.raises(ClusterError, match=r"is too low: got 40 \(ulimit -n\), expected at least 64\. Raise it"):
        require_open_files(THREADS)
    limits[:] = 1024, 1024
    with pytest.raises(ClusterError, match=r"least 1,664 with 100 worker processes\. .* or lower cluster.workers"):
        require_open_files(PROCESSES)
