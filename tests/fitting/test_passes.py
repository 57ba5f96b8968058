"""The passes of a fit, the rows and columns it reads, and artifacts that do not depend on how it runs."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fit_in_memory import fit_frames
from own_modules import own_modules
from toy_ops import FEATURES, toy_ops, written

from feedline import Pipeline
from feedline.artifacts.store import load_artifact, load_manifest
from feedline.errors import CorruptFileError, DataError, PlanError, SpecError
from feedline.fitting.fit_report import FitReport
from feedline.progress import Progress, on_progress
from feedline.transforms.learning.learner import Artifact
from feedline.warehouse.reading.read import bytes_of
from feedline.warehouse.table import Table

COLUMNS = ("id_0", "id_1", "str_0", "hist_0")


@pytest.fixture(autouse=True)
def _ops() -> Iterator[None]:
    with toy_ops():
        yield


@pytest.fixture(scope="module")
def rows(clicks: Path) -> pa.Table:
    return Table(str(clicks)).read(columns=[*COLUMNS, "clicked"])


def artifacts(report: FitReport) -> dict[str, Artifact]:
    assert report.manifest is not None
    fits = load_manifest(report.folder, report.manifest).fits
    return {f"{fit.features[0]}.{fit.op}": load_artifact(report.folder, fit) for fit in fits.values()}


def digests(report: FitReport) -> dict[str, str]:
    return {name: artifact.digest for name, artifact in artifacts(report).items()}


def cut(folder: Path, rows: pa.Table, *, order: np.ndarray, files: int, row_group_rows: int) -> Path:
    folder.mkdir()
    shuffled = rows.take(pa.array(order))
    for number, part in enumerate(np.array_split(np.arange(len(rows)), files)):
        chunk = shuffled.slice(int(part[0]), len(part))
        pq.write_table(chunk, folder / f"{number}.parquet", row_group_size=row_group_rows)
    return folder


def test_the_longest_chain_of_fits_gives_the_number_of_passes(tmp_path: Path, clicks: Path, rows: pa.Table):
    said: list[Progress] = []
    pipeline = Pipeline.from_yaml(written(tmp_path, clicks))
    with on_progress(said.append):
        report = pipeline.fit()
    for done in (0, 20_000):
        assert [(one.phase, one.total) for one in said if one.phase.startswith("fitting") and one.done == done] == [
            ("fitting, pass 1 of 2", 20_000),
            ("fitting, pass 2 of 2", 20_000),
        ]
    assert (report.passes, report.made, report.rows, len(report.fits)) == (2, 5, 20_000, 5)
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    expected = fit_frames(pipeline.spec.features, rows.schema, [frame]).artifacts  # all rows at once, in memory
    assert report.manifest is not None
    found = load_manifest(report.folder, report.manifest).fits
    assert {key: fit.digest for key, fit in found.items()} == {key: made.digest for key, made in expected.items()}
    counts = frame["id_1"].value_counts()
    assert artifacts(report)["two.minus_mean"].facts == {"count": 20_000, "sum": int((counts["count"] ** 2).sum())}
    second = next(fit for fit in found.values() if fit.depends)
    assert list(second.depends.values()) == [digests(report)["two.occurrences"]]
    assert not [path.name for path in (tmp_path / "work").iterdir() if path.name.startswith("fitting")]


def test_only_columns_to_learn_from_are_read(tmp_path: Path, clicks: Path, rows: pa.Table):
    table = cut(tmp_path / "t", rows, order=np.arange(len(rows)), files=1, row_group_rows=5_000)
    snapshot = Table(str(table)).snapshot()
    features = {"categorical": {"word": {"column": "str_0", "ops": ["occurrences"]}, "id_0": [{"modulo": 7}]}}
    path = written(tmp_path / "p", table, features=features, fit={"where": "id_1 > 3"})
    [file] = table.iterdir()
    content = bytearray(file.read_bytes())
    metadata = pq.read_metadata(file)
    for group in range(metadata.num_row_groups):  # a run reads this column, a fit does not
        chunk = metadata.row_group(group).column(metadata.schema.to_arrow_schema().get_field_index("id_0"))
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        content[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    file.write_bytes(content)
    report = Pipeline.from_yaml(path).fit()
    assert report.nbytes_read == bytes_of(snapshot, None, ["str_0", "id_1"])
    kept = pl.from_arrow(rows).filter(pl.col("id_1") > 3)
    assert isinstance(kept, pl.DataFrame)
    assert report.rows == kept.height
    assert artifacts(report)["word.occurrences"].facts["values"] == kept["str_0"].n_unique()
    with pytest.raises(CorruptFileError):
        list(Pipeline.from_yaml(path).batches())


def test_row_groups_that_the_filter_excludes_are_not_opened(tmp_path: Path, clicks: Path):
    path = written(tmp_path, clicks, source={"table": str(clicks), "where": 'ds == "2026-01-02"'})
    report = Pipeline.from_yaml(path).fit()
    snapshot = Table(str(clicks)).snapshot()
    day = np.flatnonzero(["2026-01-02" in name for name in snapshot.files["path"].to_pylist()])
    groups = np.flatnonzero(np.isin(snapshot.file_of_row_group, day))
    first = bytes_of(snapshot, groups, COLUMNS)
    assert report.nbytes_read == first + bytes_of(snapshot, groups, ["id_1"])
    assert report.fits[0].where == 'ds == "2026-01-02"'
    assert report.rows == int(snapshot.rows_per_row_group[groups].sum())


def test_rows_to_learn_from_differ_from_rows_to_read(tmp_path: Path, clicks: Path):
    path = written(tmp_path, clicks, fit={"where": "id_0 < 100"}, source={"table": str(clicks), "where": "id_0 < 5"})
    report = Pipeline.from_yaml(path).fit()
    whole = Pipeline.from_yaml(path, {"source.where": None, "batch.tail": "partial"})
    assert report.rows > sum(len(batch.labels) for batch in Pipeline.from_yaml(path).batches())
    assert sum(len(batch.labels) for batch in whole.batches()) == 20_000  # with the same artifacts
    expected = artifacts(report)["a.minus_mean"].facts
    batch = next(whole.batches(), None)
    assert batch is not None
    assert expected["count"] == report.rows


def test_only_the_sample_is_learnt_from(tmp_path: Path, clicks: Path):
    sample = {"fraction": 0.25, "seed": 1}
    path = written(tmp_path, clicks, source={"table": str(clicks), "sample": sample})
    pipeline = Pipeline.from_yaml(path)
    report = pipeline.fit()
    assert report.rows == int(pipeline.plan().source.selection.rows.sum())
    assert report.fits[0].sample is not None
    assert report.fits[0].sample["fraction"] == 0.25


def test_no_rows_and_no_values_are_errors(tmp_path: Path, clicks: Path, rows: pa.Table):
    path = written(tmp_path / "a", clicks, fit={"where": "id_0 < 0"})
    with pytest.raises(SpecError, match=r"fit\.where: the filter keeps no row: got 0 of 20,000 rows to fit on"):
        Pipeline.from_yaml(path).fit()
    path = written(tmp_path / "b", clicks, source={"table": str(clicks), "where": 'ds == "1999-01-01"'})
    with pytest.raises(SpecError, match=r"source\.where: the filter keeps no row"):
        Pipeline.from_yaml(path).fit()
    pq.write_table(rows.slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(PlanError, match="nothing to fit on: got 0 of 0 rows"):
        Pipeline.from_yaml(written(tmp_path / "c", tmp_path / "empty.parquet")).fit()
    nulls = rows.set_column(0, "id_0", pa.nulls(len(rows), pa.int64()))
    table = cut(tmp_path / "n", nulls, order=np.arange(len(rows)), files=1, row_group_rows=10_000)
    with pytest.raises(DataError, match="a: minus_mean: minus_mean: no value: got nulls only"):
        Pipeline.from_yaml(written(tmp_path / "d", table)).fit()
    for name in "abcd":
        assert not (tmp_path / name / "work" / "artifacts").exists()
        assert not list((tmp_path / name / "work").glob("fitting*"))


def test_nothing_to_fit(tmp_path: Path, clicks: Path):
    report = Pipeline.from_yaml(written(tmp_path, clicks, features={"dense": {"dense_0": []}})).fit()
    assert (report.fits, report.made, report.manifest) == ((), 0, None)
    assert not (tmp_path / "work" / "artifacts" / "pipelines").exists()


@pytest.mark.parametrize("when", [0, 1, 2])
def test_an_interrupted_fit_leaves_the_current_set(tmp_path: Path, clicks: Path, when: int):
    path = written(tmp_path, clicks)
    before = Pipeline.from_yaml(path).fit()
    said: list[Progress] = []

    def stop(progress: Progress) -> None:
        if progress.phase.startswith("fitting"):
            said.append(progress)
        if len(said) > when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), on_progress(stop):
        Pipeline.from_yaml(path, {"source.where": "id_0 > 5"}).fit()
    assert next(Pipeline.from_yaml(path).batches()) is not None
    [file] = (tmp_path / "work" / "artifacts").glob("pipelines/*/*.json")
    pointer = json.loads(file.read_text())
    assert pointer["manifest"] == before.manifest
    assert not list((tmp_path / "work").glob("fitting*"))
    assert not list((tmp_path / "work").rglob("*.tmp"))


def test_fits_at_the_same_time_leave_one_whole_set(tmp_path: Path, clicks: Path):
    path = written(tmp_path, clicks)
    wheres = [f"id_0 >= {number}" for number in (0, 3)] * 2
    reports: list[FitReport] = []
    threads = [
        threading.Thread(
            target=lambda where=where: reports.append(Pipeline.from_yaml(path, {"source.where": where}).fit())
        )
        for where in wheres
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({report.manifest for report in reports}) == 2
    plan = Pipeline.from_yaml(path).plan()
    plan.require_fitted()
    assert plan.source.job.artifacts.manifest in {report.manifest for report in reports}


def test_the_fingerprint_of_features_depends_on_artifacts(tmp_path: Path, clicks: Path):
    path = written(tmp_path, clicks)

    def fitted(where: str) -> str:
        Pipeline.from_yaml(path, {"source.where": where}).fit()
        return Pipeline.from_yaml(path).plan().source.features.fingerprint

    first = fitted("id_0 >= 0")
    other = fitted("id_0 >= 3")
    assert first != other
    assert fitted("id_0 >= 0 and id_1 >= 0") == first  # another filter for the same rows


def test_every_feature_of_a_fit_is_named(tmp_path: Path, clicks: Path):
    shared = {"occurrences": {"name": "ids"}}
    features = {"categorical": {"id_0": [shared], "id_1": [shared], "again": {"column": "id_1", "ops": [shared]}}}
    report = Pipeline.from_yaml(written(tmp_path, clicks, features=features)).fit()
    assert [one.features for one in report.fits] == [("id_0", "id_1", "again")]
    assert FEATURES["dense"]


def test_a_shared_fit_waits_for_the_chains_of_all_features(tmp_path: Path, clicks: Path):
    shared = {"occurrences": {"name": "ids"}}
    features = {
        "dense": {"two": {"column": "id_1", "ops": [shared, "minus_mean"]}},
        "categorical": {"mean": {"column": "id_0", "ops": ["minus_mean", shared]}},
    }
    report = Pipeline.from_yaml(written(tmp_path, clicks, features=features)).fit()
    assert report.passes == 3
    found = {name: artifact.facts for name, artifact in artifacts(report).items()}
    ids = Table(str(clicks)).read(columns=["id_0", "id_1"]).to_pandas()
    mean = found["mean.minus_mean"]["sum"] // found["mean.minus_mean"]["count"]
    counts = pl.Series([*ids["id_1"], *(ids["id_0"] - mean)]).value_counts()
    occurrences = dict(counts.iter_rows())
    assert found["two.minus_mean"] == {"count": 20_000, "sum": sum(occurrences[id] for id in ids["id_1"])}


@pytest.mark.parametrize("names", [["x", "x"], ["x", "y"]])
def test_a_fit_that_depends_on_itself_is_refused(tmp_path: Path, clicks: Path, names: list[str]):
    one, other = ({"occurrences": {"name": name}} for name in names)
    features = {"categorical": {"id_0": [one, other], "id_1": [other, one]}}
    with pytest.raises(SpecError, match=r"occurrences cannot learn from its own results: got the name 'x' twice"):
        Pipeline.from_yaml(written(tmp_path, clicks, features=features)).fit()


def test_an_unusable_folder_is_named(tmp_path: Path, clicks: Path):
    path = written(tmp_path, clicks, artifacts="taken")
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(SpecError, match=r"artifacts cannot be read: .*taken/.*Name a readable folder"):
        next(Pipeline.from_yaml(path).batches())
    with pytest.raises(SpecError, match=r"cannot be .*taken.*Name"):
        Pipeline.from_yaml(path).fit()
    assert not list((tmp_path / "work").glob("fitting*"))


def test_expectations_do_not_affect_fitting(tmp_path: Path, clicks: Path):
    features = {
        "categorical": {
            "id_0": {"column": "id_0", "ops": ["vocabulary"], "expect": {"oov_rate": "<= 0.5"}},
            "word": {"column": "str_0", "ops": ["vocabulary"], "expect": {"min": ">= 1"}},
        }
    }
    report = Pipeline.from_yaml(written(tmp_path, clicks, features=features)).fit()
    assert (report.made, report.passes) == (2, 1)


def test_code_that_may_have_changed_since_its_import_is_not_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its fit would be found by processes that run the file as it is now."""
    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0]}), tmp_path / "t.parquet")
    (tmp_path / "doubled.py").write_text("def f(x): return x * 2")
    function = {"python": {"function": "doubled:f", "gives": "float64"}}
    document = {"version": 1, "name": "t", "allow_code": True, "source": {"table": "t.parquet"}, "batch": {"size": 1}}
    document["features"] = {"dense": {"x": [function, "standardize"]}}
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    with own_modules(tmp_path):
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.import_module("doubled")
        with pytest.raises(
            SpecError, match="by other code than doubled:f runs here: doubled: it may have changed since"
        ):
            Pipeline.from_yaml(tmp_path / "p.yaml").fit()
    with own_modules(tmp_path):
        assert Pipeline.from_yaml(tmp_path / "p.yaml").fit().made == 1
