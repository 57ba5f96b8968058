"""The examples of docs/coming-from/nvtabular.md compute what NVTabular's operators do, by its sources, in pandas."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from ruamel.yaml import YAML

from feedline import Pipeline
from feedline.config.features import OpCall
from feedline.expressions import bind_where
from feedline.transforms.ops import OPS, resolve
from feedline.transforms.registry.op import OpError

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coming-from" / "nvtabular.md").read_text(encoding="utf-8")
YAML_READER = YAML(typ="safe", pure=True)
OPERATORS = {  # all that nvtabular.ops exports, classes to derive from apart
    *("AddMetadata", "Bucketize", "Categorify", "Clip", "ColumnSimilarity", "DataStats", "DifferenceLag"),
    *("DropLowCardinality", "Dropna", "FillMedian", "FillMissing", "Filter", "Groupby", "HashBucket", "HashedCross"),
    *("JoinExternal", "JoinGroupby", "LambdaOp", "ListSlice", "LogOp", "Normalize", "NormalizeMinMax"),
    *("ReduceDtypeSize", "Rename", "TargetEncoding", "ValueCount"),
}
LINES = [line.strip("|").split("|") for line in PAGE.splitlines() if line.count("|") == 5 and line.startswith("| `")]
EXAMPLES: dict[str, dict[str, Any]] = {
    re.findall(r"\w+", operator)[0]: YAML_READER.load(example.strip(" `"))
    for operator, _, example, _ in LINES
    if example.strip()
}
CATEGORICAL = {"Bucketize", "Categorify", "HashBucket", "HashedCross"}

RANDOM = np.random.default_rng(0)
SIZE = 400
TABLE = pl.DataFrame(
    {
        "request": np.arange(SIZE),
        "shop": (RANDOM.zipf(1.5, SIZE) % 40).astype(np.int32),
        "country": [["de", "us", "fr"][one] for one in RANDOM.integers(0, 3, SIZE)],
        "price": pl.Series(RANDOM.gamma(2, 20, SIZE)).set(pl.Series(RANDOM.random(SIZE) < 0.1), None),
        "history": [RANDOM.integers(0, 9, RANDOM.integers(0, 6)).tolist() for _ in range(SIZE)],
        "candidates": [RANDOM.integers(0, 9, RANDOM.integers(0, 6)).tolist() for _ in range(SIZE)],
        "clicked": RANDOM.integers(0, 2, SIZE),
    }
)
SHOPS = pl.DataFrame({"id": range(0, 40, 2), "year": range(1980, 2000)})
FRAME = TABLE.to_pandas()
PRICE = FRAME["price"]
FILLED = PRICE.fillna(0)
PAIRS = FRAME.groupby(["shop", "country"])


def categories() -> Any:
    counts = Counter(FRAME["shop"])
    kept = sorted((shop for shop, count in counts.items() if count >= 2), key=lambda shop: (-counts[shop], shop))
    return FRAME["shop"].map({shop: 3 + rank for rank, shop in enumerate(kept)}).fillna(2)


def cosine(one: list[int], other: list[int]) -> float:
    left, right = Counter(one), Counter(other)
    lengths = math.sqrt(sum(x * x for x in left.values()) * sum(x * x for x in right.values()))
    return sum(count * right[key] for key, count in left.items()) / lengths if lengths else 0.0


def encoded() -> Any:
    clicked = PAIRS["clicked"]
    return (clicked.transform("sum") + 20 * FRAME["clicked"].mean()) / (clicked.transform("count") + 20)


def grouped() -> Any:
    names = ("count", "sum", "mean", "std", "min")
    return pd.DataFrame({name: PAIRS["price"].transform(name) for name in names}).fillna(0)


def last_two() -> Any:
    return [[*history[-2:], 0, 0][:2] for history in TABLE["history"].to_list()]


EXPECTED: dict[str, Callable[[], Any]] = {
    "Bucketize": lambda: np.searchsorted([10, 20, 50], FILLED),
    "Categorify": categories,
    "Clip": lambda: PRICE.clip(0, 100).fillna(0),
    "ColumnSimilarity": lambda: [cosine(*lists) for lists in TABLE.select("history", "candidates").rows()],
    "FillMedian": lambda: PRICE.fillna(PRICE.median()),
    "FillMissing": lambda: FILLED,
    "JoinExternal": lambda: FRAME["shop"].map(dict(SHOPS.rows())).fillna(0),
    "JoinGroupby": grouped,
    "LambdaOp": lambda: (PRICE * PRICE).fillna(0),
    "LogOp": lambda: np.log1p(FILLED),
    "Normalize": lambda: (FILLED - FILLED.mean()) / FILLED.std(ddof=0),
    "NormalizeMinMax": lambda: (FILLED - FILLED.min()) / (FILLED.max() - FILLED.min()),
    "Rename": lambda: FILLED,
    "TargetEncoding": encoded,
    "ValueCount": last_two,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each example becomes, all of them in one pipeline that is fitted: numbers by operator."""
    folder = tmp_path_factory.mktemp("n")
    (folder / "data").mkdir()
    TABLE.write_parquet(folder / "data" / "a.parquet", row_group_size=150)
    SHOPS.write_parquet(folder / "shops.parquet")
    features: dict[str, dict[str, Any]] = {"dense": {}, "categorical": {}, "sparse": {}, "label": {"clicked": []}}
    for operator, example in EXAMPLES.items():
        [(name, body)] = example.items()
        group = "sparse" if operator == "ListSlice" else "categorical" if operator in CATEGORICAL else "dense"
        features[group][operator] = {"column": name, "ops": body} if isinstance(body, list) else body
    document = {
        "version": 1,
        "name": "nvtabular",
        "source": {"table": "data"},
        "features": features,
        "batch": {"size": SIZE},
        "shuffle": "off",
    }
    path = folder / "p.yaml"
    with path.open("w") as file:
        YAML_READER.dump(document, file)
    Pipeline.from_yaml(path).fit()
    [batch] = Pipeline.from_yaml(path, set={"fit.out_of_fold": False}).batches()
    return {name: batch[name] for group in ("dense", "categorical", "sparse") for name in features[group]}


