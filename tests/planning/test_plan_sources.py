"""Sources whose batches would differ are refused by name; one that is empty, too. Values are those of the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mixed_tables import OF_VIEWS, mixed_pipeline, write_tables

from feedline import Pipeline
from feedline.errors import SpecError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tables(tmp_path_factory.mktemp("mixed"), clicks=100, views=50)


def pipeline_with(folder: Path, own: dict[str, Any], **changes: Any) -> Pipeline:
    """A pipeline whose source `views` has features of its own."""
    pipeline = mixed_pipeline(folder, **changes)
    pipeline["sources"][1] = {**pipeline["sources"][1], "features": {**OF_VIEWS, **own}}
    return Pipeline.from_dict(pipeline)


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {},
        {"extra": {"id": {"column": "cost"}}},
        r"sources\[1\].features.extra.id: .* differ in 'id': got double of source views, expected int64 as of clicks",
    ),
    (
        {},
        {"categorical": {"item": {"column": "product", "ops": [{"modulo": 50}]}}},
        r"categorical.item: .* differ in 'item': got ids below 50 of source views, expected ids below 100 as of clicks",
    ),
    (
        {"features": {"dense": {"price": []}, "categorical": {"item": ["vocabulary"]}, "extra": ["id"]}},
        {"categorical": {"item": {"column": "product", "ops": [{"vocabulary": {"min_count": 2}}]}}},
        "'item' learns from other values in source views than in clicks: got vocabulary, expected vocabulary",
    ),
    (
        {"features": {"dense": {"price": []}, "categorical": {"item": ["vocabulary"]}, "extra": ["id"]}},
        {"categorical": {"item": {"expr": "product", "ops": [{"modulo": 5}, "vocabulary"]}}},
        "'item' learns from other values in source views than in clicks: got modulo → vocabulary, expected vocabulary",
    ),
    (
        {"dedup": {"item": {"columns": ["item"]}}, "shuffle": "off"},
        {"categorical": {"item": {"expr": "product + 0"}}},
        r"dedup.item.columns: source views: unknown column: got 'item', expected a column of the table",
    ),
]


@pytest.mark.parametrize(("changes", "own", "message"), REFUSED)
def test_sources_whose_batches_differ_are_refused_by_name(folder: Path, changes, own, message):
    with pytest.raises(SpecError, match=message):
        pipeline_with(folder, own, **changes).plan()


def test_a_column_that_a_source_lacks_is_an_error_of_that_source(folder: Path):
    pipeline = mixed_pipeline(folder)
    del pipeline["sources"][1]["features"]
    with pytest.raises(SpecError, match=r"features.dense.price: source views: price: unknown column: got 'price'"):
        Pipeline.from_dict(pipeline).plan()


def test_a_source_that_is_empty_after_its_filter_is_an_error_at_that_filter(folder: Path):
    pipeline = mixed_pipeline(folder)
    pipeline["sources"][1]["where"] = "row < 5"
    with pytest.raises(SpecError, match=r"pipeline: sources\[1\].where: the filter keeps no row: got 0 of 150 rows"):
        Pipeline.from_dict(pipeline).plan()


def test_a_shuffled_column_must_be_in_every_table(folder: Path):
    with pytest.raises(SpecError, match=r"shuffle.by: source views: column 'item' is not in the table"):
        Pipeline.from_dict(mixed_pipeline(folder, shuffle={"by": "item"})).plan()


def test_an_expression_tells_the_source_of_each_row(folder: Path):
    features = {**mixed_pipeline(folder)["features"]}
    features["categorical"] = {**features["categorical"], "source": {"expr": "id * 0"}}
    own = {"categorical": {**OF_VIEWS["categorical"], "source": {"expr": "row * 0 + 1"}}}
    [batch, *_] = pipeline_with(folder, own, features=features).batches()
    assert batch.categorical[:, 1].tolist() == [0] * 8 + [1] * 2


def test_deduplicated_groups_have_the_columns_of_each_source(folder: Path):
    changes: dict[str, Any] = {"dedup": {"item": {"columns": ["item"]}}, "shuffle": "off"}
    pipeline = Pipeline.from_dict(mixed_pipeline(folder, **changes))
    plain = Pipeline.from_dict(mixed_pipeline(folder, shuffle="off"))
    for batch, other in zip(pipeline.batches(), plain.batches(), strict=True):
        assert batch.schema.dedup == ("item",)
        assert batch.expanded().categorical.tolist() == other.categorical.tolist()
