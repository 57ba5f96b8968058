"""The simulation of large clusters obeys laws that need no simulation: capacity, Little's law, the slowest server."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import scale  # noqa: E402
from scale_simulation import Costs, Loop  # noqa: E402

pytestmark = pytest.mark.nightly

CHEAP = Costs(task_s=1e-4)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "WARM_S", 30.0)
    monkeypatch.setattr(scale, "MEASURED_S", 30.0)


def scenario(**changes: float) -> scale.Scenario:
    small = scale.small_scenario(16, 4, 0.5)
    return dataclasses.replace(small, **changes)


def test_trainers_that_want_less_than_the_workers_compute_get_it_all() -> None:
    outcome = scale.simulate(scenario(), CHEAP)
    assert outcome.delivered == pytest.approx(1.0, abs=0.01)
    assert outcome.blocks_per_s == pytest.approx(scenario().blocks_per_s, rel=0.05)
    assert outcome.in_flight >= scenario().blocks_per_s * 0.5, "Little's law: those that are being computed at least"
    assert outcome.recovery_s is not None
    assert outcome.recovery_s < 5.0


def test_hungry_trainers_get_what_the_workers_compute() -> None:
    outcome = scale.simulate(scenario(step_s=0.001), CHEAP)
    assert outcome.blocks_per_s == pytest.approx(16 / 0.5, rel=0.1)


def test_a_scheduler_at_its_limit_decides_the_rate() -> None:
    outcome = scale.simulate(scenario(step_s=0.001), Costs(task_s=0.1))
    assert outcome.blocks_per_s == pytest.approx(10, rel=0.1)
    assert outcome.scheduler == pytest.approx(1.0, abs=0.05)


def test_equal_runs_of_a_simulation_are_equal() -> None:
    first, second = (dataclasses.replace(scale.simulate(scenario(), CHEAP), real_s=0.0) for _ in range(2))
    assert first == second


def test_events_of_one_time_keep_their_order() -> None:
    loop, seen = Loop(), []
    loop.at(2.0, lambda: seen.append("later"))
    loop.at(1.0, lambda: loop.after(0.0, lambda: seen.append("within")))
    loop.at(1.0, lambda: seen.append("beside"))
    loop.run(1.5)
    assert (seen, loop.now_s) == (["beside", "within"], 1.5)
    loop.run(3.0)
    assert seen == ["beside", "within", "later"]


def test_the_benchmark_reports(capsys: pytest.CaptureFixture[str]) -> None:
    scale.main(["--tiny"])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("scheduler", "recovery", "fast", "even", "slow"))
