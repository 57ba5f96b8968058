"""The cases of `transforms.py` that look up what was learnt of keys, beside bare lookups of the same numbers.

What was learnt is there beforehand, as in a run; so is the table of those libraries that can keep one. 95 of 100 keys
were met, each equally likely.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
from transform_cases import Array, Case

from feedline.spec.features import FeatureInput, FeatureSpec, OpCall
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import Artifact

COUNTRIES = 50
ENCODING = {"target": "clicked", "folds": 1}


def group_cases(rows: int) -> list[Case]:
    """Keys of one column and of two, with one statistic and with several."""
    random = np.random.default_rng(2)
    count = 100_000 if rows >= 10_000 else 300
    items = random.permutation(np.unique(random.integers(0, 2**50, count)))
    met = pl.DataFrame(
        {
            "item": np.tile(items, 2),
            "country": random.integers(0, COUNTRIES, 2 * len(items)),
            "clicked": random.integers(0, 2, 2 * len(items)),
            "price": random.gamma(2, 20, 2 * len(items)),
        }
    ).with_columns(shop=pl.format("shop {}", pl.col("item")))
    asked = met[random.integers(0, len(met), rows)]
    new = pl.int_range(pl.len()) % 20 == 0
    asked = asked.with_columns(
        item=pl.when(new).then(pl.col("item") + 2**51).otherwise("item"),
        shop=pl.when(new).then(pl.lit("none")).otherwise("shop"),
    )
    prices = {"stats": ["mean", "std"], "of": "price"}
    return [
        case("target_encoding", ENCODING, met, asked.select("item"), ["encoded"]),
        case("target_encoding", ENCODING, met, asked.select("item", "country"), ["encoded"]),
        case("target_encoding", ENCODING, met, asked.select("shop"), ["encoded"]),
        case("group_statistics", {"stats": "mean", "of": "price"}, met, asked.select("item"), ["mean"]),
        case("group_statistics", prices, met, asked.select("item"), ["mean", "var"]),
    ]


def case(op: str, arguments: dict[str, Any], met: pl.DataFrame, asked: pl.DataFrame, made: list[str]) -> Case:
    """`made`: the artifact's columns that the op hands out."""
    call = OpCall(op=op, arguments=json.dumps(arguments))
    inputs = tuple(FeatureInput(column=name) for name in asked.columns)
    feature = FeatureSpec(name="f", group="extra", op=call, inputs=inputs)
    artifact = fit(feature, met)
    names = " and ".join(asked.columns)
    name = f"{op} by {names}" + (", two numbers" if len(made) > 1 else "")
    return Case(name, ((op, arguments),), asked, len(asked), bare(artifact, asked, made), artifact=artifact)


def fit(feature: FeatureSpec, met: pl.DataFrame) -> Artifact:
    schema = met.to_arrow().schema
    [request] = compile_features([feature], schema).missing_fits
    [stream] = request.streams
    state = request.learner.observe(compile_features(stream, schema).apply(met).get_columns())
    return request.learner.finish([request.learner.merge([state])])


def bare(artifact: Artifact, asked: pl.DataFrame, made: list[str]) -> dict[str, Callable[[], Any]]:
    """The table that was learnt, with an index of its own. Two keys are packed into one number by who knows them."""
    table = pl.DataFrame(artifact.table)
    unknown = artifact.facts["means"][0] if "means" in artifact.facts else np.nan
    numbers = np.array([np.sqrt(table[name]) if name == "var" else table[name].to_numpy() for name in made])
    results = np.ascontiguousarray(np.vstack([numbers.T, np.full((1, len(made)), unknown)]))
    if asked.columns == ["shop"]:
        words, value = table["key 0"], pl.Series(results[:-1, 0])
        index, texts = pd.Index(words.to_list(), dtype=object), np.array(asked["shop"].to_list(), dtype=object)
        return {
            "pandas index, of Python strings": lambda: results[index.get_indexer(texts)],
            "polars replace_strict": lambda: asked["shop"].replace_strict(words, value, default=unknown),
        }
    keys, columns = table["key 0"].to_numpy(), [asked[name].to_numpy() for name in asked.columns]
    if len(columns) == 2:
        keys = keys * COUNTRIES + table["key 1"].to_numpy()

    def packed() -> Array:
        return columns[0] if len(columns) == 1 else columns[0] * COUNTRIES + columns[1]

    order = np.argsort(keys)
    ordered, sorted_results = keys[order], results[:-1][order]
    index = pd.Index(keys)
    joined = pl.DataFrame({"key": keys, "made": results[:-1, 0]})

    def searched() -> Array:
        values = packed()
        place = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
        return np.where((ordered[place] == values)[:, None], sorted_results[place], unknown)

    ways: dict[str, Callable[[], Any]] = {
        "pandas index": lambda: results[index.get_indexer(packed())],
        "numpy searchsorted": searched,
    }
    if len(made) == 1:
        ways["polars join"] = lambda: (
            pl.DataFrame({"key": packed()}).join(joined, on="key", how="left", maintain_order="left")["made"]
        ).fill_null(unknown)
    return ways
