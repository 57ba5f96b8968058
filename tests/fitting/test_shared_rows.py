"""Rows that several sources read are learnt from once: fits are those of the union of the rows, to the bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline, Table
from feedline.artifacts.store import Fit, load_manifest
from feedline.fitting.fit_report import FitReport
from feedline.planning.table_snapshot import freeze

ROWS, FILES, GROUP = 1_200, 3, 100
RANDOM = np.random.default_rng(7)
CLICKED = RANDOM.random(ROWS) < 0.2
TABLE = pa.table(
    {
        "id": np.arange(ROWS),
        "x": np.exp(RANDOM.normal(CLICKED * 3.0, 2, ROWS)),
        "c": RANDOM.integers(0, 40, ROWS),
        "clicked": CLICKED.astype(np.int64),
    }
)
FEATURES: dict[str, Any] = {
    "dense": {
        "x": ["standardize"],
        "middle": {"column": "x", "ops": ["fill_median"]},
        "bucket": {"column": "x", "ops": [{"quantile_bucketize": 8}, "standardize"]},
        "rate": {"column": "c", "ops": [{"target_encoding": {"target": "clicked", "fold_by": "id"}}]},
        "price": {"column": "c", "ops": [{"group_statistics": {"stats": ["mean", "std"], "of": "x"}}]},
    },
    "categorical": {"v": {"column": "c", "ops": [{"vocabulary": {"min_count": 28}}]}},
    "extra": {"id": []},
}

Source = dict[str, Any]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of a partitioned table, and links to it."""
    folder = tmp_path_factory.mktemp("shared")
    for file in range(FILES):
        path = folder / "t" / f"k={file}" / "a.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(TABLE.slice(file * ROWS // FILES, ROWS // FILES), path, row_group_size=GROUP)
    (folder / "link").symlink_to(folder / "t")
    (folder / "file.parquet").symlink_to(folder / "t" / "k=1" / "a.parquet")
    return folder


def pipeline(work: Path, sources: list[Source], **changes: Any) -> Pipeline:
    one = {"source": sources[0]}
    several = {"sources": [{"name": f"s{n}", "weight": 1, **each} for n, each in enumerate(sources)]}
    document = {"version": 1, "name": "n", "work_dir": str(work), "features": FEATURES, "batch": {"size": 100}}
    document["fit"] = {"golden": "none"}
    return Pipeline.from_dict({**document, **(one if len(sources) == 1 else several), **changes})


def digests(report: FitReport) -> dict[str, str]:
    assert report.manifest is not None
    return {key: fit.digest for key, fit in load_manifest(report.folder, report.manifest).fits.items()}


def fit_of(fitted: Pipeline, feature: str) -> Fit:
    """The current fit of a feature."""
    report = fitted.fit(missing=True)
    assert report.manifest is not None
    fits = load_manifest(report.folder, report.manifest).fits.values()
    return next(fit for fit in fits if fit.features == (feature,))


def union_of(work: Path, sources: list[Source]) -> tuple[int, dict[str, str]]:
    """The fits of a table that holds each row of the sources once, in one file, and its rows."""
    read = [Table(each["table"]).read(["id"], where=each.get("where"), sample=each.get("sample")) for each in sources]
    ids = np.unique(np.concatenate([each["id"].to_numpy() for each in read]))
    assert len(ids) < sum(map(len, read))
    work.mkdir()
    pq.write_table(TABLE.take(pa.array(ids)), work / "union.parquet")
    return len(ids), digests(pipeline(work, [{"table": str(work / "union.parquet")}]).fit())


def all_and(folder: Path, **other: Any) -> list[Source]:
    return [{"table": f"{folder}/t"}, {"table": f"{folder}/t", **other}]


SAMPLE = {"fraction": 0.4}
NIGHTLY = {  # of a kind with another case
    "those of one label first",
    "one filter in two spellings",
    "samples of other rows",
    "a link and a URI",
}
CASES: dict[str, Callable[[Path], list[Source]]] = {
    "all rows, and those of one label again": lambda at: all_and(at, where="clicked == 1"),
    "those of one label first": lambda at: all_and(at, where="clicked == 1")[::-1],
    "one filter in two spellings": lambda at: [
        {"table": f"{at}/t", "where": where} for where in ("c < 30", "(30>c)")
    ],
    "filters that overlap, and a third": lambda at: [
        {"table": f"{at}/t", "where": where} for where in ("c < 20", "id % 3 == 0", "clicked == 1")
    ],
    "a filter that statistics decide": lambda at: [
        {"table": f"{at}/t", "where": where} for where in ("id < 750", "id > 420")
    ],
    "samples of other rows": lambda at: [
        {"table": f"{at}/t", "sample": {"fraction": 0.5, "seed": seed, "where": "clicked == 0"}} for seed in range(2)
    ],
    "samples by position, below other roots": lambda at: [
        {"table": f"{at}/t", "sample": SAMPLE},
        {"table": f"{at}/t/k=1", "sample": SAMPLE},
        {"table": f"{at}/t/k=2/a.parquet", "sample": {"fraction": 0.3, "key": ["c"]}},
    ],
    "a link and a URI": lambda at: [
        {"table": f"{at}/link", "where": "c < 20"},
        {"table": f"file://{at}/t", "where": "c > 10"},
    ],
    "a URI of a partition, a linked file and a list": lambda at: [
        {"table": f"file://{at}/t/k=1", "where": "c < 20"},
        {"table": f"{at}/file.parquet", "where": "c > 10"},
        {"table": [f"{at}/t/k=2/a.parquet", f"{at}/t/k=1/a.parquet"], "where": "c != 12"},
    ],
    "a key of the path": lambda at: [
        {"table": f"{at}/t", "where": "k == 1 and c < 30"},
        {"table": f"{at}/t/k=1"},
        {"table": f"{at}/t", "where": "k != 2 and clicked == 1"},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.nightly if name in NIGHTLY else (), id=name) for name, case in CASES.items()],
)
def test_a_fit_has_the_union_of_the_rows(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Callable[[Path], list[Source]]
):
    monkeypatch.setattr("feedline.fitting.fit_tasks._MIN_TASK_ROWS", 250)
    monkeypatch.setattr("feedline.fitting.observe.OBSERVE_ROWS", 70)
    sources = case(table)
    rows, expected = union_of(tmp_path / "union", sources)
    report = pipeline(tmp_path / "work", sources).fit()
    assert digests(report) == expected
    assert report.fits[0].rows == rows


