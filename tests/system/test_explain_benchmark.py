"""In staged situations the verdict names the bottleneck, and advises against it (nightly).

How near the gain is to the predicted one is judged by `benchmarks/explain.py`, on a machine that does nothing else.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import explain  # noqa: E402
import explain_attached  # noqa: E402
from explain_situations import EIGHT, SITUATIONS, set_keys  # noqa: E402

from feedline.loader.limits.machine_advice import Advice  # noqa: E402
from feedline.loader.limits.run_facts import Interval  # noqa: E402

pytestmark = pytest.mark.nightly

OUTCOME = explain.Outcome(
    name="slow store", sentence="It waits.", named="store wait (threads)", problems=(),
    advice="cluster: {threads: 2}", rank=1, unit="rows/s", predicted=2.0, interval=Interval(low=1.9, high=2.1),
    measured=1.6,
)  # fmt: skip


def test_situations_run_tiny(capsys: pytest.CaptureFixture[str]):
    options = ["--tiny", "--json", "--only", "starved threads", "--only", "tiny row groups"]
    assert explain.main(options) == 0
    outcomes = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert outcomes.keys() == {"starved threads", "tiny row groups"}
    assert outcomes["starved threads"]["named"] == "ops (threads)"
    assert "decoding" in outcomes["tiny row groups"]["sentence"].lower()


def test_outcomes_are_right_where_verdict_and_gain_are():
    assert OUTCOME.is_right
    assert OUTCOME.ratio == pytest.approx(0.8)
    assert not replace(OUTCOME, measured=1.4).is_right
    assert not replace(OUTCOME, problems=("expected 'hist'",)).is_right
    assert list(explain.lines([OUTCOME]))[-1].endswith("| 2.00 (1.90 to 2.10) rows/s | 1.60 | 0.80 | right |")
    assert list(explain.lines([replace(OUTCOME, measured=4.0)]))[-1].endswith("| not within 25% |")


def test_unknown_situations_are_refused(capsys: pytest.CaptureFixture[str]):
    assert explain.main(["--only", "nothing like it"]) == 2
    assert "slow store" in capsys.readouterr().err


def test_advice_is_applied_by_its_keys(tmp_path: Path):
    document = {"cluster": {"threads": 1, "dashboard": False}}
    set_keys(Advice(kind="workers", change="cluster: {workers: 3, threads: 2}", reason=""), document, tmp_path)
    assert document == {"cluster": {"workers": 3, "threads": 2, "dashboard": False}}


@pytest.mark.parametrize("name", SITUATIONS)
def test_verdict_names_the_bottleneck_and_advises_against_it(name: str, tmp_path: Path):
    outcome = explain.judge_situation(name, tmp_path, explain.Effort(seconds=6.0))
    assert outcome.problems == (), outcome.sentence


def test_the_eight_are_those_that_must_be_named():
    assert EIGHT == (
        "slow store", "heavy list decode", "heavy op", "slow trainer", "one core", "starved cluster",
        "tiny row groups", "cold cache",
    )  # fmt: skip


def test_windows_are_compared_within_their_round():
    def window(rows: int, explain_s: float | None) -> explain_attached.Window:
        return explain_attached.Window(seconds=1.0, rows=rows, cpu_s=2.0, explain_s=explain_s)

    slow, fast = (
        [window(rows, None), window(rows * 98 // 100, 0.1), window(rows * 98 // 100, 0.1), window(rows, None)]
        for rows in (1_000, 9_000)
    )
    rates = explain_attached.ratios([*slow, *fast], lambda each: each.rows_per_s)
    assert rates == pytest.approx([0.98, 0.98])
    assert explain_attached.bootstrap(rates).low == pytest.approx(0.98)


def test_cost_of_an_attached_explain_is_measured(tmp_path: Path):
    windows = explain_attached.measure_windows(explain_attached.write_pipeline(tmp_path, tiny=True), 3.0, 1)
    assert [window.explain_s is None for window in windows] == [True, False, False, True]
    assert all(window.rows > 0 and window.cpu_s > 0 for window in windows)
