"""The benchmark of predicted costs runs tiny, and holds its predictions to 25 % at full size (nightly)."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import explain_costs  # noqa: E402
from explain_costs import SITUATIONS, Outcome, judge_table, lines  # noqa: E402


@pytest.mark.parametrize("name", ["heavy lists", "tiny row groups", "a filled cache"])
def test_situations_run_tiny(name: str, tmp_path: Path):
    staged = replace(SITUATIONS[name], rows=1_024, row_group_rows=64 if "tiny" in name else 512)
    outcome = judge_table(name, tmp_path, rounds=1, staged=staged)
    assert outcome.name == name
    assert len(list(lines([outcome]))) == 3


def test_options_are_read():
    assert explain_costs.parse(["--only", "lists"]).only == "lists"
    outcome = Outcome(name="x", change="y", found=True, epoch_s=2.0, predicted_s=1.0, measured_s=1.3)
    assert outcome.error == pytest.approx(0.3)
    assert list(lines([outcome]))[-1].endswith("| +30% |")


@pytest.mark.nightly
def test_gains_are_as_predicted():
    program = [sys.executable, str(BENCHMARKS / "explain_costs.py"), "--json"]
    run = subprocess.run(program, capture_output=True, text=True, check=True)
    outcomes = [Outcome(**each) for each in json.loads(run.stdout)]
    assert len(outcomes) == len(SITUATIONS)
    assert [each.name for each in outcomes if not each.found] == []
    assert {each.name: each.error for each in outcomes if abs(each.error) > explain_costs.WITHIN} == {}
