"""Pipelines whose features are parts of columns: batches, serving and plans, however the keys are stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from part_samples import events, flat_table, pl_frame, taken
from warehouse_samples import write

from feedline import Pipeline, Table
from feedline.commands.plan.report import describe
from feedline.errors import SpecError
from feedline.expressions import bind_expression, parse
from feedline.expressions.extraction import project
from feedline.planning.plan import Plan
from feedline.warehouse.optimize.usage import load_uses, record_usage
from feedline.warehouse.reading.columns import part_bytes
from feedline.warehouse.reading.read import bytes_of

FEATURES = {
    "dense": {
        "price": {"expr": 'features_map["price"].fill_null(0) * 2'},
        "cost": {"expr": 'features_map["cost"]', "ops": [{"fill_null": -1}, "log1p"]},
        "lat": {"expr": 'user["geo"]["lat"]', "ops": [{"fill_null": 0}]},
    },
    "categorical": {"country": {"expr": 'user["country"]', "ops": [{"fill_null": "?"}, {"hash_bucket": 100}]}},
    "sparse": {"list": {"expr": "lists[1]"}},
    "extra": ["n"],
}


def pipeline(folder: Path, root: str, **changes: Any) -> Pipeline:
    document = {
        "version": 1,
        "name": "parts",
        "work_dir": str(folder / "work"),
        "source": {"table": root, "where": 'features_map["price"] is not None or user["country"] == "US"'},
        "features": FEATURES,
        "batch": {"size": 4, "tail": "partial"},
        **changes,
    }
    path = folder / "p.yaml"
    path.write_text(json.dumps(document))
    return Pipeline.from_yaml(path)


def delivered(made: Pipeline) -> dict[int, tuple[Any, ...]]:
    """What each row becomes, by its n."""
    rows: dict[int, tuple[Any, ...]] = {}
    for batch in made.batches():
        lists, ends = batch.sparse["list"], batch.sparse["list"].offsets.tolist()
        for place, n in enumerate(batch.extra["n"].tolist()):
            if batch.valid[place]:
                values = tuple(lists.values[ends[place] : ends[place + 1]].tolist())
                rows[n] = (*batch.dense[place].tolist(), int(batch.categorical[place][0]), values)
    return rows


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, pa.Table]:
    return flat_table(tmp_path_factory.mktemp("mixed"), row_group_size=11)


def test_batches_are_the_same_however_the_keys_are_stored(mixed: tuple[str, pa.Table], tmp_path: Path) -> None:
    root, whole = mixed
    (tmp_path / "plain").mkdir()
    plain = write(tmp_path / "plain", {"a.parquet": whole})
    found = delivered(pipeline(tmp_path, root))
    assert found == delivered(pipeline(tmp_path, plain))
    wanted = [
        row
        for row in whole.to_pylist()
        if taken(row, "features_map[price]") is not None or taken(row, "user[country]") == "US"
    ]
    assert sorted(found) == [row["n"] for row in wanted]
    for row in wanted:
        assert found[row["n"]][0] == 2 * (taken(row, "features_map[price]") or 0)
        assert found[row["n"]][4] == tuple(taken(row, "lists[1]") or ())


def test_serving_transforms_what_training_does(mixed: tuple[str, pa.Table], tmp_path: Path) -> None:
    root, whole = mixed
    made = pipeline(tmp_path, root)
    expected = delivered(made)
    stored = Table(root).read()
    place = {n: row for row, n in enumerate(whole["n"].to_pylist())}
    for data in (whole, whole.combine_chunks().to_batches()[0], pl_frame(whole), stored, pl_frame(stored)):
        encoded = made.transform(data)
        values, offsets = encoded.sparse["list"].values, encoded.sparse["list"].offsets
        for n, row in expected.items():
            at = place[n]
            ids = tuple(values[offsets[at] : offsets[at + 1]].tolist())
            assert (*encoded.dense[at].tolist(), int(encoded.categorical[at][0]), ids) == row


def test_a_map_whose_keys_have_columns_where_rows_are_kept_is_not_read(
    mixed: tuple[str, pa.Table], tmp_path: Path
) -> None:
    root, _ = mixed
    features = {"dense": FEATURES["dense"], "extra": ["n"]}
    keys = {"features_map.price", "features_map.cost"}
    for where, read in (
        ("n >= 3000", {"n", "user", *keys}),
        ("n >= 2000", {"n", "user", "features_map", *keys}),
        ("n < 2000", {"n", "user", "features_map"}),
    ):
        plan = pipeline(tmp_path, root, source={"table": root, "where": where}, features=features).plan()
        assert set(plan.source.columns) == read, where
        assert describe(plan.source, world_size=1)["columns"]["read"] == len(read)
        record_usage(
            str(tmp_path / where), plan.source.snapshot, plan.source.parts, plan.source.selection.rows, job="job"
        )
        (use,) = load_uses(str(tmp_path / where), plan.source.snapshot.uri)
        assert set(use.columns) == read, where
        assert sum(use.columns.values()) == int(
            part_bytes(plan.source.snapshot, plan.source.parts)[plan.source.selection.rows > 0].sum()
        )
    whole = pipeline(
        tmp_path, root, source={"table": root, "where": "n >= 3000"}, features={**features, "extra": ["features_map"]}
    )
    assert "features_map" in whole.plan().source.columns


def test_the_plan_counts_and_names_them(mixed: tuple[str, pa.Table], tmp_path: Path) -> None:
    root, _ = mixed
    plan = pipeline(tmp_path, root).plan()
    assert plan.source.features.columns == (
        "n",
        "user",
        "features_map",
        "lists",
        "features_map.price",
        "features_map.cost",
    )
    assert set(plan.source.parts) == {
        "n",
        *('features_map["price"]', 'features_map["cost"]', 'user["geo"]["lat"]', 'user["country"]', "lists[1]"),
    }
    kept = plan.source.selection.rows > 0
    facts = describe(plan.source, world_size=1)
    assert facts["bytes"]["read_per_epoch"] == int(part_bytes(plan.source.snapshot, plan.source.parts)[kept].sum())
    assert facts["counted"]["bytes"] <= bytes_of(
        plan.source.snapshot, None, ['features_map["price"]', 'user["country"]']
    )
    in_map = [file != 2 and keep for file, keep in zip(plan.source.snapshot.file_of_row_group, kept, strict=True)]
    cost = facts["maps"]["features_map"]
    assert cost == {
        "keys": 2,
        "keys_with_columns": 2,
        "bytes": int(part_bytes(plan.source.snapshot, ["features_map"])[in_map].sum()),
        "row_groups": sum(in_map),
        "whole": False,
    }
    assert facts["structs"]["user"]["fields"] == 2


def test_features_do_not_change_with_the_layout(mixed: tuple[str, pa.Table], tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = write(tmp_path / "plain", {"a.parquet": mixed[1]})
    plans: list[Plan] = [pipeline(tmp_path, root).plan() for root in (mixed[0], plain)]
    assert plans[0].source.features.fingerprint == plans[1].source.features.fingerprint


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"dense": {"x": {"column": 'features_map["price"]'}}}, r"Write \{expr: 'features_map\[\"price\"\]'\}"),
        ({"extra": ["user['country']"]}, r"Write \{expr: 'user\['country'\]'\}"),
        ({"dense": {"x": {"expr": 'user["cuntry"]'}}}, "the struct has no field `cuntry`. Did you mean `country`?"),
        ({"dense": {"x": {"expr": "features_map[1]"}}}, "the literal does not fit string"),
    ],
)
def test_errors_in_pipelines(tmp_path: Path, features: dict[str, Any], message: str) -> None:
    root = write(tmp_path / "t", {"a.parquet": events(5, 1)})
    with pytest.raises(SpecError, match=message):
        pipeline(tmp_path, root, features=features, source={"table": root}).plan()


def test_a_missing_column_is_one_that_is_stored_in_no_way(mixed: tuple[str, pa.Table], tmp_path: Path) -> None:
    rules = {"missing": "error"}
    assert (
        pipeline(tmp_path, mixed[0], source={"table": mixed[0], "schema": rules}).plan().source.schedule(0).rows == 90
    )
    tables = {"a.parquet": events(5, 1), "b.parquet": events(5, 2).drop_columns(["features_map"])}
    root = write(tmp_path / "t", tables)
    with pytest.raises(SpecError, match=r'column .features_map\["(price|cost)"\]. is not in .*b.parquet'):
        pipeline(tmp_path, root, source={"table": root, "schema": rules}).plan()


@pytest.mark.parametrize(
    "text",
    [
        'features_map["price"] * 2 - features_map["cost"]',
        'features_map["price"] > 5 or features_map["zzz"] is None and not n > 20',
        'when(user["country"] == "US", user["geo"]["lat"], None)',
        'coalesce(user["scores"]["a"]["lat"], user["geo"]["lon"], 1)',
        'user["geo"] is None or user is None',
        "lists[1].list.sum() + clip(n, 3, 9) + lists[2].list.len().fill_null(0)",
        'user["country"] in ["US", "DE"] and -features_map["age"] < 0',
        'features_map["é"].fill_null(0) + features_map["price"].fill_null(0)',
    ],
)
def test_an_expression_gives_the_same_over_columns_and_over_parts(mixed: tuple[str, pa.Table], text: str) -> None:
    for table in (mixed[1], Table(mixed[0]).read()):
        bound = bind_expression(parse(text), table.schema)
        whole = pl_frame(table).select(bound.polars).to_series()
        narrow = project(table, sorted(bound.parts)).select(bound.narrow).to_series()
        assert whole.to_list() == narrow.to_list()
        assert narrow.dtype == bound.dtype
    first = bind_expression(parse(text), mixed[1].schema)
    assert pl_frame(mixed[1]).select(first.polars).to_series().to_list() == whole.to_list(), "flattened or not"
