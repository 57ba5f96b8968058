"""Do `feedline run` and a dataset tell the quality of what they delivered, once, and warn or stop as they are told?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pipelines import Place, furnished
from processes import ended_here
from rich.console import Console

from feedline import FeedlineDataset, Pipeline
from feedline.commands.run import quality_table
from feedline.errors import DataError

ROWS, STEPS = 6666, 26
BROKEN = (
    r"feature 'dense_0' is not as expected in epoch {}: got null_rate 0\.0\d+, expected <= 0\.01 "
    rf"\({ROWS:,} rows"
)
FEATURES: dict[str, Any] = {
    "dense": {"dense_0": {"column": "dense_0", "ops": [{"fill_null": 0}], "expect": {"null_rate": "<= 0.01"}}},
    "categorical": {"id_0": {"column": "id_0", "expect": {"min": ">= 0"}}},
    "sparse": {"hist_0": []},
    "label": {"clicked": []},
}


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    """Over one day of the clicks."""
    with furnished(tmp_path, sorted(clicks.iterdir())[0]) as place:
        yield place


def expected(table: Path) -> dict[str, Any]:
    """Some measures, by DuckDB."""
    files = str(table / "**" / "*.parquet")
    [counts] = duckdb.sql(
        f"""select count(*), count(*) - count(dense_0), min(coalesce(dense_0, 0)), max(coalesce(dense_0, 0)),
            min(id_0), max(id_0), sum(len(hist_0)), max(len(hist_0)), quantile_disc(len(hist_0), 0.9), sum(clicked)
            from read_parquet('{files}')"""
    ).fetchall()
    names = ("rows", "nulls", "low", "high", "first", "last", "values", "longest", "p90", "clicks")
    return dict(zip(names, counts, strict=True))


def check(quality: dict[str, dict[str, Any]], table: Path, *, times: int = 1) -> None:
    facts = expected(table)
    assert {measures["rows"] for measures in quality.values()} == {times * facts["rows"]}
    assert quality["dense_0"]["nulls"] == times * facts["nulls"] > 0
    assert quality["dense_0"]["null_rate"] == facts["nulls"] / facts["rows"]
    assert (quality["dense_0"]["min"], quality["dense_0"]["max"]) == (facts["low"], facts["high"])
    assert (quality["id_0"]["min"], quality["id_0"]["max"]) == (facts["first"], facts["last"])
    assert quality["hist_0"]["values"] == times * facts["values"]
    assert quality["hist_0"]["list_length_max"] == facts["longest"]
    assert quality["hist_0"]["list_length_p90"] == facts["p90"]


def test_a_run_reports_what_the_table_holds_and_warns(place: Place):
    path = place.write(features=FEATURES, epochs=2)
    done = ended_here("run", path, "--sink", "null", "--world-size", 2, "--json")
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout)["quality"], place.table, times=2)
    assert done.stderr.count("is not as expected") == 4  # of two ranks, in two epochs
    assert done.stderr.count("warning: rank 1: feature 'dense_0' is not as expected in epoch 1") == 1


def test_a_run_ends_with_a_table_or_an_error(place: Place):
    path = place.write(features=FEATURES)
    done = ended_here("run", path, "--sink", "null")
    assert done.returncode == 0
    assert f"quality of {ROWS:,} rows" in done.stdout
    assert all(name in done.stdout for name in ("dense_0", "hist_0", "clicked", "longest"))
    stopped = ended_here("run", path, "--sink", "null", "--set", "on_expect=error")
    assert stopped.returncode == 1
    assert "error: feature 'dense_0' is not as expected in epoch 0: got null_rate 0.0" in stopped.stderr
    assert f"quality of {ROWS:,} rows" not in stopped.stdout


def test_a_dataset_tells_and_warns(place: Place):
    path = place.write(features=FEATURES)
    with FeedlineDataset(path) as dataset:
        assert dataset.quality == {}
        for epoch in range(2):
            with pytest.warns(UserWarning, match=BROKEN.format(epoch)) as caught:
                assert len(list(dataset)) == STEPS
            assert [str(warning.message).count("dense_0") for warning in caught] == [1]
            check(dataset.quality, place.table, times=epoch + 1)  # not what is computed ahead for the next epoch


def test_an_error_reaches_the_trainer(place: Place):
    path = place.write(features=FEATURES, on_expect="error")
    with FeedlineDataset(path) as dataset, pytest.raises(DataError, match=BROKEN.format(0)):
        list(dataset)
    bounded = {**FEATURES, "categorical": {"id_0": {"column": "id_0", "expect": {"max": "< 0"}}}}
    path = place.write(features=bounded, on_expect="error")
    with pytest.raises(DataError, match=r"feature 'id_0' .*expected < 0 \([\d,]+ rows delivered\)"):
        list(Pipeline.from_yaml(path).batches())  # after the first block


def test_batches_tell_and_warn(place: Place):
    pipeline = Pipeline.from_yaml(place.write(features=FEATURES))
    assert pipeline.quality() == {}
    with pytest.warns(UserWarning, match=BROKEN.format(3)):
        list(pipeline.batches(3))
    check(pipeline.quality(), place.table)
    next(pipeline.batches(0))  # of a block that is not delivered whole nothing is counted
    check(pipeline.quality(), place.table)


def test_the_noticeable_features_are_shown_first():
    base = {"group": "dense", "rows": 9, "null_rate": 0.0, "nonfinite_rate": 0.0, "min": 0.5, "max": 1234567}
    quality = {f"f{place}": {**base} for place in range(40)}
    quality["f30"]["null_rate"], quality["f31"]["nonfinite_rate"], quality["f32"]["oov_rate"] = 0.2, 0.00001, 0.5
    console = Console(width=160)
    with console.capture() as captured:
        console.print(quality_table(quality, limit=4))
    lines = captured.get().splitlines()
    assert [line.split()[1] for line in lines if "dense" in line] == ["f32", "f30", "f31", "f0"]
    assert "< 0.01%" in lines[6]
    assert "50.00%" in lines[4]
    assert "1,234,567" in lines[4]
    assert lines[-1].strip() == "4 of 40 features, the most noticeable first: --json has all"
