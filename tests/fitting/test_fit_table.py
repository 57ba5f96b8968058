"""A fit over several tables: which of them it learns from, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from mixed_tables import OF_VIEWS, mixed_pipeline, write_tables

from feedline import Pipeline
from feedline.errors import PlanError, SpecError
from feedline.fitting.fit_table import fit_tables, same_requests
from feedline.transforms.learning.learner import NO_ARTIFACTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tables(tmp_path_factory.mktemp("mixed"), clicks=50, views=20)


FEATURES = {"dense": {"price": ["standardize"]}, "categorical": {"item": ["vocabulary"]}, "extra": ["id"]}


def test_every_source_is_a_table_and_all_need_the_same_fits(folder: Path):
    pipeline = Pipeline.from_dict(mixed_pipeline(folder, features=FEATURES))
    tables = fit_tables(pipeline.spec, pipeline.snapshots())
    assert [table.spec.source_name for table in tables] == ["clicks", "views"]
    requests, alike = same_requests(tables, NO_ARTIFACTS)
    assert [set(each.values()) for each in alike] == [{frozenset()}, {frozenset()}]
    assert [request.op[0] for request in requests.values()] == ["standardize", "vocabulary"]
    assert [request.types for request in requests.values()] == [
        {"cost": "double", "price": "double"},
        {"item": "int64", "product": "int64"},
    ]
    assert [table.rows(table.select()) for table in tables] == [150, 60]
    assert [table.origin(7).table for table in tables] == [str(folder / "clicks"), str(folder / "views")]


def test_a_source_of_another_type_is_refused_by_name(folder: Path):
    pipeline = mixed_pipeline(folder, features=FEATURES)
    pipeline["sources"][1]["features"] = {**OF_VIEWS, "categorical": {"item": {"expr": "product.cast('string')"}}}
    own = Pipeline.from_dict(pipeline)
    message = (
        r"sources\[1\].features.categorical.item: item: vocabulary cannot learn from both sources clicks and views"
    )
    with pytest.raises(SpecError, match=message):
        own.fit()


def test_an_op_that_only_one_source_has_is_refused_by_name(folder: Path):
    pipeline = mixed_pipeline(folder, features=FEATURES)
    pipeline["sources"][1]["features"] = {**OF_VIEWS, "dense": {"price": {"column": "cost", "ops": []}}}
    with pytest.raises(SpecError, match="standardize cannot learn from both sources clicks and views: got nothing"):
        Pipeline.from_dict(pipeline).fit()


def test_a_fit_needs_rows_of_any_source(folder: Path):
    features = {"dense": {"price": ["standardize"]}, "categorical": {"item": []}, "extra": ["id"]}
    pipeline = mixed_pipeline(folder, features=features)
    pipeline["sources"][0]["where"] = "id > 100000"
    [fit] = Pipeline.from_dict(pipeline).fit().fits
    assert fit.rows == 60
    pipeline["sources"][1]["where"] = "row < 0"
    with pytest.raises((SpecError, PlanError), match=r"sources\[0\].where: the filter keeps no row: got 0 of 150 rows"):
        Pipeline.from_dict(pipeline).fit()
