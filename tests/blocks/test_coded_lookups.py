"""Joins, encodings by key and users' functions on dictionaries are those on rows: batches, quality and errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from own_modules import own_modules
from pipelines import image

from feedline import Pipeline
from feedline.blocks.compute import run_block
from feedline.errors import FeedlineError
from feedline.native import parquet as native

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="installed without a compiler: no column comes as codes")
ROWS, GROUP = 3000, 700
ITEMS = [*range(-3, 40), 2**40]
SHOPS = ["", "a", "Zürich", "long " * 9]
FUNCTIONS = """
import pyarrow as pa
import pyarrow.compute as pc
import polars as pl
from feedline import user_op

@user_op(gives="float32", form="numpy", per_value=True)
def halved(x):
    return (x / 2).astype("float32")

@user_op(gives="int64", form="arrow", per_value=True)
def characters(x):
    return pc.cast(pc.utf8_length(x), pa.int64())

@user_op(gives="int64", per_value=True)
def doubled(x):
    return x * 2

@user_op(gives="int64", form="numpy", per_value=True)
def small(x):
    if (x > 38).any():
        raise ValueError(f"too large: {x.max()}")
    return x.astype("int64")
"""


def few(random: np.random.Generator, values: list[Any], count: int, nulls: float = 0.0) -> list[Any]:
    chosen = [values[index] for index in random.integers(0, len(values), count)]
    return [None if lost else value for value, lost in zip(chosen, random.random(count) < nulls, strict=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of two files, in whose row groups keys repeat, and a side table without some of the keys."""
    folder, random = tmp_path_factory.mktemp("lookups"), np.random.default_rng(7)
    items = few(random, ITEMS, ROWS, 0.1)
    lists = [few(random, ITEMS, int(length), 0.05) for length in random.integers(0, 9, ROWS)]
    table = pa.table(
        {
            "row": pa.array(range(ROWS)),
            "item": pa.array(items, pa.int64()),
            "full": pa.array(few(random, ITEMS, ROWS), pa.int64()),
            "shop": pa.array(few(random, SHOPS, ROWS, 0.1), pa.string()),
            "user": pa.array([f"user {number}" for number in random.integers(0, 40, ROWS)]),
            "history": pa.array([None if number % 17 == 0 else each for number, each in enumerate(lists)]),
            "tags": pa.array([few(random, SHOPS, int(n)) for n in random.integers(0, 4, ROWS)], pa.list_(pa.string())),
            "filled": pa.array([[value or 0 for value in each] for each in lists], pa.list_(pa.int64())),
            "clicked": pa.array(few(random, [0, 1], ROWS), pa.int8()),
            "priced": pa.array([item in {*ITEMS[2::2]} for item in items]),
        }
    )
    (folder / "table").mkdir()
    pq.write_table(table.slice(0, ROWS // 2), folder / "table" / "0.parquet", row_group_size=GROUP)
    pq.write_table(table.slice(ROWS // 2), folder / "table" / "1.parquet", row_group_size=GROUP)
    side = {"item": [*ITEMS[::2], None], "price": [None, *np.arange(len(ITEMS[::2])) / 3.0], "rank": range(23)}
    pq.write_table(pa.table({**side, "brand": [f"b{number % 5}" for number in range(23)]}), folder / "items.parquet")
    pq.write_table(pa.table({"shop": SHOPS[1:], "size": pa.array([7, 8, 9], pa.int16())}), folder / "shops.parquet")
    return folder


def join(table: Path, on: str, take: str | list[str], missing: Any = 0) -> dict[str, Any]:
    return {"join_external": {"table": str(table), "on": on, "take": take, "missing": missing}}


def encoding(**parameters: Any) -> dict[str, Any]:
    return {"target_encoding": {"target": "clicked", "folds": 1, **parameters}}


def python(name: str) -> dict[str, str]:
    return {"python": f"coded_functions:{name}"}


def lookups(folder: Path) -> dict[str, Any]:
    items, shops = folder / "items.parquet", folder / "shops.parquet"
    prices = [join(items, "item", "price"), {"fill_null": 0.5}]
    mean = {"group_statistics": {"stats": "mean", "of": "clicked"}}
    return {
        "dense": {
            "price": {"column": "item", "ops": [*prices, "log1p"]},
            "size": {"column": "shop", "ops": [join(shops, "shop", "size", 1)]},
            "shop": [encoding()],
            "item": [{"fill_null": 5}, encoding(smoothing=3.0)],
            "mean": {"column": "shop", "ops": [mean, {"fill_null": 0}]},
            "halved": {"column": "full", "ops": [python("halved")]},
        },
        "categorical": {
            "brand": {"column": "item", "ops": [join(items, "item", "brand", "-"), {"hash_bucket": 100}]},
            "count": {"column": "item", "ops": [{"group_statistics": "count"}]},
            "characters": {"column": "shop", "ops": [{"fill_null": ""}, python("characters")]},
        },
        "sparse": {
            "prices": {"column": "history", "ops": [{"first_x": 4}, *prices]},
            "rates": {"column": "history", "ops": [encoding()]},
            "counts": {"column": "tags", "ops": [{"group_statistics": "count"}]},
            "lengths": {"column": "tags", "ops": [python("characters")]},
            "doubled": {"column": "filled", "ops": [{"list_slice": {"start": -3}}, python("doubled")]},
            "filled": [{"first_x": 3}, python("halved")],
        },
        "label": {"clicked": []},
        "extra": ["row"],
    }


@pytest.fixture(autouse=True)
def functions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (folder / "coded_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(folder))
    with own_modules(folder):
        yield


def pipeline(
    folder: Path, work: Path, features: dict[str, Any], decoder: str, fit: dict[str, Any] | None = None, **source: Any
) -> Pipeline:
    return Pipeline.from_dict(
        {
            "version": 1,
            "name": "lookups",
            "allow_code": True,
            "work_dir": str(work / "work"),
            "source": {"table": str(folder / "table"), "decoder": decoder, **source},
            "features": features,
            "fit": fit or {},
            "batch": {"size": 256, "tail": "partial"},
            "shuffle": {"seed": 1, "window_rows": 1500},
        }
    )


def outcome(made: Pipeline) -> Any:
    """The bytes of all batches, and the qualities of all blocks; or the error."""
    try:
        batches = [image(batch) for batch in made.batches()]
        plan = made.plan()
        blocks = list(plan.source.schedule(0).blocks(0, everything=True))
        qualities = [
            run_block(plan.source.job, plan.request(block, 0), "k", False).quality.to_bytes() for block in blocks
        ]
    except FeedlineError as error:
        return type(error), str(error)
    return batches, qualities


@pytest.mark.parametrize("where", [None, "row % 3 > 0", "row % 50 == 1"])
def test_batches_and_quality_are_those_computed_on_rows(
    folder: Path, tmp_path: Path, where: str | None, computed: set[str]
):
    features = lookups(folder)
    pipeline(folder, tmp_path, features, "auto", where="row < 1000").fit()
    coded = outcome(pipeline(folder, tmp_path, features, "auto", where=where))
    assert computed == {"item", "full", "shop", "history", "tags", "filled"}
    rows = outcome(pipeline(folder, tmp_path, features, "arrow", where=where))
    assert not computed
    assert coded == rows
    assert isinstance(rows[0], list)


@pytest.mark.parametrize("features", [
    {"dense": {"full": ["price"]}},
    {"sparse": {"filled": ["price"]}},
    {"categorical": {"full": [python("small")]}},
    {"sparse": {"filled": [python("small")]}},
], ids=str)  # fmt: skip
def test_errors_are_those_of_rows(folder: Path, tmp_path: Path, features: dict[str, Any]):
    """With the row: misses without a value, and functions that raise."""
    price = join(folder / "items.parquet", "item", "price", None)
    features = {
        group: {name: [price if op == "price" else op for op in chain] for name, chain in own.items()}
        for group, own in features.items()
    }
    coded, rows = (
        outcome(pipeline(folder, tmp_path, {**features, "extra": ["row"]}, decoder)) for decoder in ("auto", "arrow")
    )
    assert coded == rows
    assert issubclass(rows[0], FeedlineError)
    assert ", row " in rows[1]


@pytest.mark.filterwarnings("ignore:feature 'price' .* holds nulls")
def test_keys_that_only_filtered_rows_have_are_not_looked_up(folder: Path, tmp_path: Path, computed: set[str]):
    """Other keys have no price, which would be an error."""
    price = join(folder / "items.parquet", "item", "price", None)
    features = {"dense": {"price": {"column": "item", "ops": [price]}}, "extra": ["row"]}
    coded = outcome(pipeline(folder, tmp_path, features, "auto", where="priced"))
    assert computed == {"item"}
    assert coded == outcome(pipeline(folder, tmp_path, features, "arrow", where="priced"))
    assert isinstance(coded[0], list)


@pytest.mark.parametrize(
    ("where", "out_of_fold", "on_codes"),
    [("row < 2000", True, {"shop"}), ("row >= 1000", True, {"shop"}), ("row >= 2000", False, {"shop", "item", "user"})],
    ids=["all rows were fitted on", "some", "none"],
)
def test_out_of_fold_encodings_are_those_of_rows(
    folder: Path, tmp_path: Path, where: str, out_of_fold: bool, on_codes: set[str], computed: set[str]
):
    """Of rows that were fitted on by the column of `fold_by`, which another feature reads."""
    features = {
        "dense": {"item": [{"fill_null": 5}, encoding(folds=3, fold_by="user")]},
        "categorical": {"user": [{"hash_bucket": 100}], "shop": [{"group_statistics": "count"}]},
        "extra": ["row"],
    }
    pipeline(folder, tmp_path, features, "auto", where="row < 2000").fit()
    fit = {"out_of_fold": out_of_fold}
    coded = outcome(pipeline(folder, tmp_path, features, "auto", fit, where=where))
    assert computed == on_codes
    assert coded == outcome(pipeline(folder, tmp_path, features, "arrow", fit, where=where))
    assert isinstance(coded[0], list)