@pytest.mark.parametrize("operator", EXPECTED)
def test_an_example_gives_the_numbers_of_nvtabular(operator: str, made: dict[str, Any]):
    expected = np.asarray(EXPECTED[operator](), dtype=np.float64)
    found = np.asarray(made[operator], dtype=np.float64)
    rtol = 1e-3 if operator == "FillMedian" else 2e-6
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=rtol, atol=2e-6)


def test_hashes_are_in_their_range_and_of_the_values_alone(made: dict[str, Any]):
    for operator, keys, buckets in (("HashBucket", ["shop"], 1000), ("HashedCross", ["shop", "country"], 100_000)):
        ids = np.asarray(made[operator]).tolist()
        assert 0 <= min(ids) <= max(ids) < buckets
        assert len(set(zip(ids, TABLE.select(keys).rows(), strict=True))) == TABLE.select(keys).n_unique()


def test_lists_are_sliced(made: dict[str, Any]):
    values = [value for history in TABLE["history"].to_list() for value in history[-3:]]
    assert np.asarray(made["ListSlice"].values).tolist() == values


def test_every_operator_is_on_the_page_and_every_example_is_tested():
    assert {re.findall(r"\w+", line[0])[0] for line in LINES} == OPERATORS
    assert {"AddProperties", "AddTags", "TagAsUserID", "TagAsItemID"} <= set(re.findall(r"\w+", LINES[0][0]))
    assert {*EXPECTED, "HashBucket", "HashedCross", "ListSlice"} == set(EXAMPLES)
    assert {*re.findall(r"ops\.md#(\w+)", PAGE)} <= {*OPS}


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_nvtabular_names_get_a_hint(operator: str):
    with pytest.raises(OpError) as caught:
        resolve(OpCall(op=operator))
    assert not re.search("expected one of|Did you mean", str(caught.value)), caught.value


def test_filters_that_are_shown_bind():
    [where] = re.findall(r"`where: ([^`]*)`", PAGE)
    assert bind_where(where, TABLE.to_arrow().schema).columns == {"price", "shop"}


def test_the_row_before_by_polars():
    """As the page says to write it into the table."""
    [text] = re.findall(r"`(\(pl\.col.*?\)\.alias\(\"since_last\"\))`", PAGE)
    assert text == '(pl.col("ts") - pl.col("ts").shift(1).over("user_id", order_by="ts")).alias("since_last")'
    events = pl.DataFrame({"user_id": [1, 2, 1, 1], "ts": [30, 5, 10, 11]})
    since_last = (pl.col("ts") - pl.col("ts").shift(1).over("user_id", order_by="ts")).alias("since_last")
    assert events.select(since_last).to_series().to_list() == [19, None, None, 1]
