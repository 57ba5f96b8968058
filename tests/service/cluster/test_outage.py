"""A missing scheduler or worker ends the run once callers have waited for it long enough."""

from __future__ import annotations

import pytest

from feedline.service.cluster.outage import Missing, OutageTimer


def looks(timer: OutageTimer, missing: Missing | None, *, waiting: bool, times: int, at_s: float) -> list[str]:
    """One look per second from then on."""
    return [timer.look(at_s + second, missing, waiting=waiting) for second in range(times)]


@pytest.mark.parametrize("missing", ["scheduler", "worker"])
def test_an_outage_is_over_after_waiting_for_the_limit(missing: Missing):
    timer = OutageTimer(10)
    assert timer.look(100, None, waiting=True) == "whole"
    assert looks(timer, missing, waiting=True, times=11, at_s=101) == ["new", *["waiting"] * 10]
    assert timer.look(112, missing, waiting=True) == "over"


def test_only_waiting_counts():
    timer = OutageTimer(10)
    assert looks(timer, "worker", waiting=False, times=1000, at_s=0) == ["new", *["waiting"] * 999]
    assert looks(timer, "worker", waiting=True, times=10, at_s=1000) == ["waiting"] * 10
    assert looks(timer, "worker", waiting=False, times=50, at_s=1010) == ["waiting"] * 50
    assert timer.look(1060, "worker", waiting=True) == "over", "10 s before, 1 s now"


def test_each_outage_is_timed_from_zero():
    timer = OutageTimer(10)
    looks(timer, "worker", waiting=True, times=10, at_s=0)
    assert timer.look(10, None, waiting=True) == "whole"
    assert looks(timer, "worker", waiting=True, times=11, at_s=11) == ["new", *["waiting"] * 10]
    assert looks(timer, "scheduler", waiting=True, times=11, at_s=22) == ["new", *["waiting"] * 10], "another thing"


def test_a_process_that_was_stopped_has_not_waited():
    timer = OutageTimer(10)
    timer.look(0, "worker", waiting=True)
    assert timer.look(3600, "worker", waiting=True) == "waiting"
    assert timer.waited_s == 5
