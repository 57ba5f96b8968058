"""Joins, encodings by key and users' functions on dictionaries are those on rows: batches, quality and errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from coded_blocks import IDS, WORDS, needs_kernel, on_codes_and_rows, pipeline
from own_modules import own_modules

from feedline.errors import FeedlineError

pytestmark = needs_kernel
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


@pytest.fixture(scope="module")
def folder(coded_table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Side tables without some of the keys."""
    folder, keys = tmp_path_factory.mktemp("lookups"), [*IDS[::2], None]
    count = len(keys)
    side = {"item": keys, "price": [None, *np.arange(count - 1) / 3.0], "rank": range(count)}
    pq.write_table(pa.table({**side, "brand": [f"b{number % 5}" for number in range(count)]}), folder / "items.parquet")
    pq.write_table(pa.table({"shop": WORDS[1:], "size": pa.array([7, 8, 9], pa.int16())}), folder / "shops.parquet")
    (folder / "coded_functions.py").write_text(FUNCTIONS)
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
            "size": {"column": "word", "ops": [join(shops, "shop", "size", 1)]},
            "word": [encoding()],
            "item": [{"fill_null": 5}, encoding(smoothing=3.0)],
            "mean": {"column": "word", "ops": [mean, {"fill_null": 0}]},
            "halved": {"column": "full", "ops": [python("halved")]},
        },
        "categorical": {
            "brand": {"column": "item", "ops": [join(items, "item", "brand", "-"), {"hash_bucket": 100}]},
            "count": {"column": "item", "ops": [{"group_statistics": "count"}]},
            "characters": {"column": "word", "ops": [{"fill_null": ""}, python("characters")]},
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
    monkeypatch.syspath_prepend(str(folder))
    with own_modules(folder):
        yield


@pytest.mark.parametrize("where", [None, pytest.param("row % 3 > 0", marks=pytest.mark.nightly), "row % 50 == 1"])
def test_batches_and_quality_are_those_computed_on_rows(
    coded_table: Path, folder: Path, tmp_path: Path, where: str | None, computed: set[str]
):
    changes: dict[str, Any] = {"allow_code": True, "features": lookups(folder)}
    pipeline(coded_table, tmp_path, source={"where": "row < 1000"}, **changes).fit()
    columns = {"item", "full", "word", "history", "tags", "filled"}
    batches, _ = on_codes_and_rows(coded_table, tmp_path, computed, columns, source={"where": where}, **changes)
    assert isinstance(batches, list)


@pytest.mark.parametrize("group", ["dense", "sparse"])
@pytest.mark.parametrize("op", ["price", "small"])
def test_errors_are_those_of_rows(
    coded_table: Path, folder: Path, tmp_path: Path, group: str, op: str, computed: set[str]
):
    """With the row: misses without a value, and functions that raise."""
    ops = [join(folder / "items.parquet", "item", "price", None) if op == "price" else python("small")]
    name, group = ("filled", group) if group == "sparse" else ("full", "dense" if op == "price" else "categorical")
    changes = {"allow_code": True, "features": {group: {name: ops}, "extra": ["row"]}}
    kind, message = on_codes_and_rows(coded_table, tmp_path, computed, set(), **changes)
    assert issubclass(kind, FeedlineError)
    assert ", row " in message


@pytest.mark.filterwarnings("ignore:feature 'price' .* holds nulls")
def test_keys_that_only_filtered_rows_have_are_not_looked_up(
    coded_table: Path, folder: Path, tmp_path: Path, computed: set[str]
):
    """Other keys have no price, which would be an error."""
    price = join(folder / "items.parquet", "item", "price", None)
    features = {"dense": {"price": {"column": "item", "ops": [price]}}, "extra": ["row"]}
    batches, _ = on_codes_and_rows(
        coded_table, tmp_path, computed, {"item"}, features=features, source={"where": "priced"}
    )
    assert isinstance(batches, list)


@pytest.mark.parametrize(
    ("where", "out_of_fold", "on_codes"),
    [("row < 2000", True, {"word"}), ("row >= 1000", True, {"word"}), ("row >= 2000", False, {"word", "item", "user"})],
    ids=["all rows were fitted on", "some", "none"],
)
def test_out_of_fold_encodings_are_those_of_rows(
    coded_table: Path, tmp_path: Path, where: str, out_of_fold: bool, on_codes: set[str], computed: set[str]
):
    """Of rows that were fitted on by the column of `fold_by`, which another feature reads."""
    features = {
        "dense": {"item": [{"fill_null": 5}, encoding(folds=3, fold_by="user")]},
        "categorical": {"user": [{"hash_bucket": 100}], "word": [{"group_statistics": "count"}]},
        "extra": ["row"],
    }
    pipeline(coded_table, tmp_path, features=features, source={"where": "row < 2000"}).fit()
    changes = {"features": features, "fit": {"out_of_fold": out_of_fold}, "source": {"where": where}}
    batches, _ = on_codes_and_rows(coded_table, tmp_path, computed, on_codes, **changes)
    assert isinstance(batches, list)
