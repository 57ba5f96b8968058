"""Stored artifacts are checked when read, read once per process, and refused if they do not match the request."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from toy_ops import FEATURES, toy_ops, written

import feedline.artifacts.store as stored_artifacts
from feedline import Pipeline
from feedline.artifacts.artifact_sets import find_set, save_set
from feedline.artifacts.fit_origin import FitOrigin
from feedline.artifacts.store import (
    ArtifactSetRef,
    Fit,
    FittedArtifact,
    Manifest,
    StoredArtifactSet,
    check_files,
    load_artifact,
    save_manifest,
)
from feedline.blocks.jobs import check_job
from feedline.config import load_spec
from feedline.errors import ClusterError, CorruptFileError, FeedlineError, SpecError
from feedline.planning.table_features import artifact_set_key
from feedline.serving.encoder import Serving
from feedline.transforms.learning.learner import Artifact
from feedline.transforms.ops import OPS
from feedline.warehouse.table import Table


@pytest.fixture(autouse=True)
def _ops() -> Iterator[None]:
    with toy_ops():
        yield


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Path:
    """The folder of a fitted pipeline, to copy."""
    folder = tmp_path_factory.mktemp("fitted")
    with toy_ops():
        Pipeline.from_yaml(written(folder, clicks)).fit()
    return folder


@pytest.fixture
def path(tmp_path: Path, clicks: Path, fitted: Path) -> Path:
    """A fitted pipeline."""
    shutil.copytree(fitted / "work", tmp_path / "work")
    return written(tmp_path, clicks)


def folder(path: Path) -> Path:
    return path.parent / "work" / "artifacts"


def counting(path: Path, overrides: dict[str, Any] | None = None) -> Manifest:
    """The current set of fits of a pipeline."""
    one = find_set(str(folder(path)), artifact_set_key(load_spec(path, overrides or {})))
    assert one is not None
    return stored_artifacts.load_manifest(str(folder(path)), one.manifest)


def replaced(path: Path, fits: list[Fit]) -> None:
    """Replace the current set of fits."""
    place = str(folder(path))
    one = find_set(place, artifact_set_key(load_spec(path)))
    assert one is not None
    save_set(
        place,
        replace(one, manifest=save_manifest(place, [FittedArtifact(fit=fit, artifact=None) for fit in fits]).digest),
    )


def refusal(path: Path, **overrides: Any) -> str:
    with pytest.raises(FeedlineError) as caught:
        next(Pipeline.from_yaml(path, {key.replace("__", "."): value for key, value in overrides.items()}).batches())
    return str(caught.value)


def entry(key: str, artifact: Artifact) -> FittedArtifact:
    fit = Fit(
        key=key,
        op="op",
        version=1,
        parameters="{}",
        chain="op",
        features=("f",),
        types={"f": "int64"},
        depends={},
        fitted_on=FitOrigin(table="t", snapshot="s", where=None, sample=None, rows=1),
        facts=artifact.facts,
        shown={"z": 1, "a": 2},
        table=None,
        digest=artifact.digest,
    )
    return FittedArtifact(fit=fit, artifact=artifact)


@examples(20)
@given(
    st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.floats(allow_nan=False), st.text()), max_size=5),
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text()), max_size=20),
)
def test_a_saved_manifest_loads_unchanged(tmp_path_factory: pytest.TempPathFactory, facts: Any, rows: Any):
    place = str(tmp_path_factory.mktemp("a"))
    table = pa.table(
        {"n": pa.array([n for n, _ in rows], pa.int64()), "t": pa.array([t for _, t in rows], pa.string())}
    )
    one = entry("k", Artifact(facts=facts, table=table))
    digest = one.fit.digest
    manifest = save_manifest(place, [one])
    stored_artifacts._artifacts.clear()
    stored_artifacts._load_manifest.cache_clear()
    fit = stored_artifacts.load_manifest(place, manifest.digest).fits["k"]
    assert list(fit.shown.items()) == [("z", 1), ("a", 2)]
    loaded = load_artifact(place, fit)
    assert loaded.table is not None
    assert Artifact(facts=loaded.facts, table=loaded.table).digest == digest  # recomputed from the content
    assert loaded.digest == digest


def test_other_parameters_are_refused_with_both_values(path: Path):
    message = refusal(path, features__categorical__word={"column": "str_0", "ops": [{"occurrences": {"scale": 2}}]})
    assert "not fitted: word: occurrences: got an artifact of occurrences (version 1)" in message
    assert 'with {"name":null,"scale":1}, expected occurrences (version 1) with {"name":null,"scale":2}' in message
    word = "'features.categorical.word={column: str_0, ops: [{occurrences: {scale: 2}}]}'"
    assert f"Run `feedline fit {path} --set {word}`" in message


def test_other_ops_before_are_refused_with_both_chains(path: Path):
    features = {"column": "id_0", "ops": [{"modulo": 5}, "minus_mean"]}
    message = refusal(path, features__dense__a=features)
    assert "behind another chain, minus_mean, expected modulo → minus_mean" in message


def test_other_parameters_before_are_refused(path: Path):
    message = refusal(
        path, features__dense__two={"column": "id_1", "ops": [{"occurrences": {"name": "n"}}, "minus_mean"]}
    )
    assert "two: occurrences: got an artifact of" in message
    assert (
        "behind ops with other parameters, versions or functions, expected those of the pipeline: occurrences"
        in message
    )


def test_another_version_of_an_op_is_refused_with_both_versions(path: Path, monkeypatch):
    monkeypatch.setitem(OPS, "occurrences", replace(OPS["occurrences"], version=2))
    message = refusal(path)
    assert "word: occurrences: got an artifact of occurrences (version 1) with" in message
    assert "expected occurrences (version 2) with" in message


def test_other_input_types_are_refused_with_both_types(path: Path, clicks: Path):
    pipeline = Pipeline.from_yaml(path)
    other = {"id_0": [1], "id_1": [2], "str_0": [3], "hist_0": [[4]]}
    with pytest.raises(SpecError, match=r"word: occurrences: got .* learnt from str_0: string, expected int64"):
        Serving(pipeline.spec, types=pa.table(other).schema).transform(other)
    with pytest.raises(SpecError, match="column 'str_0' is of another type than in training: got int64, expected str"):
        pipeline.transform(pa.table(other))
    narrow = pa.table(
        {
            "id_0": pa.array([1], pa.int32()),
            "id_1": pa.array([2], pa.uint16()),
            "str_0": pa.array(["w00000"], pa.large_string()),
            "hist_0": pa.array([[4]], pa.large_list(pa.int64())),
        }
    )
    assert pipeline.transform(narrow).rows == 1  # widths are ignored


def test_a_fit_whose_inputs_were_fitted_again_is_refused(path: Path):
    fits = [
        replace(fit, digest="0" * 64) if fit.chain == "occurrences → minus_mean" and not fit.depends else fit
        for fit in counting(path).fits.values()
    ]
    replaced(path, fits)
    assert "two: minus_mean: got an artifact whose own inputs have been fitted again since" in refusal(path)


def test_only_what_is_missing_is_fitted_and_the_rest_stays(path: Path):
    changed = {"features.dense.a": {"column": "id_0", "ops": [{"minus_mean": {"scale": 3}}]}}
    report = Pipeline.from_yaml(path, changed).fit(missing=True)
    assert (report.made, report.passes, len(report.fits)) == (1, 1, 5)
    assert next(Pipeline.from_yaml(path, changed).batches()) is not None
    assert Pipeline.from_yaml(path, changed).fit(missing=True).made == 0
    assert "a: minus_mean: got an artifact of" in refusal(path)  # the earlier one was replaced


def test_fits_that_depend_on_a_missing_one_are_made_with_it(path: Path):
    manifest = counting(path)
    [second] = [fit for fit in manifest.fits.values() if fit.depends]
    replaced(path, [fit for fit in manifest.fits.values() if fit.key not in second.depends])
    report = Pipeline.from_yaml(path).fit(missing=True)
    assert (report.made, report.passes) == (2, 2)
    assert report.manifest == manifest.digest


def test_fits_of_other_features_stay_when_a_folder_is_shared(path: Path, clicks: Path):
    before = counting(path)
    some = {"dense": {"b": FEATURES["dense"]["a"]}}
    other = written(path.parent / "other", clicks, features=some, artifacts=str(folder(path)))
    report = Pipeline.from_yaml(other).fit()
    assert len(report.fits) == 1
    assert counting(path).digest != before.digest
    assert next(Pipeline.from_yaml(path).batches()) is not None
    assert next(Pipeline.from_yaml(other).batches()) is not None


def test_another_format_is_refused_and_fitted_over(path: Path):
    [pointer] = folder(path).glob("pipelines/*/*.json")
    pointer.write_text(pointer.read_text().replace('"format": 1', '"format": 2'))
    assert f"{pointer.name} have another format: got version 2, expected 1. Fit again" in refusal(path)
    Pipeline.from_yaml(path).fit()
    assert next(Pipeline.from_yaml(path).batches()) is not None


OF_EACH_KIND = {  # of what is said
    ("pipelines/*/*.json", "deleted"), ("pipelines/*/*.json", "altered"), ("fits-*.json", "cut"),
    ("tables/*.parquet", "altered"), ("tables/*.parquet", "deleted"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(*each, marks=() if each in OF_EACH_KIND else pytest.mark.nightly)
        for each in itertools.product(
            ("pipelines/*/*.json", "fits-*.json", "tables/*.parquet"), ("cut", "altered", "deleted")
        )
    ],
)
def test_damaged_files_are_refused_by_name(path: Path, name: str, damage: str):
    stored_artifacts._artifacts.clear()
    stored_artifacts._load_manifest.cache_clear()
    file = sorted(folder(path).glob(name))[0]
    content = file.read_bytes()
    if damage == "deleted":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        at = len(content) // 2 if "pipelines" not in name else content.index(b'"manifest": "') + 20
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    message = refusal(path)
    assert "feedline fit" in message
    if ("pipelines" in name, damage) == (True, "deleted"):
        assert "got no artifact" in message
    elif ("pipelines" in name, damage) == (True, "altered"):
        assert "is gone: expected a set of fits" in message  # it names another one
    else:
        assert file.name in message
    Pipeline.from_yaml(path).fit()
    assert next(Pipeline.from_yaml(path).batches()) is not None


def test_a_worker_that_cannot_reach_the_files_fails_before_the_first_block(path: Path):
    job = Pipeline.from_yaml(path).plan().source.job
    check_job(job)
    table = next((folder(path) / "tables").iterdir())
    size = table.stat().st_size
    os.truncate(table, size - 1)
    with pytest.raises(ClusterError, match=rf"{table.name}.*got {size - 1} bytes, expected {size} bytes"):
        check_job(job)
    table.unlink()
    with pytest.raises(ClusterError, match=rf"cannot read the artifacts: artifact .*{table.name}.*got no file"):
        check_job(job)
    with pytest.raises(CorruptFileError, match="is gone"):
        check_files(replace(job.artifacts, manifest="0" * 64))


def test_threads_load_an_artifact_once(path: Path, monkeypatch):
    artifacts = Pipeline.from_yaml(path).plan().source.job.artifacts
    stored_artifacts._artifacts.clear()
    read: list[str] = []
    load = stored_artifacts._load_table
    monkeypatch.setattr(stored_artifacts, "_load_table", lambda *given: (read.append(given[1].name), load(*given))[1])
    manifest = StoredArtifactSet(artifacts).manifest
    assert manifest is not None
    found: list[list[Artifact]] = []

    def look() -> None:
        found.append([load_artifact(artifacts.folder, fit) for fit in manifest.fits.values()])

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read) == len(set(read)) == 3
    assert all(each[place] is found[0][place] for each in found for place in range(len(found[0])))


def test_a_job_keeps_the_set_it_began_with(path: Path):
    plan = Pipeline.from_yaml(path).plan()
    Pipeline.from_yaml(path, {"source.where": "id_0 > 3"}).fit()
    stored_artifacts._artifacts.clear()
    again = Pipeline.from_yaml(path)
    assert again.plan().source.features.fingerprint != plan.source.features.fingerprint
    assert StoredArtifactSet(plan.source.job.artifacts).manifest is not None
    assert next(again.batches(plan=plan)) is not None


def test_nothing_is_looked_up_for_features_that_learn_nothing(tmp_path: Path, clicks: Path):
    path = written(tmp_path, clicks, features={"dense": {"dense_0": [{"fill_null": 0}]}}, artifacts="nowhere://x/y")
    assert next(Pipeline.from_yaml(path).batches()) is not None


def test_a_manifest_records_fits_and_their_rows(path: Path, clicks: Path):
    [file] = folder(path).glob("fits-*.json")
    [fit] = [one for one in json.loads(file.read_text())["fits"] if one["features"] == ["word"]]
    assert (fit["op"], fit["version"], json.loads(fit["parameters"])) == ("occurrences", 1, {"name": None, "scale": 1})
    assert fit["types"] == {"str_0": "string"}
    assert fit["fitted_on"]["table"] == str(clicks)
    assert (fit["fitted_on"]["rows"], fit["fitted_on"]["where"]) == (20_000, None)
    assert len(fit["fitted_on"]["snapshot"]) == 64
    assert fit["table"]["rows"] == fit["facts"]["values"]


def test_references_are_small_values():
    ref = ArtifactSetRef(folder="a", manifest=None, out_of_fold=True, base_dir="b")
    function, arguments = StoredArtifactSet(ref).__reduce__()
    assert function(*arguments).ref == ref


SHARED = {"occurrences": {"name": "ids"}}
SHARING = {
    "categorical": {
        "one": {"column": "id_0", "ops": [{"modulo": 100}, SHARED]},
        "other": {"column": "id_1", "ops": [{"modulo": 100}, SHARED]},
        "again": {"column": "id_1", "ops": [SHARED, "minus_mean"]},
    }
}


def test_a_fit_shared_by_name_is_refused_behind_other_ops(tmp_path: Path, clicks: Path):
    path = written(tmp_path, clicks, features=SHARING)
    Pipeline.from_yaml(path).fit()
    edited = {"features.categorical.one": {"column": "id_0", "ops": [{"modulo": 1000}, SHARED]}}
    message = refusal(path, **{key.replace(".", "__"): value for key, value in edited.items()})
    assert 'one: occurrences: got an artifact that was learnt from id_0 → modulo {"divisor":100}, id_1' in message
    assert 'expected one learnt from id_0 → modulo {"divisor":1000}' in message
    report = Pipeline.from_yaml(path, edited).fit(missing=True)
    assert (report.made, report.passes) == (2, 2)  # and the fit behind it
    ids = Table(str(clicks)).read(columns=["id_0", "id_1"]).to_pandas()
    expected = pl.Series([*ids["id_0"] % 1000, *ids["id_1"] % 100, *ids["id_1"]]).value_counts()
    [counts] = [fit for fit in counting(path, edited).fits.values() if fit.op == "occurrences"]
    table = load_artifact(str(folder(path)), counts).table
    assert table is not None
    assert dict(zip(*table.to_pydict().values(), strict=True)) == dict(expected.iter_rows())
    assert Pipeline.from_yaml(path, edited).fit(missing=True).made == 0


def test_a_fit_shared_by_name_serves_a_subset_of_its_features(tmp_path: Path, clicks: Path):
    path = written(tmp_path, clicks, features=SHARING)
    Pipeline.from_yaml(path).fit()
    one = {"features.categorical": {"one": SHARING["categorical"]["one"]}}
    assert next(Pipeline.from_yaml(path, one).batches()) is not None
    more = {"features__categorical__hist": {"column": "id_0", "ops": [SHARED]}}
    assert "expected one learnt from id_0" in refusal(path, **more)
