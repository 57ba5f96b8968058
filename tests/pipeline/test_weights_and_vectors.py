"""Weighted lists, vectors and features of several columns come through a whole pipeline as the table holds them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pipelines import Place, furnished, image, oracle
from weighted_rows import ROWS, WIDTH, rows_of

from feedline import FeedlineDataset, Pipeline
from feedline.errors import DataError, SpecError

GROUP = 512
WRONG = {"first_x": "a"}
FILL = [{"fill_null": 0}]
FEATURES: dict[str, Any] = {
    "dense": {
        "price": [],
        "embedding": [],
        "clipped": {"column": "embedding", "ops": [{"clip": {"max": 0.5}}]},
        "vector": [{"vector": WIDTH}],
        "padded": {"column": "ids", "ops": [{"pad": 2}]},
        "day": {"column": "row", "ops": [{"modulo": 3}, {"onehot": 3}]},
        "overlap": {
            "op": "id_overlap_count",
            "inputs": ["ids", {"column": "others", "ops": [{"first_x": 2}]}],
            "ops": FILL,
        },
    },
    "categorical": {"crossed": {"op": {"hashed_cross": 1000}, "inputs": ["row", {"expr": "row * 2"}]}},
    "sparse": {
        "pairs": [],
        "ids": [],
        "beside": {"op": "weighted", "inputs": ["ids", "scores"], "ops": [{"first_x": 2}, {"modulo": 5}]},
        "mapped": [{"weighted": {"fill": 1.0}}],
        "alone": {"column": "pairs", "ops": ["ids"]},
        "scores": {"column": "pairs", "ops": ["weights"]},
    },
    "label": {"label": {"column": "price"}},
    "extra": {"row": []},
}


table_of = cache(rows_of)


def write(folder: Path, **changes: Any) -> Path:
    for file in range(3):
        table = table_of(file)
        for name, column in (changes if file == 1 else {}).items():
            table = table.set_column(table.schema.get_field_index(name), name, column)
        path = folder / f"ds=2026-01-0{file + 1}" / "part.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(table, path, row_group_size=GROUP)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("w"), write(tmp_path_factory.mktemp("t"))) as place:
        yield place


@pytest.fixture(scope="module")
def path(place: Place) -> Path:
    return place.write(features=FEATURES, batch={"size": 700, "tail": "partial"})


@pytest.fixture(scope="module")
def stored() -> dict[str, list[Any]]:
    return pa.concat_tables([table_of(file) for file in range(3)]).to_pydict()


def lists(sparse: Any, what: str) -> list[list[Any]]:
    held = getattr(sparse, what).tolist()
    return [held[start:stop] for start, stop in pairwise(sparse.offsets.tolist())]


def test_every_value_is_the_tables(path: Path, stored: dict[str, list[Any]]):
    seen = 0
    for batch in Pipeline.from_yaml(path).batches():
        rows = batch.extra["row"].tolist()
        seen += len(rows)
        assert batch.dense.shape == (len(rows), 1 + 3 * WIDTH + 2 + 3 + 1)
        assert batch["embedding"].equal(torch.tensor([stored["embedding"][row] for row in rows]))
        assert batch["clipped"].equal(batch["embedding"].clip(max=0.5))
        assert batch["vector"].equal(torch.tensor([stored["vector"][row] for row in rows], dtype=torch.float64).float())
        assert batch["padded"].tolist() == [((stored["ids"][row] or []) + [0, 0])[:2] for row in rows]
        assert batch["day"].argmax(1).tolist() == [row % 3 for row in rows]
        for row, ids, count in zip(rows, lists(batch.sparse["ids"], "values"), batch["overlap"].tolist(), strict=True):
            other = stored["others"][row][:2]
            assert count == sum(min(ids.count(item), other.count(item)) for item in {*ids})
        pairs, beside = batch.sparse["pairs"], batch.sparse["beside"]
        wanted = [stored["pairs"][row] or [] for row in rows]
        assert lists(pairs, "values") == [[pair["id"] for pair in row] for row in wanted]
        assert lists(pairs, "weights") == [[pair["weight"] for pair in row] for row in wanted]
        assert lists(beside, "values") == [[pair["id"] % 5 for pair in row][:2] for row in wanted]
        assert lists(beside, "weights") == [[pair["weight"] for pair in row][:2] for row in wanted]
        assert lists(batch.sparse["mapped"], "weights") == [[1.0, 0.5]] * len(rows)
        assert batch.sparse["alone"].weights is None
        assert batch.sparse["alone"].values.equal(pairs.values)
        assert batch.sparse["scores"].values.equal(pairs.weights)
        assert batch.to_dict()["pairs"].weights is not None
        keys, values, weights, lengths = batch.weighted_keyed_jagged()
        assert keys == ["pairs", "beside", "mapped"]
        assert len(values) == len(weights) == int(lengths.sum())
        assert batch.keyed_jagged()[0] == ["ids", "alone", *keys]
    assert seen == 3 * ROWS


def test_the_schema_names_widths_and_weights(path: Path):
    schema = next(Pipeline.from_yaml(path).batches()).schema
    assert [(schema[name].offset, schema[name].width) for name in ("price", "embedding", "day", "overlap")] == [
        (0, 1),
        (1, WIDTH),
        (3 * WIDTH + 3, 3),
        (3 * WIDTH + 6, 1),
    ]
    assert [column.name for column in schema if column.weighted] == ["pairs", "beside", "mapped"]


@pytest.mark.slow
def test_a_dataset_delivers_the_same_bytes(path: Path):
    with FeedlineDataset(path) as dataset:
        assert [image(batch) for batch in dataset] == oracle(path)


def test_to_dask_shows_pairs_and_vectors(path: Path, stored: dict[str, list[Any]]):
    with dask.config.set(scheduler="synchronous"):
        frame = Pipeline.from_yaml(path).to_dask().compute()
    assert len(frame) == 3 * ROWS
    row = frame.iloc[17]
    assert list(row["pairs"]) == (stored["pairs"][row["row"]] or [])
    assert np.allclose(row["embedding"], stored["embedding"][row["row"]])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"vector": pa.array([[0.0] * (WIDTH - (row == 700)) for row in range(ROWS)])},
            [
                "feature 'vector' cannot be computed (vector)",
                f"got {WIDTH - 1}, expected {WIDTH}",
                "ds=2026-01-02/part.parquet, row group 1, row 700)",
            ],
        ),
        (
            {"scores": pa.array([[0.5]] * ROWS, pa.list_(pa.float64()))},
            [
                "feature 'beside' cannot be computed (weighted(ids, scores) → first_x → modulo)",
                "each id must have one weight",
                "ds=2026-01-02/part.parquet, row group 0, row ",
            ],
        ),
        (
            {"embedding": pa.array([None] + [[0.0] * WIDTH] * (ROWS - 1), pa.list_(pa.float32(), WIDTH))},
            ["feature 'embedding' holds a null: got 1 null vectors", "row group 0, row 0)"],
        ),
    ],
    ids=["vector", "weights", "null"],
)
def test_what_does_not_fit_is_named_with_its_place(tmp_path: Path, changes: dict[str, Any], words: list[str]):
    with furnished(tmp_path, write(tmp_path / "table", **changes)) as place:
        small = {"source": {"split_rows": GROUP}, "shuffle": "off", "batch": {"size": 500, "tail": "partial"}}
        path = place.write(features=FEATURES, **small)
        with pytest.raises(DataError) as caught:
            list(Pipeline.from_yaml(path).batches())
        for word in words:
            assert word in str(caught.value)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (
            {"dense": {"x": {"op": "has_id_overlap", "inputs": ["ids", {"column": "pairs", "ops": [WRONG]}]}}},
            ["features.dense.x.inputs[1].ops[0]", "x (input pairs → first_x): [first_x]", "got 'a'"],
        ),
        (
            {"sparse": {"x": {"op": {"cartesian": 9}, "inputs": ["ids", "price"]}}},
            ["features.sparse.x", "x: [cartesian](ids, price): input 2 of cartesian", "got float"],
        ),
        ({"sparse": {"x": {"op": {"cartesian": 9}, "inputs": ["ids", "idz"]}}}, ["inputs[1]", "Did you mean `ids`"]),
        ({"sparse": {"x": {"op": {"cartesian": 9}, "inputs": [{"columns": "ids"}]}}}, ["unknown key of an input"]),
        ({"sparse": {"ids": [{"cartesian": 9}]}}, ["ids: [cartesian]: input 2 of cartesian", "got 1 of its inputs"]),
        ({"dense": {"pairs": []}}, ["[dense]: dense takes one number per row: got weighted integer list"]),
        ({"dense": {"vector": []}}, ["got float list", "{pad: LENGTH}"]),
        ({"sparse": {"x": {"column": "pairs", "ops": [{"cast": "float32"}]}}}, ["weights beside integer ids"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_before_anything_is_read(place: Place, features: dict[str, Any], words: list[str]):
    with pytest.raises(SpecError) as caught:
        Pipeline.from_yaml(place.write("wrong.yaml", features=features)).plan()
    for word in words:
        assert word in str(caught.value)
