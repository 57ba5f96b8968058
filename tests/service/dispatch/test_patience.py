"""How long is something missing waited for? As long as somebody waits, and no longer; by a clock of our own."""

from __future__ import annotations

import pytest

from feedline.service.dispatch.patience import Missing, Patience


def looks(patience: Patience, missing: Missing | None, *, waiting: bool, times: int, at_s: float) -> list[str]:
    """One look per second from then on."""
    return [patience.look(at_s + second, missing, waiting=waiting) for second in range(times)]


@pytest.mark.parametrize("missing", ["scheduler", "worker"])
def test_what_is_waited_for_longer_than_the_limit_is_over(missing: Missing):
    patience = Patience(10)
    assert patience.look(100, None, waiting=True) == "whole"
    assert looks(patience, missing, waiting=True, times=11, at_s=101) == ["new", *["waiting"] * 10]
    assert patience.look(112, missing, waiting=True) == "over"


def test_nobody_waits_and_nothing_counts():
    patience = Patience(10)
    assert looks(patience, "worker", waiting=False, times=1000, at_s=0) == ["new", *["waiting"] * 999]
    assert looks(patience, "worker", waiting=True, times=10, at_s=1000) == ["waiting"] * 10
    assert looks(patience, "worker", waiting=False, times=50, at_s=1010) == ["waiting"] * 50
    assert patience.look(1060, "worker", waiting=True) == "over", "10 s before, 1 s now"


def test_what_comes_back_is_waited_for_anew():
    patience = Patience(10)
    looks(patience, "worker", waiting=True, times=10, at_s=0)
    assert patience.look(10, None, waiting=True) == "whole"
    assert looks(patience, "worker", waiting=True, times=11, at_s=11) == ["new", *["waiting"] * 10]
    assert looks(patience, "scheduler", waiting=True, times=11, at_s=22) == ["new", *["waiting"] * 10], "another thing"


def test_a_process_that_was_stopped_has_not_waited():
    patience = Patience(10)
    patience.look(0, "worker", waiting=True)
    assert patience.look(3600, "worker", waiting=True) == "waiting"
    assert patience.waited_s == 5