def test_a_copy_of_a_file_has_rows_of_its_own(table: Path, tmp_path: Path):
    content = (table / "t" / "k=1" / "a.parquet").read_bytes()
    (tmp_path / "copy.parquet").write_bytes(content)
    sources: list[Source] = [{"table": f"{table}/t/k=1"}, {"table": str(tmp_path / "copy.parquet")}]
    assert pipeline(tmp_path / "work", sources).fit().fits[0].rows == 2 * ROWS // FILES


def test_snapshots_of_one_table_share_the_files_of_both(table: Path, tmp_path: Path):
    (tmp_path / "t").mkdir()
    for file in range(2):
        os.link(table / "t" / f"k={file}" / "a.parquet", tmp_path / "t" / f"{file}.parquet")
    freeze(pipeline(tmp_path / "work", [{"table": f"{tmp_path}/t"}]).spec, str(tmp_path / "frozen"))
    os.link(table / "t" / "k=2" / "a.parquet", tmp_path / "t" / "2.parquet")
    sources: list[Source] = [
        {"table": f"{tmp_path}/t", "snapshot": f"{tmp_path}/frozen"},
        {"table": f"{tmp_path}/t", "where": "clicked == 1"},
    ]
    fits = pipeline(tmp_path / "work", sources).fit().fits
    assert fits[0].rows == 2 * ROWS // FILES + CLICKED[2 * ROWS // FILES :].sum()


def test_rows_that_one_source_excludes_are_learnt_from_the_other(table: Path, tmp_path: Path):
    features = {"dense": {"id": {"column": "id", "expect": {"max": "<= 1000"}}}}
    source: Source = {"table": f"{table}/t", "where": "c < 30"}
    checked = pipeline(tmp_path / "work", [source], features=features)
    report = checked.check_rows(tmp_path / "bad.arrow", max_share=1)
    assert 0 < report.bad < ROWS
    sources = [{**source, "exclude": str(tmp_path / "bad.arrow")}, {**source, "where": "clicked == 1"}]
    rows = pipeline(tmp_path / "work", sources).fit().fits[0].rows
    assert rows == (((TABLE["c"].to_numpy() < 30) & (np.arange(ROWS) <= 1000)) | CLICKED).sum()


def test_only_fits_of_the_same_values_share_rows(table: Path, tmp_path: Path):
    """A source that redefines a feature has other values of it in the same rows: both are learnt from."""
    redefined = {"dense": {"x": {"expr": "x * 10"}}}
    sources = all_and(table, where="clicked == 1", features=redefined)
    own, [whole] = pipeline(tmp_path / "work", sources), [pipeline(tmp_path / "whole", sources[:1])]
    x, found, once = TABLE["x"].to_numpy(), digests(own.fit()), digests(whole.fit())
    assert [key for key in found if found[key] != once[key]] == [fit_of(own, "x").key]
    both = np.concatenate([x, 10 * x[CLICKED]])
    assert np.isclose(fit_of(own, "x").facts["mean"], both.mean())
    assert np.isclose(fit_of(whole, "x").facts["mean"], x.mean())


def test_other_definitions_of_a_source_are_another_fit(table: Path, tmp_path: Path):
    def mean(expression: str | None) -> float:
        features = {} if expression is None else {"features": {"dense": {"x": {"expr": expression}}}}
        sources: list[Source] = [{"table": f"{table}/t/k=1"}, {"table": f"{table}/t/k=2", **features}]
        own = pipeline(tmp_path / "work", sources)
        own.fit(missing=True)
        return float(fit_of(own, "x").facts["mean"])

    x = TABLE["x"].to_numpy()
    one, two = x[ROWS // 3 : 2 * ROWS // 3], x[2 * ROWS // 3 :]
    for expression, factor in (("x * 10", 10), ("x * 100", 100), ("x * 100", 100), (None, 1)):
        assert np.isclose(mean(expression), np.concatenate([one, factor * two]).mean())
