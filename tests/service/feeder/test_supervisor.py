"""A supervisor replaces feeders that die, unless the run itself is to end."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from feedline.service.feeder.supervisor import RankReports, SupervisedFeeder, Supervisor


@pytest.mark.parametrize(("stops", "died"), [(False, [143]), (True, [])])
def test_a_feeder_that_a_signal_ends_with_the_run_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, stops: bool, died: list[int]
):
    started: list[SupervisedFeeder] = []
    monkeypatch.setattr(Supervisor, "_start", lambda self, feeder: started.append(feeder))
    command: Any = None
    feeder = SupervisedFeeder([RankReports(0)], command)
    supervised = Supervisor([feeder], lambda: stops)
    with subprocess.Popen(["sh", "-c", "exit 143"]) as process:
        feeder.process = process
        supervised._lines.put((feeder, process, None))
        assert [event.status for _, event in supervised.poll(0)] == died
    assert len(started) == len(died)
