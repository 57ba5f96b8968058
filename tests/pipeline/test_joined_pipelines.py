"""Features that look values up outside the table: batches, serving, fitting, worker processes, changed files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from pipelines import Place, furnished, image, oracle
from processes import ended_here
from s3_store import KEYS, Store, put, s3_server

from feedline import FeedlineDataset, Pipeline
from feedline.errors import CorruptFileError, DataError, SpecError, StateError, TableChangedError
from feedline.loader.state import state_of
from feedline.warehouse.storage.locations import locate

ROWS, ITEMS, WIDTH = 4000, 500, 4
RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.random((ITEMS, WIDTH), dtype=np.float32)
PRICES = RANDOM.random(ITEMS).astype(np.float32)
SETTINGS: dict[str, Any] = {
    "source": {"split_rows": 500},
    "batch": {"size": 250, "tail": "partial"},
    "shuffle": {"seed": 1, "window_rows": 1000},
}


def items(prices: np.ndarray = PRICES) -> pa.Table:
    shops = [f"shop {number % 7}" for number in range(ITEMS)]
    return pa.table({"item": range(0, 2 * ITEMS, 2), "price": prices, "shop": shops})


def joined(take: str, table: str = "side/items.parquet", **more: Any) -> dict[str, Any]:
    return {"join_external": {"table": table, "on": "item", "take": take, **more}}


FEATURES: dict[str, Any] = {
    "dense": {
        "price": {"column": "item", "ops": [joined("price", missing=-1)]},
        "vector": {"column": "item", "ops": [{"embedding": "side/vectors.zarr"}]},
        "tastes": {"column": "seen", "ops": [{"embedding": {"array": "side/vectors.zarr", "pooling": "mean"}}]},
    },
    "categorical": {"shop": {"column": "item", "ops": [joined("shop", missing="none"), {"hash_bucket": 100}]}},
    "sparse": {"prices": {"column": "seen", "ops": [joined("price", missing=0)]}},
    "extra": ["item", "row"],
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    random = np.random.default_rng(2)
    table = pa.table(
        {
            "item": random.integers(-5, 2 * ITEMS + 50, ROWS),
            "seen": [random.integers(0, 2 * ITEMS, random.integers(0, 6)).tolist() for _ in range(ROWS)],
            "row": range(ROWS),
        }
    )
    (tmp_path / "table").mkdir()
    pq.write_table(table, tmp_path / "table" / "a.parquet", row_group_size=500)
    (tmp_path / "side").mkdir()
    pq.write_table(items(), tmp_path / "side" / "items.parquet")
    vectors = zarr.create_array(
        store=str(tmp_path / "side" / "vectors.zarr"), shape=VECTORS.shape, chunks=(64, WIDTH), dtype="f4"
    )
    vectors[:] = VECTORS
    with furnished(tmp_path, tmp_path / "table") as place:
        yield place


def test_batches_hold_what_pandas_joins(place: Place):
    path = place.write(features=FEATURES, **SETTINGS)
    stored = pq.read_table(place.table).to_pandas().set_index("row")
    known = items().to_pandas().set_index("item")
    rows: list[int] = []
    for batch in Pipeline.from_yaml(path).batches():
        here = stored.loc[batch.extra["row"].tolist()]
        rows += here.index.tolist()
        assert np.array_equal(
            batch["price"].numpy().ravel(), known["price"].reindex(here["item"]).fillna(-1).to_numpy("f4")
        )
        ids = here["item"].to_numpy()
        inside = (ids >= 0) & (ids < ITEMS)
        assert np.array_equal(batch["vector"].numpy(), np.where(inside[:, None], VECTORS[np.where(inside, ids, 0)], 0))
        seen = np.concatenate([*here["seen"], []])
        values = known["price"].reindex(seen).fillna(0).to_numpy("f4")
        assert np.array_equal(batch.sparse["prices"].values.numpy(), values)
        means = [
            VECTORS[row[row < ITEMS]].mean(0, dtype=np.float64) if (row < ITEMS).any() else np.zeros(WIDTH)
            for row in here["seen"]
        ]
        np.testing.assert_allclose(batch["tastes"].numpy(), means, rtol=1e-5)
    assert sorted(rows) == list(range(ROWS))


def test_misses_are_counted(place: Place):
    table = pq.read_table(place.table)
    ids = table["item"].to_numpy()
    seen = np.concatenate(table["seen"].to_pylist())
    held = Pipeline.from_yaml(place.write(features=FEATURES, **SETTINGS)).plan().source.features
    frame = pl.from_arrow(table.select(held.columns))
    assert isinstance(frame, pl.DataFrame)
    _, counts = held.apply_counting(frame)
    unknown = int(np.sum((ids < 0) | (ids >= 2 * ITEMS) | (ids % 2 == 1)))
    assert counts["price"] == counts["shop"] == [(ROWS, unknown)]
    assert counts["vector"] == [(ROWS, int(np.sum((ids < 0) | (ids >= ITEMS))))]
    assert counts["prices"] == [(len(seen), int(np.sum(seen % 2 == 1)))]
    assert counts["tastes"] == [(len(seen), int(np.sum(seen >= ITEMS)))]


def test_what_is_joined_can_be_learnt_from(place: Place):
    shop = [joined("shop", missing="none"), "vocabulary"]
    pipeline = Pipeline.from_yaml(place.write(features={"categorical": {"item": shop}, "extra": ["row"]}, **SETTINGS))
    pipeline.fit()
    found = [int(value) for batch in pipeline.batches() for value in batch["item"].ravel()]
    assert len(set(found)) == 8  # seven shops and none


def test_what_does_not_fit_is_said_with_its_place(place: Place):
    for op, message in (
        (joined("price", "side/none.parquet"), "dense.x.ops.0.*x: .join_external.: .*side/none.parquet does not exist"),
        (joined("prise"), "side/items.parquet has no column 'prise'. Did you mean `price`"),
        (
            joined("price", max_memory=100),
            "side/items.parquet is larger than max_memory: got 6,... bytes or more, expected at most 100",
        ),
        ({"embedding": "side"}, "side is not a zarr array: got a folder without zarr.json or .zarray"),
        (
            {"join_external": {"table": "side/items.parquet", "on": "shop", "take": "price"}},
            "integers or strings on both sides",
        ),
    ):
        path = place.write(features={"dense": {"x": {"column": "item", "ops": [op]}}}, **SETTINGS)
        with pytest.raises(SpecError, match=message) as caught:
            Pipeline.from_yaml(path).plan()
        assert str(caught.value).startswith(f"{path}:")
    done = ended_here("plan", path)
    assert (done.returncode, "on both sides" in done.stderr) == (2, True), done.stderr


def test_a_missing_vector_that_is_an_error_names_the_row(place: Place):
    op = {"embedding": {"array": "side/vectors.zarr", "missing": "error"}}
    source = {**SETTINGS["source"], "where": f"row < 1700 and item < {ITEMS} and item >= 0 or row == 2345"}
    path = place.write(features={"dense": {"x": {"column": "item", "ops": [op]}}}, **{**SETTINGS, "source": source})
    table = pq.read_table(place.table)
    wrong = table.set_column(
        0, "item", pa.array([10**6 if row == 2345 else id for row, id in enumerate(table["item"].to_pylist())])
    )
    pq.write_table(wrong, place.table / "a.parquet", row_group_size=500)
    with pytest.raises(
        DataError, match=r"vectors.zarr has no row for an id: got 1000000\..*a\.parquet, row group 4, row 2345\)"
    ):
        list(Pipeline.from_yaml(path).batches())


def test_other_values_are_other_features(place: Place):
    path = place.write(features=FEATURES, **SETTINGS)
    first = Pipeline.from_yaml(path).plan()
    assert Pipeline.from_yaml(path).plan().source.features.fingerprint == first.source.features.fingerprint
    pq.write_table(items(), place.folder / "side" / "items.parquet", row_group_size=100)
    assert Pipeline.from_yaml(path).plan().source.features.fingerprint == first.source.features.fingerprint
    state = state_of(first.facts(), epoch=0, step=1)
    pq.write_table(items(PRICES + 1), place.folder / "side" / "items.parquet")
    assert Pipeline.from_yaml(path).plan().source.features.fingerprint != first.source.features.fingerprint
    with pytest.raises(StateError, match="the state belongs to another features"):
        Pipeline.from_yaml(path).plan_for(state)
    with pytest.raises(TableChangedError, match=r"items.parquet has changed since .*: got the digest \w+"):
        list(Pipeline.from_yaml(path).batches(plan=first))


def test_an_array_that_changes_after_it_was_opened(place: Place):
    features = {"dense": {"x": {"column": "item", "ops": [{"embedding": "side/vectors.zarr"}]}}}
    pipeline, table = Pipeline.from_yaml(place.write(features=features, **SETTINGS)), pq.read_table(place.table)
    pipeline.transform(table[:1])
    for chunk in (place.folder / "side" / "vectors.zarr" / "c").glob("*/0"):
        chunk.write_bytes(b"another chunk")
    with pytest.raises(TableChangedError, match="changed after the array was opened: got 13 bytes of"):
        pipeline.transform(table)
    with pytest.raises(CorruptFileError, match=r"vectors\.zarr cannot be decoded"):
        Pipeline.from_yaml(place.folder / "p.yaml").transform(table)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def store(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    store = Store(port)
    yield store
    store.close()
    locate.cache_clear()


@pytest.mark.slow
@pytest.mark.nightly
def test_worker_processes_that_fit_and_transform_read_a_table_once_each(place: Place, store: Store, port: int):
    """Counted by the store: reads of values, that is ranges from a file's beginning."""
    large = pa.table({"item": range(60_000), "price": np.random.default_rng(3).random(60_000).astype(np.float32)})
    pq.write_table(large, place.folder / "large.parquet", row_group_size=60_000)
    put(port, "outside")
    put(port, "outside/large.parquet", (place.folder / "large.parquet").read_bytes())
    joins = {
        name: {"column": "item", "ops": [joined("price", store.uri("outside/large.parquet"), missing=n)]}
        for n, name in enumerate("abc")
    }
    rounded = {"expr": "item // 10", "ops": [joined("item", store.uri("outside/large.parquet")), "vocabulary"]}
    features = {"dense": joins, "categorical": {"rounded": rounded}, "extra": ["row"]}
    path = place.write(features=features, fit="auto", **SETTINGS)
    with FeedlineDataset(path, set={"cluster": {"workers": 2, "threads": 2}}) as dataset:
        seen = [[image(batch) for batch in dataset] for _ in range(2)]
    with store.lock:
        ranges = [request.range for request in store.requests if request.method == "GET"]
    reads = [each for each in ranges if each.startswith("bytes=4-")]
    assert 4 <= len(reads) <= 6  # two readings, each by the feeder and one worker or both
    assert seen == [oracle(path, epoch=epoch) for epoch in range(2)]
