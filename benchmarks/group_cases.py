"""The cases of `transforms.py` that look up statistics of keys, compared with bare lookups.

The statistics exist beforehand, as in a run; so do the tables of libraries that can keep one. 95 of 100 keys were seen
in the fit, each equally likely.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
from transform_cases import Array, Case

from feedline.config.features import FeatureInput, FeatureSpec, OpCall
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import Artifact

COUNTRIES = 50
ENCODING = {"target": "clicked", "folds": 1}


def group_cases(rows: int) -> list[Case]:
    """Keys of one column and of two, with one statistic and with several."""
    random = np.random.default_rng(2)
    count = 100_000 if rows >= 10_000 else 300
    items = random.permutation(np.unique(random.integers(0, 2**50, count)))
    fitted = pl.DataFrame(
        {
            "item": np.tile(items, 2),
            "country": random.integers(0, COUNTRIES, 2 * len(items)),
            "clicked": random.integers(0, 2, 2 * len(items)),
            "price": random.gamma(2, 20, 2 * len(items)),
        }
    ).with_columns(shop=pl.format("shop {}", pl.col("item")))
    frame = fitted[random.integers(0, len(fitted), rows)]
    new = pl.int_range(pl.len()) % 20 == 0
    frame = frame.with_columns(
        item=pl.when(new).then(pl.col("item") + 2**51).otherwise("item"),
        shop=pl.when(new).then(pl.lit("none")).otherwise("shop"),
    )
    prices = {"stats": ["mean", "std"], "of": "price"}
    return [
        case("target_encoding", ENCODING, fitted, frame.select("item"), ["encoded"]),
        case("target_encoding", ENCODING, fitted, frame.select("item", "country"), ["encoded"]),
        case("target_encoding", ENCODING, fitted, frame.select("shop"), ["encoded"]),
        case("group_statistics", {"stats": "mean", "of": "price"}, fitted, frame.select("item"), ["mean"]),
        case("group_statistics", prices, fitted, frame.select("item"), ["mean", "var"]),
    ]


def case(op: str, arguments: dict[str, Any], fitted: pl.DataFrame, frame: pl.DataFrame, outputs: list[str]) -> Case:
    """Build a case; `outputs`: the artifact's columns that the op returns."""
    call = OpCall(op=op, arguments=json.dumps(arguments))
    inputs = tuple(FeatureInput(column=name) for name in frame.columns)
    feature = FeatureSpec(name="f", group="extra", op=call, inputs=inputs)
    artifact = fit(feature, fitted)
    names = " and ".join(frame.columns)
    name = f"{op} by {names}" + (", two numbers" if len(outputs) > 1 else "")
    return Case(name, ((op, arguments),), frame, len(frame), bare(artifact, frame, outputs), artifact=artifact)


def fit(feature: FeatureSpec, fitted: pl.DataFrame) -> Artifact:
    schema = fitted.to_arrow().schema
    [request] = compile_features([feature], schema).missing_fits
    [stream] = request.streams
    state = request.learner.observe(compile_features(stream, schema).apply(fitted).get_columns())
    return request.learner.finish([request.learner.merge([state])])


def bare(artifact: Artifact, frame: pl.DataFrame, outputs: list[str]) -> dict[str, Callable[[], Any]]:
    """Return bare lookups in the fitted table, with their own index. Two keys may be packed into one integer."""
    table = pl.DataFrame(artifact.table)
    unknown = artifact.facts["means"][0] if "means" in artifact.facts else np.nan
    numbers = np.array([np.sqrt(table[name]) if name == "var" else table[name].to_numpy() for name in outputs])
    results = np.ascontiguousarray(np.vstack([numbers.T, np.full((1, len(outputs)), unknown)]))
    if frame.columns == ["shop"]:
        words, value = table["key 0"], pl.Series(results[:-1, 0])
        index, texts = pd.Index(words.to_list(), dtype=object), np.array(frame["shop"].to_list(), dtype=object)
        return {
            "pandas index, of Python strings": lambda: results[index.get_indexer(texts)],
            "polars replace_strict": lambda: frame["shop"].replace_strict(words, value, default=unknown),
        }
    keys, columns = table["key 0"].to_numpy(), [frame[name].to_numpy() for name in frame.columns]
    if len(columns) == 2:
        keys = keys * COUNTRIES + table["key 1"].to_numpy()

    def packed() -> Array:
        return columns[0] if len(columns) == 1 else columns[0] * COUNTRIES + columns[1]

    order = np.argsort(keys)
    ordered, sorted_results = keys[order], results[:-1][order]
    index = pd.Index(keys)
    lookup_table = pl.DataFrame({"key": keys, "output": results[:-1, 0]})

    def searched() -> Array:
        values = packed()
        place = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
        return np.where((ordered[place] == values)[:, None], sorted_results[place], unknown)

    ways: dict[str, Callable[[], Any]] = {
        "pandas index": lambda: results[index.get_indexer(packed())],
        "numpy searchsorted": searched,
    }
    if len(outputs) == 1:
        ways["polars join"] = lambda: (
            pl.DataFrame({"key": packed()}).join(lookup_table, on="key", how="left", maintain_order="left")["output"]
        ).fill_null(unknown)
    return ways
