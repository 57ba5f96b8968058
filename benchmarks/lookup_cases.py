"""The cases of `transforms.py` that look values up in a vocabulary, compared with the tables of other libraries.

The vocabulary is built beforehand, as in a run; so are the tables of libraries that can keep one. 95 of 100 values are
in it, each equally likely, which is the worst case for caches: real ids are mostly the frequent ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from transform_cases import Array, Case, list_series

from feedline.transforms.learning.learner import Artifact

MEAN_LENGTH = 20
FIRST = 3  # 0 padding, 1 null, 2 unknown
LARGEST_HASHED_ANEW = 1_000_000  # keys; with more, a library that hashes them at every call takes a second


def lookup_cases(rows: int) -> list[Case]:
    """Ids, lists of ids and strings, in vocabularies of a usual and of a large size."""
    random = np.random.default_rng(1)
    full = rows >= 10_000
    usual, large = (200_000, 10_000_000) if full else (500, 2_000)
    size = rows * MEAN_LENGTH
    cases = []
    for label, count in (("200 k keys", usual), ("10 M keys", large)):
        keys = np.unique(random.integers(0, 2**50, count))
        random.shuffle(keys)
        values = values_of(keys, size, random)
        lists = list_series(values, np.arange(0, size + 1, MEAN_LENGTH))
        artifact, bare = vocabulary_of(pl.Series(keys)), bare_integers(keys)
        scalars = values[:rows].copy()
        cases += [
            case(
                f"vocabulary, {label}", pl.Series(scalars), artifact, {name: way(scalars) for name, way in bare.items()}
            ),
            case(f"vocabulary, {label}, lists", lists, artifact, {name: way(values) for name, way in bare.items()}),
        ]
    narrow = np.arange(usual, dtype=np.int64)
    random.shuffle(narrow)
    values = values_of(narrow, rows, random)
    places = {name: way(values) for name, way in bare_integers(narrow).items()}
    cases.append(case("vocabulary, narrow range", pl.Series(values), vocabulary_of(pl.Series(narrow)), places))
    words = pl.Series([f"{number:x}" for number in np.unique(random.integers(0, 2**40, usual))])
    texts = words.gather(random.integers(0, len(words), rows)).rechunk()
    cases.append(case("vocabulary of strings", texts, vocabulary_of(words), bare_strings(words, texts)))
    return cases


def case(name: str, values: pl.Series, artifact: Artifact, bare: dict[str, Callable[[], Any]]) -> Case:
    """Build a case; it is charged per value, also within lists."""
    frame = pl.DataFrame({"x": values})
    count = int(values.list.len().sum()) if isinstance(values.dtype, pl.List) else len(values)
    return Case(name, (("vocabulary", {}),), frame, count, bare, artifact=artifact)


def vocabulary_of(keys: pl.Series) -> Artifact:
    """Return a vocabulary as fitting produces it."""
    counts = pl.Series(np.arange(len(keys), 0, -1))
    facts = {"layout": 1, "ids": FIRST + len(keys), "values": len(keys)}
    return Artifact(facts=facts, table=pl.DataFrame({"value": keys, "count": counts}).to_arrow())


def values_of(keys: Array, count: int, random: np.random.Generator) -> Array:
    """Return values of which 5 % are not among the keys."""
    values = keys[random.integers(0, len(keys), count)]
    values[::20] = random.integers(2**51, 2**52, len(values[::20]))
    return values


def bare_integers(keys: Array) -> dict[str, Callable[[Array], Callable[[], Any]]]:
    """Return the lookups of other libraries; tables that can be kept are built here."""
    index = pd.Index(keys)
    ids = np.arange(FIRST, FIRST + len(keys))
    order = np.argsort(keys)
    ordered, results = keys[order], ids[order]

    def pandas(values: Array) -> Callable[[], Array]:
        return lambda: np.maximum(index.get_indexer(values) + FIRST, FIRST - 1)

    def numpy(values: Array) -> Callable[[], Array]:
        def run() -> Array:
            place = np.searchsorted(ordered, values)
            place[place == len(ordered)] = 0
            return np.where(ordered[place] == values, results[place], FIRST - 1)

        return run

    ways = {"pandas index": pandas, "numpy searchsorted": numpy}
    if len(keys) > LARGEST_HASHED_ANEW:
        return ways
    key_set, table = pa.array(keys), pl.DataFrame({"key": keys, "id": ids})

    def arrow(values: Array) -> Callable[[], Array]:
        column = pa.array(values)
        return lambda: pc.index_in(column, key_set).fill_null(-1).to_numpy() + np.int64(FIRST)

    def replaced(values: Array) -> Callable[[], pl.Series]:
        series = pl.Series(values)
        return lambda: series.replace_strict(table["key"], table["id"], default=FIRST - 1)

    def joined(values: Array) -> Callable[[], pl.Series]:
        frame = pl.DataFrame({"key": values})
        return lambda: frame.join(table, on="key", how="left", maintain_order="left")["id"].fill_null(FIRST - 1)

    return ways | {"arrow index_in": arrow, "polars replace_strict": replaced, "polars join": joined}


def bare_strings(words: pl.Series, texts: pl.Series) -> dict[str, Callable[[], Any]]:
    """Return the lookups of other libraries, for strings."""
    ids = pl.Series(np.arange(FIRST, FIRST + len(words)))
    index = pd.Index(words.to_list(), dtype=object)
    objects = np.array(texts.to_list(), dtype=object)
    return {
        "pandas index, of Python strings": lambda: np.maximum(index.get_indexer(objects) + FIRST, FIRST - 1),
        "polars replace_strict": lambda: texts.replace_strict(words, ids, default=FIRST - 1),
    }
