"""The summary of fits shows what was learnt, from which rows and when."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.config import load_spec
from feedline.errors import SpecError
from feedline.fitting.fit_report import FitReport, load_fit_facts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pq.write_table(
        pa.table({"x": [1.0, 3.0, 5.0, 100.0], "day": [1, 1, 1, 2], "s": list("abca")}), tmp_path / "t.parquet"
    )
    features = {"dense": {"x": ["standardize"]}, "categorical": {"s": ["vocabulary"]}}
    document = {
        "version": 1,
        "name": "p",
        "work_dir": "work",
        "source": {"table": "t.parquet"},
        "fit": {"where": "day < 2", "golden": "none"},
        "features": features,
        "batch": {"size": 2},
    }
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    return tmp_path / "p.yaml"


def test_facts_of_a_fit_are_those_that_the_report_has_and_a_folder_keeps(path: Path):
    report = Pipeline.from_yaml(path).fit()
    assert (report.made, report.rows, report.passes) == (2, 3, 1)
    facts = load_fit_facts(load_spec(path))
    assert {one.digest: one for one in facts} == {one.digest: one for one in report.fits}
    assert [(one.features, one.chain) for one in facts] == sorted((one.features, one.chain) for one in facts)
    words, scale = facts
    assert (words.op, words.features) == ("vocabulary", ("s",))
    assert (scale.op, scale.features, scale.rows, scale.pipeline) == ("standardize", ("x",), 3, "p")
    assert scale.fit_where == "day < 2"
    assert scale.types == {"x": "double"}
    assert scale.shown["mean"] == 3.0


def test_nothing_fitted_is_an_empty_summary(path: Path):
    assert load_fit_facts(load_spec(path)) == ()
    assert FitReport().fits == ()


def test_fits_of_other_rows_are_refused_with_both_filters(path: Path):
    Pipeline.from_yaml(path).fit()
    with pytest.raises(SpecError, match=r"nothing is fitted: .*got fit.where 'day < 2', expected fit.where 'day > 0'"):
        load_fit_facts(load_spec(path, {"fit.where": "day > 0"}))
