"""In staged situations the verdict names the bottleneck, and its first advice gains what it predicts, within 25 %.

Sleeps of tenths of a second stand for stores and workers, so that the load of the machine decides little.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import explain  # noqa: E402

from feedline.loader.limits.advice import Advice  # noqa: E402

FAST = ["starved threads"]
NOISY = ["one core"]  # its prediction is of CPU, which other programs use, too


@pytest.mark.parametrize(
    "name",
    [
        *FAST,
        *(pytest.param(name, marks=pytest.mark.nightly) for name in explain.SITUATIONS if name not in (*FAST, *NOISY)),
    ],
)
def test_the_verdict_names_the_bottleneck_and_its_advice_gains_what_it_predicts(name: str, tmp_path: Path):
    result = explain.judge_situation(name, tmp_path, 5.0)
    assert result.named, result.verdict.sentence
    assert abs(result.error) <= explain.WITHIN, (result.predicted, result.measured, result.verdict.sentence)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NOISY)
def test_the_verdict_names_a_bottleneck_of_cpu(name: str, tmp_path: Path):
    result = explain.judge_situation(name, tmp_path, 5.0)
    assert result.named, result.verdict.sentence
    assert result.measured > 1


def test_advice_is_applied_by_its_keys():
    advice = Advice(kind="workers", change="cluster: {workers: 3, threads: 1}", reason="")
    assert explain.keys_of(advice) == {"cluster.workers": 3, "cluster.threads": 1}
    assert explain.keys_of(None) == {}


@pytest.mark.nightly
def test_the_cost_of_an_attached_explain_is_measured(tmp_path: Path):
    ratio, spread = explain.attached_cost(tmp_path, 6.0, rounds=1)
    assert 0.3 < ratio < 3
    assert spread == 0
