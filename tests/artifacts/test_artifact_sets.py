"""A pipeline uses the fits of its own name, table and `fit.where`; others are refused, unless shared."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.artifacts.artifact_sets import (
    ArtifactSetKey,
    ArtifactSetRecord,
    FitSource,
    canonical_where,
    choose_set,
    fit_source,
    safe_name,
    table_name,
)
from feedline.config import load_spec
from feedline.errors import FeedlineError, SpecError
from feedline.fitting.fit_report import load_fit_facts
from feedline.loader.wire.facts import Hello

SMALL, LARGE = [1.0, 2.0, 3.0, 10.0], [1000.0, 2000.0, 3000.0, 10_000.0]


def table(folder: Path, values: list[float]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": values, "day": np.arange(len(values))}), folder / "0.parquet")
    return str(folder)


def written(folder: Path, name: str, table: str, *, file: str | None = None, **more: Any) -> Path:
    document: dict[str, Any] = {
        "version": 1,
        "name": name,
        "work_dir": "work",
        "source": {"table": table},
        "features": {"dense": {"x": ["standardize"]}},
        "batch": {"size": 4, "tail": "partial"},
        "shuffle": "off",
        **more,
    }
    path = folder / (file or f"{safe_name(name)}.yaml")
    path.write_text(json.dumps(document))
    return path


def scaled(values: list[float], learnt: list[float]) -> np.ndarray[Any, Any]:
    """Standardize values with the mean and deviation of others, by numpy in float64."""
    return ((np.array(values) - np.mean(learnt)) / np.std(learnt)).astype(np.float32)


def made(path: Path, overrides: Mapping[str, object] | None = None) -> np.ndarray[Any, Any]:
    batches = [batch.dense.numpy().copy() for batch in Pipeline.from_yaml(path, overrides or {}).batches()]
    return np.concatenate(batches)[:, 0]


def served(path: Path, values: list[float], overrides: Mapping[str, object] | None = None) -> np.ndarray[Any, Any]:
    return Pipeline.from_yaml(path, overrides or {}).transform({"x": values}).dense[:, 0]


def refusal(path: Path, overrides: Mapping[str, object] | None = None) -> str:
    with pytest.raises(FeedlineError) as caught:
        made(path, overrides)
    return str(caught.value)


@pytest.fixture
def small(tmp_path: Path) -> str:
    return table(tmp_path / "small", SMALL)


@pytest.fixture
def large(tmp_path: Path) -> str:
    return table(tmp_path / "large", LARGE)


def test_a_fit_of_another_pipeline_changes_nothing(tmp_path: Path, small: str, large: str):
    a, b = written(tmp_path, "a", small), written(tmp_path, "b", large)
    Pipeline.from_yaml(a).fit()
    before = served(a, [2.0, 5.0])
    Pipeline.from_yaml(b).fit()
    np.testing.assert_allclose(made(a), scaled(SMALL, SMALL), rtol=1e-6)
    np.testing.assert_allclose(served(a, [2.0, 5.0]), scaled([2.0, 5.0], SMALL), rtol=1e-6)
    assert served(a, [2.0, 5.0]).tobytes() == before.tobytes()
    np.testing.assert_allclose(served(b, [2.0, 5.0]), scaled([2.0, 5.0], LARGE), rtol=1e-6)


def test_serving_compares_the_name_alone(tmp_path: Path, small: str, large: str):
    a, b = written(tmp_path, "a", small), written(tmp_path, "b", large)
    for path in (a, b):
        Pipeline.from_yaml(path).fit()
    elsewhere = tmp_path / "elsewhere"  # another machine: pipeline.yaml and the folder of artifacts, no table
    elsewhere.mkdir()
    shutil.copytree(tmp_path / "work" / "artifacts", elsewhere / "work" / "artifacts")
    for name, values in (("a", SMALL), ("b", LARGE)):
        there = written(elsewhere, name, "s3://nowhere/at-all", fit={"where": "day < 2"})
        np.testing.assert_allclose(served(there, [2.0]), scaled([2.0], values), rtol=1e-6)


def test_evaluation_and_the_next_day_use_the_fit(tmp_path: Path, small: str):
    path = written(tmp_path, "a", small, source={"table": small, "where": "day < 3"})
    Pipeline.from_yaml(path).fit()
    held_out = made(path, {"source.where": "day >= 3"})
    np.testing.assert_allclose(held_out, scaled(SMALL[3:], SMALL[:3]), rtol=1e-6)
    np.testing.assert_allclose(made(path, {"source.where": None, "fit": "auto"}), scaled(SMALL, SMALL[:3]), rtol=1e-6)


def test_another_sample_is_refused_unless_sets_are_shared(tmp_path: Path, small: str):
    sample = {"fraction": 0.5, "seed": 3, "key": "day"}
    path = written(tmp_path, "a", small, source={"table": small, "sample": sample})
    Pipeline.from_yaml(path).fit()
    [one] = load_fit_facts(load_spec(path))
    assert one.rows in (1, 2, 3)
    mean, std = one.shown["mean"], one.shown["std"]
    said = r"another sample: got a sample of fraction 0.5, .*seed 3, expected no sample.*artifacts: \{from: a\}"
    for values in ({"source.sample": None}, {"source.sample": None, "fit": "auto"}):
        with pytest.raises(SpecError, match=said):
            made(path, values)
    with pytest.raises(SpecError, match=r"got a sample of .*seed 3, expected a sample of .*seed 4"):
        made(path, {"source.sample.seed": 4, "fit": "auto"})
    everything = made(path, {"source.sample": None, "artifacts.from": "a"})
    np.testing.assert_allclose(everything, (np.array(SMALL) - mean) / std, rtol=1e-5)
    Pipeline.from_yaml(path, {"source.sample": None}).fit()  # from now on each has its own
    np.testing.assert_allclose(made(path, {"source.sample": None}), scaled(SMALL, SMALL), rtol=1e-6)
    assert load_fit_facts(load_spec(path)) == (one,)


def test_another_fit_where_is_fitted_separately(tmp_path: Path, small: str):
    path = written(tmp_path, "a", small, fit={"auto": True})
    first, second = {"fit.where": "day < 3"}, {"fit.where": "day > 0"}
    np.testing.assert_allclose(made(path, first), scaled(SMALL, SMALL[:3]), rtol=1e-6)
    np.testing.assert_allclose(made(path, second), scaled(SMALL, SMALL[1:]), rtol=1e-6)
    [when] = {one.when for one in load_fit_facts(load_spec(path, first))}
    (tmp_path / "small" / "0.parquet").rename(tmp_path / "kept")
    np.testing.assert_allclose(served(path, SMALL, first), scaled(SMALL, SMALL[:3]), rtol=1e-6)
    np.testing.assert_allclose(served(path, SMALL, {"fit.where": "day>0"}), scaled(SMALL, SMALL[1:]), rtol=1e-6)
    (tmp_path / "kept").rename(tmp_path / "small" / "0.parquet")
    report = Pipeline.from_yaml(path, {"fit.where": "(day   <  3)"}).fit(missing=True)  # the same filter
    assert (report.made, report.fits[0].when) == (0, when)


def test_another_fit_where_is_refused_with_both_filters(tmp_path: Path, small: str):
    path = written(tmp_path, "a", small, fit={"where": "day < 3"})
    Pipeline.from_yaml(path).fit()
    message = refusal(path, {"fit.where": "day > 0"})
    assert "the fits of pipeline 'a' were learnt from other rows: got fit.where 'day < 3'" in message
    assert f"expected fit.where 'day > 0'. Fit it: `feedline fit {path} --set 'fit.where=day > 0'`" in message
    assert "expected no `fit.where`" in refusal(path, {"fit.where": None})


@pytest.mark.parametrize("fit", [{}, {"auto": True}])
def test_another_table_under_the_same_name_is_refused_with_both_paths(tmp_path: Path, small: str, large: str, fit: Any):
    one = written(tmp_path, "a", small, fit=fit)
    Pipeline.from_yaml(one).fit()
    other = written(tmp_path, "a", large, fit=fit, file="other.yaml")
    message = refusal(other)
    assert f"the fits of pipeline 'a' were learnt from another table: got {small}, expected {large}" in message
    assert "`artifacts: {from: a}` to use those fits with this table" in message
    np.testing.assert_allclose(made(other, {"artifacts.from": "a"}), scaled(LARGE, SMALL), rtol=1e-6)
    with pytest.raises(SpecError, match=r"nothing is fitted: .* another table: got .*small, expected .*large"):
        load_fit_facts(load_spec(other))
    Pipeline.from_yaml(other).fit()  # explicit
    np.testing.assert_allclose(made(other), scaled(LARGE, LARGE), rtol=1e-6)
    np.testing.assert_allclose(made(one), scaled(SMALL, SMALL), rtol=1e-6)


def test_artifacts_from_shares_fits(tmp_path: Path, small: str, large: str):
    a, b = written(tmp_path, "a", small), written(tmp_path, "b", large, fit="auto", artifacts={"from": "a"})
    assert "got no fits, expected fits of pipeline 'a'. Fit pipeline 'a' first" in refusal(b)
    Pipeline.from_yaml(a).fit()
    np.testing.assert_allclose(made(b), scaled(LARGE, SMALL), rtol=1e-6)
    np.testing.assert_allclose(served(b, [2.0]), scaled([2.0], SMALL), rtol=1e-6)
    report = Pipeline.from_yaml(b).fit()  # checks that no fit is missing, and learns nothing
    assert (report.made, [one.pipeline for one in report.fits]) == (0, ["a"])
    assert [path.name for path in (tmp_path / "work" / "artifacts" / "pipelines").iterdir()] == [safe_name("a")]
    more = {"features.dense.y": {"column": "x", "ops": [{"clip": {"max": 5}}, "standardize"]}}
    for fit in (lambda: made(b, more), lambda: Pipeline.from_yaml(b, more).fit()):
        with pytest.raises(SpecError, match=r"y: standardize: .*\. Fit pipeline 'a', whose fits these are"):
            fit()
    assert "got fits of pipeline 'a', expected fits of pipeline 'c'" in refusal(b, {"artifacts.from": "c"})
    got = "got no `fit.where`, expected fit.where 'day < 2'. Name the same `fit.where` as the fit did"
    assert got in refusal(b, {"fit": {"where": "day < 2"}})


def test_a_new_name_is_refused_with_the_existing_names(tmp_path: Path, small: str):
    Pipeline.from_yaml(written(tmp_path, "before", small)).fit()
    message = refusal(written(tmp_path, "after", small))
    assert "x: standardize: got fits of pipeline 'before', expected fits of pipeline 'after'" in message
    assert (
        "Write `artifacts: {from: before}` to share the fits of pipeline 'before', as a renamed evaluation does"
        in message
    )
    named = written(tmp_path, "after", small, artifacts={"folder": "work/artifacts", "from": "before"})
    np.testing.assert_allclose(made(named), scaled(SMALL, SMALL), rtol=1e-6)


def test_names_of_any_characters_have_separate_files(tmp_path: Path, small: str, large: str):
    names = ["a/b", "a_b", "A_b", "../a", "ü", " ", "x" * 300]
    assert len({safe_name(name).lower() for name in names}) == len(names)
    for number, name in enumerate(names[:4]):
        path = written(tmp_path, name, (small, large)[number % 2], file=f"{number}.yaml", fit="auto")
        values = (SMALL, LARGE)[number % 2]
        np.testing.assert_allclose(made(path), scaled(values, values), rtol=1e-6)
    assert {path.name for path in (tmp_path / "work" / "artifacts" / "pipelines").iterdir()} == {
        safe_name(name) for name in names[:4]
    }


def test_pipelines_that_fit_at_the_same_time_keep_both_sets(tmp_path: Path, small: str, large: str):
    paths = [written(tmp_path, name, of) for name, of in (("a", small), ("b", large))]
    overrides = [{}, {"fit.where": "day < 3"}]
    threads = [
        threading.Thread(target=lambda path=path, more=more: Pipeline.from_yaml(path, more).fit())
        for path in paths
        for more in overrides
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for path, values in zip(paths, (SMALL, LARGE), strict=True):
        np.testing.assert_allclose(made(path), scaled(values, values), rtol=1e-6)
        np.testing.assert_allclose(made(path, overrides[1]), scaled(values, values[:3]), rtol=1e-6)


def test_fits_of_one_set_at_the_same_time_lose_no_features(tmp_path: Path, small: str):
    paths = [
        written(tmp_path, "a", small, file=f"{name}.yaml", features={"dense": {name: {"column": "x", "ops": ops}}})
        for name, ops in {"one": ["standardize"], "two": [{"clip": {"max": 3}}, "standardize"]}.items()
    ]
    threads = [threading.Thread(target=lambda path=path: Pipeline.from_yaml(path).fit()) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.features for one in load_fit_facts(load_spec(paths[0]))] == [("one",), ("two",)]


def test_a_resumed_run_finds_its_set_beside_others_with_equal_features(tmp_path: Path, small: str):
    a, b = written(tmp_path, "a", small), written(tmp_path, "b", small, artifacts="there")
    hello = Hello(rank=0, world_size=1)
    states = []
    for path in (a, b):
        Pipeline.from_yaml(path).fit()
        facts = Pipeline.from_yaml(path).resolve(hello, job="0" * 64).facts()
        states.append({key: getattr(facts, key) for key in ("snapshot", "plan", "features", "lanes")})
    assert states[0] == states[1]  # the same values of the same rows
    for path, state in zip((a, b), states, strict=True):
        Pipeline.from_yaml(path, {"source.where": "day < 3"}).fit()
        assert Pipeline.from_yaml(path).plan().facts().features != state["features"]
        again = Pipeline.from_yaml(path).resolve(Hello(rank=0, world_size=1, **state), job="0" * 64)
        assert again.facts().features == state["features"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/data/t", "/data/t/"),
        ("/data/t", "/data/x/../t"),
        ("/data/t", "file:///data/t/"),
        ("/data/a b", "file:///data/a%20b"),
        ("s3://bucket/t", "S3://bucket/t/"),
        ("s3://bucket/t", "s3://bucket/t?region=eu-west-1"),
    ],
)
def test_spellings_of_one_table_have_one_name(one: str, other: str):
    assert table_name(one) == table_name(other)


def test_different_tables_have_different_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert table_name("t") == str(tmp_path / "t")
    (tmp_path / "link").symlink_to(tmp_path / "t")
    places = ["t", "link", "s3://t", "s3://t?endpoint_override=localhost:9000", "gs://t", "t/*.parquet"]
    assert len({table_name(place) for place in places}) == len(places)
    assert fit_source(["b", "a", "a"], None, None) == fit_source(["a", "b"], None, None)


def test_filters_are_compared_without_spacing_and_quotes():
    assert canonical_where('ds  >= "2026"') == canonical_where("(ds >= '2026')")
    assert canonical_where("a and\n b") == canonical_where("a and b")
    assert canonical_where("a < 1") != canonical_where("a < 2")
    assert canonical_where("a b") != canonical_where("a  b")  # invalid expressions are compared as strings


def test_the_nearest_set_is_chosen():
    def kept(pipeline: str, table: str, where: str | None, sample: str | None, saved: str) -> ArtifactSetRecord:
        source = FitSource(table=(table,), where=where, sample=sample)
        return ArtifactSetRecord(pipeline=pipeline, source=source, manifest=saved, fit_times={}, saved_at=saved)

    sets = [
        kept("p", "t", None, None, "1"),
        kept("p", "t", None, "s", "2"),
        kept("p", "t", "w", None, "3"),
        kept("p", "u", None, None, "4"),
    ]

    def taken(table: str, where: str | None = None, sample: str | None = None, **more: Any) -> str | None:
        source = FitSource(table=(table,), where=where, sample=sample)
        one = choose_set(ArtifactSetKey(pipeline="p", source=source, **more), sets)
        return None if one is None else one.manifest

    assert [taken("t"), taken("t", sample="s"), taken("t", sample="r"), taken("t", "w", "s")] == ["1", "2", None, None]
    assert [taken("t", sample="s", shared_from="p"), taken("t", sample="r", shared_from="p")] == ["2", "2"]
    assert [taken("t", "v"), taken("v"), taken("u"), taken("u", "w")] == [None, None, "4", None]
    assert [taken("v", served=True), taken("v", "w", served=True), taken("t", "v", served=True)] == ["4", "3", "3"]
    assert [taken("v", shared_from="p"), taken("v", "w", shared_from="p"), taken("v", "v", shared_from="p")] == [
        "4",
        "3",
        None,
    ]
