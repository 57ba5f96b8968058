"""The grid of the cache policy runs, spans what the policy decides about, and judges choices by medians and spread."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import cache_policy
from cache_policy import Outcome, Point, StandIn

from feedline.blocks.cache.cache_policy import choose_mode

pytestmark = pytest.mark.nightly

POINT = Point(latency_s=0.0, op_s=0.0, inflation=2.0, disk_rate=1e12, store_rate=1e12, row_groups=4)


def test_a_tiny_run_prints_each_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert cache_policy.main(["--tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[-1].startswith("right: ")


def test_a_tiny_run_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cache_policy.main(["--tiny", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["points"]) == 2
    assert 0 <= found["share"] <= 1


def test_the_grid_has_at_least_24_different_points() -> None:
    assert len(set(cache_policy.grid())) >= 24


def test_each_mode_fetches_computes_and_keeps_what_it_says(tmp_path: Path) -> None:
    expected = {"off": (12, 12, 0), "source": (4, 12, 4), "features": (4, 4, 4)}
    for mode in cache_policy.MODES:
        stand_in = StandIn(POINT, tmp_path)
        stand_in.run(mode, 3)
        files = list(tmp_path.iterdir())
        assert (len(stand_in.fetches), len(stand_in.op_s), len(files)) == expected[mode]
        factor = 2 if mode == "features" else 1
        assert sum(file.stat().st_size for file in files) == factor * sum(stand_in.sizes) * bool(files)


def test_a_choice_is_right_within_a_tenth_or_the_spread(tmp_path: Path) -> None:
    decision = replace(choose_mode(StandIn(POINT, tmp_path).inputs()), mode="off")

    def outcome(off: list[float]) -> Outcome:
        rounds = {"off": off, "source": [9.0, 9.0, 9.0], "features": [1.0, 1.0, 1.0]}
        return Outcome(point=POINT, decision=decision, rounds=rounds)

    assert outcome([1.09, 1.09, 1.09]).right
    assert not outcome([1.2, 1.2, 1.2]).right
    assert outcome([1.0, 1.2, 1.5]).right
    assert outcome([1.2, 1.2, 1.2]).best == "features"
