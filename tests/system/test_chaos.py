"""Random deaths of feeders, workers and trainers leave the stream of two ranks as it was planned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import chaos, write
from pipelines import Place, furnished


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


NIGHTLY = [pytest.param(25, seed, marks=pytest.mark.nightly) for seed in range(2, 10)]


@pytest.mark.parametrize(("kills", "seed"), [(4, 1), *NIGHTLY])
def test_random_kills_leave_the_stream_as_planned(place: Place, kills: int, seed: int):
    findings = chaos(place, write(place), kills=kills, seed=seed)
    assert findings["status"] == 0, findings
    assert sum(findings["kills"].values()) == kills
    assert (findings["count"], findings["missing"], findings["unreadable"]) == (0, [], 0)
    expected = [(epoch, 0, [0, 1, 2, 3]) for epoch in range(findings["last_epoch"] + 1)]
    received = [(run["epoch"], run["first"], run["lanes"]) for run in findings["received"]]
    assert received == expected, "every epoch from its first step on, on every lane"
    assert {run["last"] for run in findings["received"]} == {78}, "to its last one"
    repeated = sum(run["last"] - run["first"] + 1 for run in findings["again"])
    assert repeated <= findings["kills"].get("trainer", 0), "a trainer saves its state after each batch"
